"""MLflow: metrics, tables, pictures, tags and a chart view, in the run that exists.

Everything is written by one thread of our own, so that a slow server never holds up training.
"""

import json
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from tracker_diag.backends.base import Backend, alert_text, alerts, identity
from tracker_diag.backends.mlflow_view import VIEW_TAG, chart_view
from tracker_diag.backends.writer import Writer
from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.report.tables import describe, events_table
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary, first_break

CLOSE_WITHIN = 60.0
"""Seconds that the end of a run waits for a slow server."""

FLUSH_AFTER, FLUSH_AT = 2.0, 900
"""Seconds and metrics after which waiting metrics are handed to the writer; a server takes 1,000 at once."""

NOTE_TAG = "mlflow.note.content"
NOTE_START, NOTE_END = "<!-- tracker_diag -->", "<!-- /tracker_diag -->"


class MlflowBackend(Backend):
    """Writes into the run `run_id` through `client`, and never ends it.

    Args:
        client: an `mlflow.MlflowClient`.
        image_every: observed steps between two pictures of the distribution; each takes about 0.1 s to draw,
            off the training thread.
    """

    name = "mlflow"

    def __init__(self, client: Any, run_id: str, *, image_every: int = 20) -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        require("matplotlib", "mlflow")
        self._client, self._run_id = client, run_id
        self._image_every = image_every
        self._findings: dict[tuple[str, str | None, str, int], Finding] = {}
        self._told: set[tuple[str, str | None, str, int]] = set()
        self._since_image, self._last_image = 0, -1
        self._pictures: tuple[int, dict[str, list[Histogram]]] = (0, {})
        self._experiment = client.get_run(run_id).info.experiment_id  # a run that does not exist is told now
        self._writer = Writer("tracker_diag-mlflow")
        self._waiting: list[Any] = []
        self._flushed = 0.0

    def log(self, step: int, records: Sequence[Record]) -> None:
        now = time.time()
        self._waiting += [
            self._mlflow.entities.Metric(record.name, record.value, int(now * 1000), step)
            for record in records
            if isinstance(record, Scalar)
        ]
        if now - self._flushed >= FLUSH_AFTER or len(self._waiting) >= FLUSH_AT:
            self._flush()
        pictures: dict[str, list[Histogram]] = {}
        for record in records:
            if isinstance(record, Histogram):
                pictures.setdefault(record.name.split("/")[1], []).append(record)
        if pictures:
            self._pictures = (step, pictures)
            if self._since_image % self._image_every == 0:
                self._last_image = step
                self._writer.put(lambda: self._draw(step, pictures), droppable=True)
            self._since_image += 1

    def finding(self, step: int, finding: Finding) -> None:
        if finding.state == "pending":
            return
        new = alerts(finding) and identity(finding) not in self._told
        self._findings[identity(finding)] = finding
        tags = _tags(self._findings.values())
        self._flush()
        self._writer.put(lambda: self._set_tags(tags))
        if new:
            self._told.add(identity(finding))
            title, text = alert_text(finding)
            note = f"**{finding.rule.severity.upper()} at step {step}: {title}**\n\n{text}"
            self._writer.put(lambda: self._describe(note))

    def event(self, step: int, event: str) -> None:
        self._writer.put(lambda: self._write_table(events_table([(step, event)])))  # a table that is there grows

    def _write_table(self, table: Table) -> None:
        columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
        self._client.log_table(self._run_id, columns, f"{table.name}.json")

    def _flush(self) -> None:
        """Hand over what waits in one call: a database takes twenty steps at the price of one."""
        metrics, self._waiting = self._waiting, []
        self._flushed = time.time()
        if metrics:
            self._writer.put(lambda: self._client.log_batch(self._run_id, metrics=metrics), droppable=True)

    def errors(self) -> Sequence[Exception]:
        return self._writer.errors()

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        from tracker_diag.report.figures import data_uri, tail_figure
        from tracker_diag.report.html import render_html

        step, pictures = self._pictures

        def report() -> None:
            figures = {pair: data_uri(tail_figure(shown, f"{pair} pair")) for pair, shown in pictures.items()}
            html = render_html(summary, tables, figures)
            self._client.log_text(self._run_id, html, "diag/report.html")

        self._flush()
        tags, found = _tags(summary.findings), json.dumps(summary.to_json(), indent=1)
        self._writer.put(lambda: self._set_tags(tags))
        self._writer.put(lambda: self._client.log_text(self._run_id, found, "diag/findings.json"))
        self._writer.put(lambda: self._describe(_note(summary)))
        for table in tables:
            self._writer.put(partial(self._write_table, table))
        if pictures and step != self._last_image:
            self._writer.put(lambda: self._draw(step, pictures))
        self._writer.put(report)
        self._writer.close(CLOSE_WITHIN)

    def _draw(self, step: int, pictures: dict[str, list[Histogram]]) -> None:
        from tracker_diag.report.figures import pixels, tail_figure

        for pair, shown in pictures.items():
            image = pixels(tail_figure(shown, f"{pair} pair, step {step}"))
            self._client.log_image(self._run_id, image, key=f"{PREFIX}{pair}/tail", step=step)
        self._client.set_experiment_tag(self._experiment, VIEW_TAG, chart_view(list(pictures), step))

    def _set_tags(self, tags: dict[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_tag(self._run_id, key, value)

    def _describe(self, text: str) -> None:
        """Put `text` into the run's description, beside what stands there already."""
        present = self._client.get_run(self._run_id).data.tags.get(NOTE_TAG, "")
        before, _, rest = present.partition(NOTE_START)
        _, _, after = rest.partition(NOTE_END)
        ours = f"{NOTE_START}\n\n{text}\n\n{NOTE_END}"
        self._client.set_tag(self._run_id, NOTE_TAG, before + ours + after)


def _tags(findings: Collection[Finding]) -> dict[str, str]:
    firing = [finding for finding in findings if alerts(finding)]
    first = first_break(findings)
    severities = {finding.rule.severity for finding in firing}
    return {
        "diag.alert.state": "error" if "error" in severities else "warn" if "warn" in severities else "ok",
        "diag.alert.rules": ", ".join(sorted({finding.rule.id for finding in firing})),
        "diag.first_break": f"{first.rule.id} on {first.slice} at step {first.onset}" if first else "",
    }


def _note(summary: Summary) -> str:
    first = summary.first_break
    if first is None:
        return (
            f"**No rule fired at warn or above** in {summary.steps} steps. Blind: {', '.join(summary.blind) or 'none'}."
        )
    evidence = "\n".join(f"- {describe(reading)}" for reading in first.evidence)
    remedy = "\n".join(f"1. {text}" for text in first.rule.remedy)
    return (
        f"**Broke first: {first.rule.title}, on {first.slice}, from step {first.onset}** "
        f"({first.rule.id}, fired at step {first.fired})\n\n{first.summary}.\n\n{evidence}\n\n"
        f"What to do:\n\n{remedy}\n\nThe whole report: Artifacts, diag/report.html."
    )
