"""What a live run was like up to now, at bounded size: for the time line and the tails of its report."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tracker_diag.metrics.series import SeriesKey
from tracker_diag.records import Histogram, Record, Scalar
from tracker_diag.report.curves import Curves
from tracker_diag.report.distributions import Distributions
from tracker_diag.rules.triage import Summary


class History:
    """The series, the distributions and the events of a run."""

    def __init__(self) -> None:
        self._curves, self._distributions = Curves(), Distributions()
        self.events: list[tuple[int, str]] = []
        """By step: new baselines, and what guards did or would have done."""

    def add(self, step: int, series: Mapping[SeriesKey, Scalar], records: Iterable[Record]) -> None:
        """Take in what `step` has come to: the series that rules read, and the histograms among its records."""
        self._curves.add(step, series)
        self._distributions.add(step, (one for one in records if isinstance(one, Histogram)))

    def beside(self, summary: Summary) -> Summary:
        """`summary` with what is drawn beside it."""
        curves, snapshots = self._curves.beside(summary), self._distributions.snapshots()
        return replace(summary, curves=curves, distributions=snapshots, events=tuple(self.events))

    def state_dict(self) -> dict[str, Any]:
        """In JSON values; `load_state_dict` goes on from it."""
        events = [list(event) for event in self.events]
        return {
            "curves": self._curves.state_dict(),
            "distributions": self._distributions.state_dict(),
            "events": events,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._curves.load_state_dict(state["curves"])
        self._distributions.load_state_dict(state["distributions"])
        self.events[:] = [(step, event) for step, event in state["events"]]
