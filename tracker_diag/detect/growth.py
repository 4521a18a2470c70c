"""The detector that the rules use: a quick one for short runs, a near silent one for long runs, side by side.

And a third that holds the run against earlier ones, where they are given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from tracker_diag.detect.blocks import Direction, Scale
from tracker_diag.detect.cusum import BlockCusum, CusumSettings, few_values
from tracker_diag.detect.esr import BlockEsr, EsrSettings
from tracker_diag.detect.known import KnownCusum
from tracker_diag.detect.saved import Saved

SHORT_RUN = 200
"""Rows of a run from which on signals look as far back as they are written to; in a shorter one less far."""
USUAL = 100.0
"""Healthy runs to a false alarm, about, for which all limits are written."""
EXCUSE = 3.0
"""Standard deviations below which a limit is no matter of rarity: it excuses, as a reward that has moved a little."""
LONGER = 0.25
"""Part by which a condition has to hold longer for each factor of ten in runs between false alarms."""
LONG_RUN = 2000
"""Valid steps beyond which a run is a long one."""


@dataclass(frozen=True)
class GrowthSettings:
    """Settings of both detectors."""

    short: CusumSettings = field(default_factory=CusumSettings)
    long: EsrSettings = field(default_factory=EsrSettings)
    expected_steps: int | None = None
    """How long the run is meant to be, in steps; None where nobody knows."""
    expected_runs_between_false_alarms: float = USUAL
    """The dial: the more, the later and the surer. It moves what is a matter of chance: the detectors' levels, limits
    in standard deviations, and how long a condition has to hold. It moves no limit in the unit of a metric."""

    def __post_init__(self) -> None:
        if not 1 <= self.expected_runs_between_false_alarms < math.inf:
            given = self.expected_runs_between_false_alarms
            raise ValueError(f"expected_runs_between_false_alarms: {given} given, expected 1 or more")
        if self.expected_steps is not None and self.expected_steps < 1:
            raise ValueError(f"expected_steps: {self.expected_steps} given, expected 1 or more, or None")

    def dialled(self, runs: float) -> "GrowthSettings":
        """These settings with one false alarm in about so many healthy runs, where they have been for `USUAL`.

        A CUSUM with slack k waits exp(2kh) for a false alarm, up to a factor (Siegmund 1985, ch. 2). An e-detector of
        level c waits c blocks. So h moves by ln(ratio) / 2k, and c by the ratio. If noise has heavy tails and is
        autocorrelated, single series alarm half as often, and not by the ratio (tests/detect).
        """
        if runs == USUAL:
            return self
        dialled = replace(self, expected_runs_between_false_alarms=runs)  # it refuses what makes no sense
        ratio = runs / USUAL
        threshold = max(self.short.threshold + math.log(ratio) / (2 * self.short.slack), 1.0)
        short = replace(self.short, threshold=threshold)
        long = replace(self.long, level=max(self.long.level * ratio, 10.0))
        return replace(dialled, short=short, long=long)

    def limit(self, z: float) -> float:
        """What a limit of `z` standard deviations becomes, beyond which a normal tail has exp(−z²/2).

        Chance exceeds it as much more rarely as false alarms are to be.
        """
        if z < EXCUSE or self.expected_runs_between_false_alarms == USUAL:
            return z
        return math.sqrt(max(z * z + 2 * math.log(self.expected_runs_between_false_alarms / USUAL), 1.0))

    def lasting(self, steps: int) -> int:
        """For how many steps a condition has to hold that is written to hold for `steps`."""
        longer = 1 + LONGER * math.log10(self.expected_runs_between_false_alarms / USUAL)
        return max(1, math.ceil(steps * max(longer, 0.25) - 1e-9))

    @classmethod
    def for_run(cls, rows: int) -> "GrowthSettings":
        """Settings for a run of so many rows.

        If the usual baseline would take two thirds of the run, it is a fifth, and needs more growth. Few blocks give a
        less certain noise. So the threshold is higher by 12 parts in the baseline's length. With 12 rows it is 9
        standard deviations, not 4.5. With 200 rows and more all is as usual.
        """
        usual = CusumSettings()
        if rows < 1 or 2 * rows >= 3 * (usual.burn_in + usual.baseline):
            return cls(expected_steps=rows if rows > 0 else None)
        block = max(2, min(usual.block, rows // 50))
        baseline = max(12, rows // 5) // block * block
        short = CusumSettings(
            burn_in=min(usual.burn_in, max(3, rows // 12)),
            baseline=baseline,
            block=block,
            threshold=few_values(usual.threshold, baseline),
        )
        return cls(short, expected_steps=rows)

    @property
    def short_run(self) -> bool:
        """Whether the run is known to be so short that signals look less far back than they are written to."""
        return self.expected_steps is not None and self.expected_steps < SHORT_RUN


class GrowthDetector(Saved):
    """Growth of one series, by two detectors of which one decides.

    That is the short one until the run is long, by its expected or actual steps. The long one must also have a baseline
    that can show growth. Growth that holds is never handed over: it ends first.

    With the values of `earlier` runs, one sequence a run, growth beyond theirs also counts, from the first step on.
    """

    kept: ClassVar[tuple[str, ...]] = ("_short", "_long", "_steps", "handed_over")

    def __init__(
        self,
        settings: GrowthSettings | None = None,
        scale: Scale = "log",
        direction: Direction = "rising",
        matters: float = 0.0,
        disjoint: bool = False,
        *,
        earlier: Sequence[Sequence[float]] = (),
    ) -> None:
        self.settings = settings or GrowthSettings()
        self._short = BlockCusum(self.settings.short, scale, direction, matters, disjoint)
        self._long = BlockEsr(self.settings.long, scale, direction, matters, disjoint)
        self._known = self._new_known() if earlier else None
        if self._known:
            self._known.know(earlier)
        self.step: int | None = None
        """The step of the last value."""
        self._steps = 0
        """Valid steps ever, also those before `rebaseline`: a long run remains one."""
        self.handed_over = False

    def update(self, step: int, x: float, error: float | None = None, steps: int = 1) -> None:
        """Take the value of the series at `step`; see `BlockDetector.update`.

        The long detector counts values and not steps: what it promises rests on the number of its blocks.
        """
        self.step = step
        self._steps += 1
        self._long.update(step, x, error)
        if self._known and self._known.ready:
            self._known.update(step, x, error)
        if not self.handed_over:
            self._short.update(step, x, error, steps)
            is_long = max(self._steps, self.settings.expected_steps or 0) > LONG_RUN
            self.handed_over = is_long and self._long.holds is not None and not self._short.holds

    def takes_error(self, steps: int) -> bool:
        """Whether the error of the next value counts, which covers `steps`: while a baseline is being learnt."""
        burn_in = min(self.settings.short.burn_in, self.settings.long.burn_in)
        return not self.decides.ready and self._short.seen + steps > burn_in

    def rebaseline(self) -> None:
        """Start over with the baselines, without a burn-in; what earlier runs kept to is normal no more."""
        self._short.rebaseline()
        self._long.rebaseline()
        if self._known:
            self._known.rebaseline()
        self.handed_over = False

    @property
    def decides(self) -> BlockCusum | BlockEsr:
        """The detector whose answer counts now."""
        own = self._long if self.handed_over else self._short
        known = self._known if self._known and self._known.ready else None
        return known if known and not own.holds and (known.holds or own.holds is None) else own

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"known": self._known and self._known.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, bit for bit; the run may be expected to be longer or shorter than then."""
        super().load_state_dict(state)
        if state["known"]:
            self._known = self._known or self._new_known()
            self._known.load_state_dict(state["known"])

    def _new_known(self) -> KnownCusum:
        short = self._short
        return KnownCusum(short.settings, short.scale, short.direction, short.matters, short.disjoint)
