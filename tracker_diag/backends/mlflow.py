"""MLflow: metrics, tables, pictures, tags and a chart view, in the run that exists."""

import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tracker_diag.backends.base import Backend, Refused
from tracker_diag.backends.mlflow_view import VIEW_TAG, chart_view
from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.report.tables import describe, events_table
from tracker_diag.rules.alerts import Notice, alerts
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary, first_break

BATCH = 1000
"""Metrics that a server takes at once."""

NOTE_TAG = "mlflow.note.content"
NOTE_START, NOTE_END = "<!-- tracker_diag -->", "<!-- /tracker_diag -->"

TEMPORARY = frozenset({"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"})
"""Error codes of MLflow that say nothing against what was sent."""


class MlflowBackend(Backend):
    """Writes into the run `run_id` through `client`, and never ends it.

    Whatever it writes may be written twice without harm: a metric that stands there already, to the millisecond
    of its time, is one row in MLflow.

    Args:
        client: an `mlflow.MlflowClient`.
        image_every: observed steps between two pictures of the distribution; each takes about 0.1 s to draw.
    """

    name = "mlflow"
    capabilities = frozenset({"scalars", "tables", "images", "panels"})

    def __init__(self, client: Any, run_id: str, *, image_every: int = 20) -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        require("matplotlib", "mlflow")
        self._client, self._run_id = client, run_id
        self._image_every = image_every
        self._since_image, self._last_image = 0, -1
        self._pictures: tuple[int, dict[str, list[Histogram]]] = (0, {})
        self._experiment = client.get_run(run_id).info.experiment_id  # a run that does not exist is told now
        self._metrics: list[Any] = []
        self._tasks: deque[Callable[[], object]] = deque()

    @classmethod
    @contextmanager
    def reopened(cls, address: Mapping[str, str]) -> Generator[Backend]:
        import mlflow

        yield cls(mlflow.MlflowClient(address["uri"]), address["run"])

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self._run_id, "uri": str(self._client.tracking_uri)}

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        self._metrics += [
            self._mlflow.entities.Metric(record.name, record.value, int(at * 1000), step)
            for record in records
            if isinstance(record, Scalar)
        ]
        pictures: dict[str, list[Histogram]] = {}
        for record in records:
            if isinstance(record, Histogram):
                pictures.setdefault(record.name.split("/")[1], []).append(record)
        if pictures:
            self._pictures = (step, pictures)
            if self._since_image % self._image_every == 0:
                self._last_image = step
                self._tasks.append(partial(self._draw, step, pictures))
            self._since_image += 1

    def standing(self, step: int, findings: Sequence[Finding]) -> None:
        self._set_tags(_tags(findings))

    def alert(self, step: int, notice: Notice) -> None:
        if notice.level != "info":
            note = f"**{notice.level.upper()} at step {step}: {notice.title}**\n\n{notice.text}"
            self._tasks.append(partial(self._describe, note))

    def event(self, step: int, event: str) -> None:
        # A table that is there grows.
        self._tasks.append(partial(self._write_table, events_table([(step, event)])))

    def flush(self, *, last: bool = False) -> bool:
        while self._metrics:  # in one call: a database takes twenty steps at the price of one
            now, refused = self._metrics[:BATCH], []
            try:
                self._client.log_batch(self._run_id, metrics=now)
            except Exception as error:
                if self.temporary(error):
                    raise
                refused = self._one_by_one(now)
            del self._metrics[: len(now)]
            if refused:
                raise Refused(f"mlflow: {len(refused)} metrics refused, {refused[0]}")
        while self._tasks:
            try:
                self._tasks[0]()
            except Exception as error:
                if not self.temporary(error):
                    self._tasks.popleft()
                raise
            self._tasks.popleft()
        return True

    def _one_by_one(self, metrics: Sequence[Any]) -> list[str]:
        """Log each metric on its own; those that MLflow refuses, and why."""
        refused = []
        for metric in metrics:
            try:
                self._client.log_batch(self._run_id, metrics=[metric])
            except Exception as error:  # noqa: PERF203  # each on its own is the point
                if self.temporary(error):
                    raise
                refused.append(f"{metric.key}: {error}")
        return refused

    def temporary(self, error: Exception) -> bool:
        code = getattr(error, "error_code", None)
        return code in TEMPORARY if code else super().temporary(error)

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        found = json.dumps(summary.to_json(), indent=1)
        step, pictures = self._pictures
        self._set_tags(_tags(summary.findings))
        self._tasks += [
            partial(self._client.log_text, self._run_id, found, "diag/findings.json"),
            partial(self._describe, _note(summary)),
            *(partial(self._write_table, table) for table in tables),
        ]
        if pictures and step != self._last_image:
            self._tasks.append(partial(self._draw, step, pictures))
        self._tasks.append(partial(self._report, summary, tables, pictures))
        errors: list[Exception] = []
        while self._tasks or self._metrics:
            before = len(self._tasks)
            try:
                self.flush(last=True)
            except Exception as error:  # noqa: BLE001  # one that fails is no reason to leave out the others
                errors.append(error)
                if self._tasks and len(self._tasks) == before:
                    self._tasks.popleft()
        if errors:
            raise errors[0]

    def _report(self, summary: Summary, tables: Sequence[Table], pictures: dict[str, list[Histogram]]) -> None:
        from tracker_diag.report.figures import data_uri, tail_figure
        from tracker_diag.report.html import render_html

        figures = {pair: data_uri(tail_figure(shown, f"{pair} pair")) for pair, shown in pictures.items()}
        self._client.log_text(self._run_id, render_html(summary, tables, figures), "diag/report.html")

    def _write_table(self, table: Table) -> None:
        columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
        self._client.log_table(self._run_id, columns, f"{table.name}.json")

    def _draw(self, step: int, pictures: dict[str, list[Histogram]]) -> None:
        from tracker_diag.report.figures import pixels, tail_figure

        for pair, shown in pictures.items():
            image = pixels(tail_figure(shown, f"{pair} pair, step {step}"))
            self._client.log_image(self._run_id, image, key=f"{PREFIX}{pair}/tail", step=step)
        self._client.set_experiment_tag(self._experiment, VIEW_TAG, chart_view(list(pictures), step))

    def _set_tags(self, tags: dict[str, str]) -> None:
        """Each on its own: what has arrived is not sent again because the next one did not."""
        self._tasks += [partial(self._client.set_tag, self._run_id, key, value) for key, value in tags.items()]

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
