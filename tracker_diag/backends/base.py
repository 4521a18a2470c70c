"""What a backend may do. A tracker that cannot do one of these inherits the empty method."""

from collections.abc import Mapping, Sequence

from tracker_diag.records import Record, Table
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary


class Backend:
    """A destination. It may raise: the monitor counts and reports that, and training goes on."""

    name = "backend"

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The trainer's own metrics of `step`, for a backend that is not the tracker they went to.

        They may be NaN or infinite.
        """

    def log(self, step: int, records: Sequence[Record]) -> None:
        """The diagnostics of `step`, once a step, in rising order."""

    def finding(self, step: int, finding: Finding) -> None:
        """A finding that began, fired, was resolved, or is explained by another one or no longer so.

        `alerts` says whether a person is to be told; the same finding may come more than once.
        """

    def event(self, step: int, event: str) -> None:
        """Something was done on purpose at `step`, such as taking a new baseline."""

    def errors(self) -> Sequence[Exception]:
        """Failures of work that is done elsewhere, in a thread say, since the last time of asking."""
        return ()

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        """The end: everything that is still underway is to be written. The run itself is not ours to end."""


def alerts(finding: Finding) -> bool:
    """Whether a person is to be told: it fired, at warn or above, and nothing firing explains it."""
    return finding.state == "firing" and finding.rule.severity != "info" and finding.inhibited_by is None


def identity(finding: Finding) -> tuple[str, str | None, str, int]:
    """What makes two states of a finding the same finding."""
    return finding.rule.id, finding.pair, finding.slice, finding.onset


def alert_text(finding: Finding) -> tuple[str, str]:
    """Title, under 64 characters as W&B asks, and text of the alert for `finding`."""
    title = f"{finding.rule.id} {finding.slice}: {finding.rule.title}"
    text = (
        f"{finding.summary}.\n"
        f"{finding.rule.name} ({finding.rule.link}), onset at step {finding.onset}, fired at {finding.fired}.\n"
        f"First: {finding.rule.remedy[0]}"
    )
    return title, text
