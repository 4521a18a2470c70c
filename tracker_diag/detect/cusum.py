"""Block CUSUM: sustained growth of a series against its own frozen baseline.

Charts on single steps alarm on the autocorrelated noise of training curves. This one looks at means over blocks. It
takes the noise of a block from the baseline, never below what its autocorrelation implies. Settings are those for short
runs; docs/alerts.md has the false alarms and delays of the rules on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracker_diag.detect.blocks import LEAST, MOST, BlockDetector, BlockSettings
from tracker_diag.detect.noise import centred, deviation_of
from tracker_diag.stats.arrays import Float64Array

CLEARLY = 2.0
"""Standard deviations of its own block means by which a level is better than chance alone would make it."""

CALMER = 0.25
"""Part of the baseline's noise below which a series is calmer than chance alone would make it."""

LOWER = 0.75
"""Part of d by which a level is better than that to which a series that wanders comes."""

LOWER_AGAIN = 0.5
"""The same soon after a better level was followed, as the series may not have come to its end yet."""

ABOVE = 2.0
"""Standard errors by which a baseline is above the mean of the stretch that was taken for being low."""

CHANCE = 3.0
"""Standard errors by which the second half of a baseline is above the first without having grown."""

WARM_UP = 3
"""Baselines for which the tail of a slice may rise before it has one."""

FEW = 12
"""Values of a baseline of which the threshold is twice the usual one."""

FEWEST_BLOCKS = 5
"""Blocks that tell their noise."""


@dataclass(frozen=True)
class CusumSettings(BlockSettings):
    """Counted in valid steps: those on which the series had a value."""

    burn_in: int = 15
    baseline: int = 50
    block: int = 5
    slack: float = 1.0
    """k: standard deviations of a block mean that are not counted as growth."""
    threshold: float = 4.5
    """h: accumulated standard deviations at which growth holds."""
    floor: float = 0.4
    """d, in log units: growth of a block by less than half of it, ×1.22, is never counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack <= 0 or self.threshold <= 0 or self.floor < 0:
            raise ValueError(f"{self}: expected positive numbers")


def few_values(threshold: float, size: int) -> float:
    """`threshold` where the noise is that of a baseline of `size` values: of few blocks it is less sure."""
    return threshold * (1 + FEW / size)


@dataclass
class BlockCusum(BlockDetector[CusumSettings]):
    """One-sided CUSUM on block means (Page 1954), with a slack from baseline noise and a floor.

    C ← max(0, C + (v − m − ref)/s), ref = max(k·s, d/2); growth holds while C > h. C is capped at 2h,
    so that it ends a few blocks after the series is back. `score` is C, in standard deviations; `onset`
    is where it last left zero.

    If a positive series rises before its baseline is full, the baseline is the first half. That is so if it has a
    quarter of the noise, and the last two blocks are above it.

    The mean of 50 autocorrelated values is itself a guess. Once as many more have kept to that level, within chance and
    without growth, the baseline is all of them. Their own noise says how far chance takes it down: a baseline on which
    the series was still falling is noisier than what comes after it.

    What is normal gets better with learning, and never worse. A series may keep to a better level for as long as a
    baseline takes. Better means by more than 0.75 d and 2 times that level's noise. Or it is no worse, with a quarter
    of the noise. That level is then its baseline. If the series was still falling, the noise of its baseline says
    nothing of the level it falls to. That stretch is chosen because it is low, out of many. So the baseline is two
    standard errors above its mean. What only wanders goes lower and comes back. This was tried on 400 runs of 1,000
    steps in which both slices wander together between ×0.8 and ×1.2. With d/2, and the mean itself, 13 alarmed falsely.
    As it is, 1 or 2 do.
    """

    settings: CusumSettings = field(default_factory=CusumSettings)
    _noise: float = 0.0
    _error: float = 0.0
    """Known standard deviation of a block mean through sampling, of the first baseline."""
    _trail: list[float] = field(default_factory=list[float])
    """The last values, as many as a baseline has, since m last moved."""
    _last: float = -MOST
    _peak: float = -MOST
    """Mean of the last block, and the highest level of two blocks in a row since `score` left zero."""
    _crest: float = -MOST
    """The highest level that the series has come back from.

    A level counts if it was within the first baseline, or was the baseline before a better one. It also counts if
    `score` fell back to zero after it.
    """
    _values: int = 0
    """The number of values from which the noise of the baseline is known."""
    _falling: int = 0
    """Values for which a level is followed that is better by less: what was taken may reach back into the fall."""
    _first: list[float] = field(default_factory=list[float])
    """The values of the first baseline, until as many more have borne it out or there is a better one."""

    @property
    def _grown(self) -> bool:
        return self.score > self._threshold

    @property
    def is_new(self) -> bool:
        return self._last >= self._crest + self._least_change(self.settings.floor / 2)

    @property
    def _threshold(self) -> float:
        """h, higher where few values tell the noise of the baseline, by as much as in a short run."""
        usual = self.settings.threshold
        return usual if self._values >= self.settings.baseline else few_values(usual, self._values)

    def _is_settled(self, values: Float64Array, means: Float64Array) -> bool:
        """Whether the tail of a slice has ceased to rise, as it does while the learning rate warms up.

        Between its first and last third it then rises by less than is counted, or than its noise explains. What jumps
        after half a baseline of calm is no warm-up; nor is what rises for too long.
        """
        if not self.disjoint or self.scale != "log" or self._left_out > WARM_UP * self.settings.baseline:
            return True
        if not self._rises(values):
            return True
        half = len(means) // 2 * self.block
        return not self._left_out and self._jumps(values, means) and not self._rises(values[:half])

    def _rises(self, values: Float64Array) -> bool:
        """Whether the last third of `values` is above the first, by more than their noise about a line explains."""
        size, third = len(values), len(values) // 3
        at = np.arange(size) - (size - 1) / 2
        rest = values - at * float(at @ values / (at @ at))
        error = self._noise_of(rest) * math.sqrt(2 * self.block / third)
        rise = float(values[-third:].mean() - values[:third].mean())
        return rise > max(self.settings.floor / 2, CLEARLY * error)

    def _freeze(self, values: Float64Array, means: Float64Array, error: float) -> None:
        self._error = error
        whole, noise = self._mean, self._noise_of(values)
        if self._jumps(values, means):
            half, block, steps = len(means) // 2, self.block, self._baseline_steps[-len(values) :]
            self._take(float(means[:half].mean()), self._noise_of(values[: half * block]), half * block)
            for start in range(half * block, len(values), block):
                self._block_start = steps[start]
                self._end_block(values[start : start + block].tolist())
        else:
            self._take(whole, noise)
            self._first = values.tolist()
            self._crest = float(np.minimum(means[1:], means[:-1]).max())

    def _jumps(self, values: Float64Array, means: Float64Array) -> bool:
        """Whether the first half of a baseline is calm, and its end beyond what that half calls normal."""
        half = len(means) // 2
        if self.scale != "log" or half < FEWEST_BLOCKS:
            return False
        early, calm = float(means[:half].mean()), self._noise_of(values[: half * self.block])
        beyond = float(means[-2:].min()) > early + self._reference_of(calm)
        return beyond and calm < CALMER * self._noise_of(values)

    def _noise_of(self, values: Float64Array) -> float:
        """Standard deviation of a block mean about that of a baseline of `values`."""
        size, block = len(values), self.block
        means = np.add.reduce(values.reshape(-1, block), axis=1) / block
        off = centred(values)
        square = float(off @ off)
        phi = float(off[1:] @ off[:-1]) / square if square > 0 else 0.0
        phi = min(max(phi + (1 + 3 * phi) / size, 0.0), 0.97)  # bias of order 1/size (Marriott, Pope 1954)
        implied = deviation_of(off) * math.sqrt((1 + phi) / (1 - phi) / block)
        # What the baseline shows by chance is never below what is known; then the baseline's own error.
        noise = max(deviation_of(centred(means)), implied, self._error) * math.sqrt(1 + block / size)
        return max(noise, LEAST)

    def _reference_of(self, noise: float) -> float:
        return max(self.settings.slack * noise, self._least_change(self.settings.floor / 2))

    def _judge(self, mean: float, values: Sequence[float]) -> None:
        if self.score == 0:
            self.onset = self._block_start
        gain = (mean - self._mean - self._reference) / self._noise
        self.score = min(max(0.0, self.score + gain), 2 * self._threshold)
        self._peak, self._last = max(self._peak, min(self._last, mean)), mean
        if self.score == 0:
            self.onset = None
            self._crest, self._peak = max(self._crest, self._peak), -MOST
        self._follow(values)

    def _follow(self, values: Sequence[float]) -> None:
        """Take `values`, and what came before them, into the baseline, or for the baseline if that is a better one."""
        size, block = self.size // self.block * self.block, self.block
        self._trail = [*self._trail[max(len(self._trail) + len(values) - size, 0) :], *values]
        self._falling = max(self._falling - len(values), 0)
        if self.score > 0 or len(self._trail) < size:
            return
        level = sum(self._trail) / size
        first, self._first = self._first, []
        if level > self._mean and not first:
            return
        share = math.sqrt(block / size)
        noise = min(self._noise_of(np.array(self._trail)), self._noise)
        higher, lower = (
            min(CHANCE * math.sqrt(2) * share * deviation, self._reference) for deviation in (self._noise, noise)
        )
        if first and -lower < level - self._mean <= higher:
            self._take((self._mean + level) / 2, self._noise_of(np.array([*first, *self._trail])))
            return
        if level > self._mean:
            return
        by = self._least_change((LOWER_AGAIN if self._falling else LOWER) * self.settings.floor)
        if level < self._mean - max(by, CLEARLY * noise) or noise < self._noise * CALMER:
            self._crest = max(self._crest, self._mean)
            self._take(min(level + ABOVE * share * noise, self._mean), noise)
            self._trail, self._falling = [], 2 * size

    def _take(self, mean: float, noise: float, values: int | None = None) -> None:
        """Let the baseline be `mean`, with the `noise` of a block, known from `values`: a whole baseline by default."""
        self._mean, self._noise, self.baseline = mean, noise, self._unscale(mean)
        self._values = self.size if values is None else values
        self._reference = self._reference_of(noise)
