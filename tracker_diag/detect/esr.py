"""Shiryaev–Roberts e-detector on block means: growth in long runs, with hardly ever a false alarm.

An e-detector with alarm level c waits c blocks on average for a false alarm. This assumes no independence (Shin,
Ramdas, Rinaldo, arXiv 2203.03532). One condition: a block exceeds the largest block of the baseline no more often than
assumed. That share includes the error of a baseline of few blocks.

In simulation (noise of log p95 0.10, AR(.9)) an own-and-relative pair never alarmed falsely. That was in 1M steps each
of normal noise, heavy tails, a common random walk and a common step. Median delays: ×2 over 500 steps 310, ×2 over
2,000 steps 930, ×2 at once 60, ×4 at once 20.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist

from tracker_diag.detect.blocks import LEAST, BlockDetector, BlockSettings
from tracker_diag.stats.arrays import Float64Array

JUMP = math.log(2)
"""Log units by which two blocks in a row lie above the highest of the baseline after a jump."""


@dataclass(frozen=True)
class EsrSettings(BlockSettings):
    """Counted in valid steps: those on which the series had a value."""

    burn_in: int = 15
    baseline: int = 200
    block: int = 10
    floor: float = 0.10
    """d, in log units: a block that exceeds the baseline's by less is not counted."""
    level: float = 10_000
    """c: blocks to a false alarm, on average and at least."""
    bets: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor < 0 or self.level < 10 or self.bets < 1:
            raise ValueError(f"{self}: expected floor ≥ 0, level ≥ 10 and bets ≥ 1")


def exceedance(blocks: int) -> float:
    """p0: how often the next block exceeds the largest one of a baseline of so many `blocks` by chance.

    Of exchangeable blocks it does so with probability 1/(n + 1). Two standard deviations of that share guard against a
    baseline that is not representative.
    """
    p = 1 - blocks / (blocks + 1)
    return p + 2 * math.sqrt(p * (1 - p) / (blocks + 2))


@cache
def likelihood_ratios(p0: float, bets: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each bet, L for a block that does not exceed the baseline and for one that does."""
    p1 = [p0 + (1 - p0) * i / (bets + 1) for i in range(1, bets + 1)]
    return tuple((1 - p) / (1 - p0) for p in p1), tuple(p / p0 for p in p1)


def capped(values: Sequence[float], total: float) -> list[float]:
    """`values`, the largest of them lowered to one level so that they add up to `total` at most."""
    level, left = math.inf, total
    if sum(values) > total:
        for rank, value in enumerate(sorted(values)):
            level = left / (len(values) - rank)
            if value >= level:
                break
            left -= value
    return [min(value, level) for value in values]


@dataclass
class BlockEsr(BlockDetector[EsrSettings]):
    """Bets on how often a block exceeds the baseline's; growth holds while their mean is above c, or after a jump.

    M_i ← L_i·(M_i + 1) for each bet (Shiryaev, Roberts). M is lowered where its mean exceeds 2c, so that growth ends a
    few blocks after the series is back; that only ever lowers M, and only beyond an alarm, so the guarantee holds until
    the first one.

    A jump holds sooner: two blocks in a row that exceed the highest of the baseline by log 2, until one
    falls back below. On the log scale only: a series that can be near zero doubles all the time.

    `score` is the mean of M. `onset` is where W ← L·max(W, 1), the CUSUM of the same bets, last rose above 1: the most
    likely beginning. The last minimum of M itself is at its start, and a capped M takes long to come down.
    """

    settings: EsrSettings = field(default_factory=EsrSettings)
    _highest: float = 0.0
    _floor: float = 0.0
    _m: list[float] = field(default_factory=list[float])
    _since_onset: float = 0.0
    """W, at most 2c."""
    _jumped: int = 0
    """Blocks in a row, two at most, that lie as high as after a jump."""

    @property
    def _grown(self) -> bool:
        return self.score > self.settings.level or self._jumped == 2

    def _freeze(self, values: Float64Array, means: Float64Array, error: float) -> None:
        # Where the normal error that is known puts the largest block, should the baseline be calm by chance.
        expected = self._mean + NormalDist().inv_cdf(len(means) / (len(means) + 1)) * error
        self._highest = max(float(means.max()), expected)
        self._floor = max(self._least_change(self.settings.floor), LEAST if self.scale == "linear" else 0.0)
        self._reference = self._highest + self._floor - self._mean
        self._m = [0.0] * self.settings.bets

    def _judge(self, mean: float, values: Sequence[float]) -> None:
        settings = self.settings
        over = mean - self._highest
        p0 = exceedance(settings.baseline // settings.block)
        ratios = likelihood_ratios(p0, settings.bets)[over > self._floor]
        grown = [ratio * (m + 1) for ratio, m in zip(ratios, self._m, strict=True)]
        self._m = capped(grown, 2 * settings.level * settings.bets)
        self.score = sum(self._m) / settings.bets
        high = self.scale == "log" and over > max(JUMP, self._floor)
        self._jumped = min(self._jumped + 1, 2) if high else 0
        self._since_onset = min(sum(ratios) / settings.bets * max(self._since_onset, 1.0), 2 * settings.level)
        if self._since_onset <= 1:
            self.onset = None
        elif self.onset is None:
            self.onset = self._block_start
