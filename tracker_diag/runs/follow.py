"""Follow: a run that goes on, read anew again and again, of which each row is judged once.

What is found does not depend on when it is looked at: the rows are judged in their order, as a `Monitor` in the run
would, and each when it is whole.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.metrics.aliases import key_map
from tracker_diag.metrics.reasons import not_observed
from tracker_diag.metrics.series import Pair
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.judge import Judge
from tracker_diag.rules.logged import is_ours, statistics
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import RUNTIME, Diagnosis, elapsed
from tracker_diag.trackers.finished import FinishedRun

QUIET = 5.0
"""Seconds without anything new after which the last row is whole: trackers write a step's metrics one after another."""


class Follower:
    """One run, and what was judged of it so far.

    Args:
        rules: what it is held against.
        state: what `state_dict` gave, to go on from there.
        expected_runs_between_false_alarms: the dial, as in `Monitor`; with a `state`, from its last row on.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        state: Mapping[str, Any] | None = None,
        *,
        expected_runs_between_false_alarms: float = USUAL,
    ) -> None:
        self._rules, self._dial = rules, expected_runs_between_false_alarms
        self._judge: Judge | None = None
        self._state = state
        self._begin()

    def _begin(self) -> None:
        self._judge = None
        self._keys = key_map(())
        self._pairs: set[Pair] = set()
        self._rows: int | None = None
        """How many the run was known to have, where it was over when it was first seen."""
        self._first: tuple[int, dict[str, float]] | None = None
        self._last: tuple[int, dict[str, float]] | None = None
        self._counted = 0
        """Values up to the last step that was judged."""
        self.judged = 0
        """Rows."""
        self.late = 0
        """Values that came when a later step had been judged; they are left out, as in the run itself."""
        self.own = False
        """Whether the diagnostics watch this run from inside, and tell its alerts themselves."""
        self.waits = False
        """Whether there is a last row that may not be whole yet."""

    @property
    def step(self) -> int | None:
        """The last that was judged."""
        return self._last[0] if self._last else None

    def take(
        self,
        run: FinishedRun,
        *,
        over: bool = False,
        whole: bool = True,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Notice]:
        """Judge what is new in `run`; what is to be told of it.

        A run that has lost rows, or begins otherwise than it did, was replaced: it is judged from its start.

        Args:
            over: the run has ended.
            whole: nothing more is expected to come of its last row.
            stop: asked after each row whether to leave the rest for another time.
        """
        if self._first and self._replaced(run):
            self._begin()
        judge = self._judge or self._made(run, over)
        judge.config, judge.quantum = run.config, run.quantum
        rows = {step: row for step, row in run.rows.items() if self._last is None or step >= self._last[0]}
        if not whole and not over:
            rows = dict(list(rows.items())[:-1]) if rows else rows
        self.waits = bool(run.rows) and not whole and not over
        self._count_late(run)
        notices: list[Notice] = []
        for step, given in rows.items():
            row = {**given, **self._last[1]} if self._last and step == self._last[0] else given
            if self._last and step == self._last[0] and row.keys() == self._last[1].keys():
                continue
            notices += self._row(judge, step, row)
            if stop():
                self.waits = True
                break
        self._counted = self._values_up_to(run)
        return notices

    def _made(self, run: FinishedRun, over: bool) -> Judge:
        """The judge of this run, as it was left if there is a state that can be used."""
        state, self._state = self._state, None
        if state is not None:
            try:
                return self._resumed(run, state)
            except (LookupError, TypeError, ValueError, AttributeError):  # of another version, or damaged: judge anew
                self._begin()
        self._rows = len(run.rows) if over else None
        self._judge = self._new(run)
        return self._judge

    def _new(self, run: FinishedRun) -> Judge:
        settings = GrowthSettings.for_run(self._rows) if self._rows else GrowthSettings()
        settings = settings.dialled(self._dial)
        return Judge(Engine(self._rules, settings, algorithm_of(run.config)), run.config, run.quantum)

    def _resumed(self, run: FinishedRun, state: Mapping[str, Any]) -> Judge:
        self._rows = state["rows"]
        self._keys = key_map(state["keys"])
        self._pairs = set(state["pairs"])
        self._first = _row_of(state["first"])
        self._last = _row_of(state["last"])
        self._counted, self.judged, self.late = state["counted"], state["judged"], state["late"]
        self.own = state["own"]
        if self._first and self._replaced(run):
            raise ValueError("another run stands there now")
        judge = self._new(run)
        judge.load_state_dict(state["judge"], self._observed(judge, *self._last) if self._last else None)
        self._judge = judge
        return judge

    def _row(self, judge: Judge, step: int, row: dict[str, float]) -> list[Notice]:
        again = self._last is not None and step == self._last[0]
        self._keys = self._keys.covering([key for key in row if not is_ours(key)])
        judge.engine = judge.engine.with_algorithm(self._keys.algorithm)
        self._pairs |= {key.pair for key, _ in statistics(row)}
        self.own = self.own or any(map(is_ours, row))
        self.judged += not again
        self._first = self._first or (step, row)
        self._last = (step, row)
        return judge.take(step, row, judge.read(row, self._keys), not_observed(self._pairs) if self._pairs else {})

    def _observed(self, judge: Judge, step: int, row: dict[str, float]) -> Observed:
        """The last row as the rules saw it."""
        absent = not_observed(self._pairs) if self._pairs else {}
        return Observed(step, judge.read(row, self._keys), (), absent, config=judge.config)

    def _replaced(self, run: FinishedRun) -> bool:
        if not self._first or not self._last:
            return False
        step, row = self._first
        now = run.rows.get(step, {})
        same = all(key in now and _same(now[key], value) for key, value in row.items())
        return not same or self._last[0] not in run.rows or self._values_up_to(run) < self._counted

    def _values_up_to(self, run: FinishedRun) -> int:
        last = -math.inf if self._last is None else self._last[0]
        return sum(len(row) for row in dict(takewhile(lambda one: one[0] <= last, run.rows.items())).values())

    def _count_late(self, run: FinishedRun) -> None:
        """Count what has come of steps before the last one since they were judged."""
        if self._last:
            now = self._values_up_to(run)
            joined = len(run.rows[self._last[0]].keys() - self._last[1].keys())
            self.late += max(now - joined - self._counted, 0)

    def diagnosis(self, run: FinishedRun) -> Diagnosis | None:
        """What is known by now of `run`, as it was last read; None before the first row was judged."""
        if self._judge is None or not self._first or not self._last:
            return None
        summary = Summary.of(self._judge.engine, run.source, self.judged, self._first[0], self._last[0])
        rows = {step: row for step, row in run.rows.items() if step <= self._last[0]}
        seconds = run.seconds
        if summary.first_break and not seconds:
            values = {step: self._keys.values(row) for step, row in rows.items()}
            of_steps = {step: row["step_seconds"] for step, row in values.items() if "step_seconds" in row}
            seconds = elapsed(rows, of_steps)
        return Diagnosis(replace(run, seconds=seconds), summary, self._keys, None, {})

    def state_dict(self) -> dict[str, Any] | None:
        """All that a follower in another process needs, in JSON values; None before the first row was judged."""
        if self._judge is None or not self._first or not self._last:
            return None
        return {
            "rows": self._rows,
            "keys": [*self._keys.mapped, *self._keys.unmapped],
            "pairs": sorted(self._pairs),
            "first": [self._first[0], self._first[1]],
            "last": [self._last[0], self._last[1]],
            "counted": self._counted,
            "judged": self.judged,
            "late": self.late,
            "own": self.own,
            "judge": self._judge.state_dict(),
        }


def has_said_its_end(run: FinishedRun) -> bool:
    """Whether it says that it is over, or its last row is the one that the trainers of Hugging Face log at the end."""
    last = next(reversed(run.rows.values()), {})
    return run.ended is not None or any(key in last for key in RUNTIME)


def is_whole(updated: float | None) -> bool:
    """Whether a last row, written at `updated` in seconds since 1970, is as it will stay; not so if nobody knows."""
    return updated is not None and time.time() - updated >= QUIET


def _row_of(kept: Sequence[Any]) -> tuple[int, dict[str, float]]:
    step, row = kept
    return int(step), {str(key): float(value) for key, value in row.items()}


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
