"""W&B: scalars, histograms, tables and alerts, in the run that exists.

All goes into the row of the same step as the user's own metrics. A call without a step would commit
the row and make the user's next one vanish; one with an older step would be dropped.
"""

from collections.abc import Sequence
from typing import Any

from tracker_diag.backends.base import Backend, alert_text, alerts, identity
from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Record, Table
from tracker_diag.report.tables import events_table, findings_table
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

STEP = PREFIX + "step"


class WandbBackend(Backend):
    """Writes into `run`, a `wandb.Run` that is underway, and never finishes it."""

    name = "wandb"

    def __init__(self, run: Any) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._run = run
        self._findings: dict[tuple[str, str | None, str, int], Finding] = {}
        self._told: set[tuple[str, str | None, str, int]] = set()
        self._events: list[tuple[int, str]] = []
        # No summary= here: on a glob it would corrupt the summaries of histograms.
        run.define_metric(STEP, hidden=True)
        run.define_metric(PREFIX + "*", step_metric=STEP)

    def log(self, step: int, records: Sequence[Record]) -> None:
        row = {record.name: self._media(record) for record in records}
        self._run.log(row | {STEP: step}, step=step, commit=False)

    def finding(self, step: int, finding: Finding) -> None:
        if finding.state == "pending":
            return
        self._findings[identity(finding)] = finding
        # Rarely, since a table waits for the server; but now, since nobody may close the run through us.
        table = findings_table(tuple(self._findings.values()))
        self._run.log({table.name: self._media(table)}, step=step, commit=False)
        if alerts(finding) and identity(finding) not in self._told:
            self._told.add(identity(finding))
            title, text = alert_text(finding)
            self._run.alert(title, text, level=finding.rule.severity.upper(), wait_duration=1)

    def event(self, step: int, event: str) -> None:
        self._events.append((step, event))
        table = events_table(self._events)
        self._run.log({table.name: self._media(table)}, step=step, commit=False)

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        everything = [*tables, findings_table(summary.findings)]
        self._run.log({table.name: self._media(table) for table in everything}, commit=False)

    def _media(self, record: Record) -> Any:
        if isinstance(record, Histogram):
            return self._wandb.Histogram(np_histogram=(record.counts, record.edges))
        if isinstance(record, Table):
            return self._wandb.Table(columns=list(record.columns), data=[list(row) for row in record.rows])
        return record.value
