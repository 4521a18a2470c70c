"""Judge: the rules held against the rows of a run, one row after another, as while the run goes on."""

import math
from collections.abc import Mapping
from typing import Any

from tracker_diag.metrics.aliases import KeyMap
from tracker_diag.metrics.reasons import Reason
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import Pair, SeriesKey
from tracker_diag.records import Scalar
from tracker_diag.rules.alerts import Alerts, Notice
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.ours import NONFINITE, is_ours, sampled, statistics


class Judge:
    """Feeds `engine`, and says what a person is to be told."""

    def __init__(self, engine: Engine, config: Mapping[str, object], quantum: float = 0.0) -> None:
        self.engine = engine
        self.config = config
        self.quantum = quantum
        self._alerts = Alerts()
        self._tokens = 0.0
        """Of the diagnostics' own count: how many were NaN or infinite so far."""

    def read(self, row: Mapping[str, float], keys: KeyMap) -> dict[SeriesKey, Scalar]:
        """The series that rules read, of one row: statistics of slices, and metrics by their canonical names.

        What was counted of samples stands in for a metric that the trainer has not logged itself, as in the live run.
        """
        metrics = {name: Scalar(name, value, quantum=self.quantum) for name, value in keys.values(row).items()}
        for name, value in sampled(row):
            if name not in keys.names:
                metrics.setdefault(name, Scalar(name, value))
        now: dict[SeriesKey, Scalar] = {**dict(statistics(row)), **metrics}
        return {name: one for name, one in now.items() if math.isfinite(one.value)}

    def take(
        self,
        step: int,
        row: Mapping[str, float],
        series: Mapping[SeriesKey, Scalar],
        absent: Mapping[Pair, Reason],
    ) -> list[Notice]:
        """Take in the `row` of `step`, whose `series` were read; what is to be told of it.

        The same step may come again with more in its row, and no step that lies before the last one.

        Args:
            absent: pairs of which the run has no statistics, and why.
        """
        bad = [key for key, value in row.items() if not math.isfinite(value) and not is_ours(key)]
        if row.get(NONFINITE, self._tokens) > self._tokens:
            self._tokens = row[NONFINITE]
            bad.append(NONFINITE.removeprefix(PREFIX))
        changed = self.engine.evaluate(Observed(step, series, tuple(bad), absent, config=self.config))
        return self._alerts.notices(step, changed, self.engine)

    def state_dict(self) -> dict[str, Any]:
        """All that a judge who goes on with the next row needs, in JSON values."""
        return {"engine": self.engine.state_dict(), "alerts": self._alerts.state_dict(), "tokens": self._tokens}

    def load_state_dict(self, state: Mapping[str, Any], underway: Observed | None = None) -> None:
        """Go on where `state` was taken.

        Args:
            underway: the last step that was taken in, if more of it may come.
        """
        self.engine.load_state_dict(state["engine"], underway)
        self._alerts.load_state_dict(state["alerts"])
        self._tokens = state["tokens"]
