"""The level of a series against its first one."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.detect.levels import SHORTEST
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Verb
from tracker_diag.rules.signals.over_the_run import OverTheRun

MOSTLY = 0.9
"""Part of a run's rows after which the signal decides that a series has never risen."""
UNKNOWN_LENGTH = 1112
"""The assumed rows of a run of unknown length."""
LEVELS = 12
"""Rows that a series needs before it can count as never risen: four levels of three rows each."""


@dataclass(config=CLOSED, kw_only=True)
class Gain(OverTheRun):
    """The series has risen by more than its noise explains, and keeps most of that: it thrives.

    With `never` it holds if the series has never risen. See detect/course.py.
    """

    verbs: ClassVar[Mapping[str, Verb]] = {
        "thrives": Verb(required=False),
        "never_rises": Verb({"never": True}, required=False),
        "surely_thrives": Verb({"sure": True}, required=False),
    }  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = ("_risen", "_judged", "_lapsed")

    kind: Literal["gain"] = "gain"
    never: bool = False
    """Hold if nothing has been gained. Unknown before 90 % of the run's expected rows, or 1,000 rows."""
    sure: bool = False
    """Hold only if the levels are clear now. Ranks alone, or earlier rows, are not enough. With too few rows, it is no:
    a rule that asks for it under `unless` must see a run with few evaluations too."""
    else_no: bool = False
    """Answer no, and not unknown, while there are too few rows. Useful if a rule has other ways to hold."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._too_early = False if self.else_no or self.sure else None
        if self.never:
            self._enough = int(MOSTLY * (at.settings.expected_steps or UNKNOWN_LENGTH))
            self._needed = LEVELS
        self._risen, self._judged = 0, 0
        """Rows at which it had risen, and all rows with an answer."""
        self._lapsed = SHORTEST
        """Rows since it last thrived. After as many as a level has, it no longer thrives."""

    def _count(self) -> None:
        if self.never or self.sure or (gain := self._course.gain()) is None:
            return
        self._judged += 1
        self._risen += gain.rose
        # If most rows show a rise, it counts, even if noise hides it now.
        thrives = gain.keeps and (gain.rose or 2 * self._risen > self._judged)
        self._lapsed = 0 if thrives else self._lapsed + 1

    def _decide(self) -> bool | None:
        if self._course.rows < self._needed or self._rows < self._enough:
            return self._too_early
        if not self.never and not self.sure:
            return self._lapsed < SHORTEST if self._judged else self._too_early
        gain = self._course.gain()
        if gain is None:
            return self._too_early
        if self.sure:
            return gain.firmly and self._course.rose_surely()
        # What has never risen by 90 % of the run may rise yet. A fall is no rise.
        has_not = self.holds or self._course.never_rose() or self._course.ends_as_it_began()
        return has_not and not (self._course.rose_after_all() or self._course.rose_surely())

    def _decided_reading(self) -> Reading:
        gain = self._course.gain()
        if gain is None:
            return self._series.unknown()
        # What has never risen differs from row to row by chance alone, so wide levels tell most.
        first, now = self._course.quarters() if self.never else (gain.first, gain.now)
        return self._series.reading(self.holds, self._in_unit(now), self._in_unit(first))
