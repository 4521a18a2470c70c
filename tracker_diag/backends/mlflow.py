"""MLflow: metrics, tables, pictures, tags and a chart view, in the run that exists.

Everything is written by one thread of our own, so that a slow server never holds up training.
"""

import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tracker_diag.backends.base import Backend, alert_text, alerts
from tracker_diag.backends.mlflow_view import VIEW_TAG, chart_view
from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.report.tables import describe
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary, first_break

NOTE_TAG = "mlflow.note.content"
NOTE_START, NOTE_END = "<!-- tracker_diag -->", "<!-- /tracker_diag -->"


class MlflowBackend(Backend):
    """Writes into the run `run_id` through `client`, and never ends it.

    Args:
        client: an `mlflow.MlflowClient`.
        image_every: steps between two pictures of the distribution; each takes about 0.1 s to draw,
            off the training thread.
    """

    name = "mlflow"

    def __init__(self, client: Any, run_id: str, *, image_every: int = 20) -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        require("matplotlib", "mlflow")
        self._client, self._run_id = client, run_id
        self._image_every = image_every
        self._seen: dict[tuple[str, str | None, str], Finding] = {}
        self._last_image = -image_every
        self._pictures: tuple[int, dict[str, list[Histogram]]] = (0, {})
        self._underway: list[Future[None]] = []
        self._experiment = client.get_run(run_id).info.experiment_id  # a run that does not exist is told now
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tracker_diag-mlflow")

    def log(self, step: int, records: Sequence[Record]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._mlflow.entities.Metric(record.name, record.value, now, step)
            for record in records
            if isinstance(record, Scalar)
        ]
        self._later(lambda: self._client.log_batch(self._run_id, metrics=metrics))
        pictures: dict[str, list[Histogram]] = {}
        for record in records:
            if isinstance(record, Histogram):
                pictures.setdefault(record.name.split("/")[1], []).append(record)
        if pictures:
            self._pictures = (step, pictures)
            if step - self._last_image >= self._image_every:
                self._last_image = step
                self._later(lambda: self._draw(step, pictures))

    def finding(self, step: int, finding: Finding) -> None:
        self._seen[finding.rule.id, finding.pair, finding.slice] = finding
        tags = _tags(self._seen.values())
        self._later(lambda: self._set_tags(tags))
        if alerts(finding):
            title, text = alert_text(finding)
            note = f"**{finding.rule.severity.upper()} at step {step}: {title}**\n\n{text}"
            self._later(lambda: self._describe(note))

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        from tracker_diag.report.figures import data_uri, tail_figure
        from tracker_diag.report.html import render_html

        def write() -> None:
            step, pictures = self._pictures
            if step > self._last_image:
                self._draw(step, pictures)
            figures = {pair: data_uri(tail_figure(shown, f"{pair} pair")) for pair, shown in pictures.items()}
            html = render_html(summary, tables, figures)
            self._client.log_text(self._run_id, html, "diag/report.html")
            findings = json.dumps(summary.to_json(), indent=1)
            self._client.log_text(self._run_id, findings, "diag/findings.json")
            for table in tables:
                columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
                self._client.log_table(self._run_id, columns, f"{table.name}.json")
            self._describe(_note(summary))

        tags = _tags(summary.findings)
        self._later(lambda: self._set_tags(tags))
        self._later(write)
        self._writer.shutdown(wait=True)
        self._reap()

    def _later(self, call: Callable[[], None]) -> None:
        """Hand `call` to the writer; what an earlier one raised is raised here, where it is counted."""
        self._underway.append(self._writer.submit(call))
        self._reap()

    def _reap(self) -> None:
        done = [future for future in self._underway if future.done()]
        self._underway = [future for future in self._underway if not future.done()]
        errors = [error for future in done if (error := future.exception())]
        if errors:
            raise errors[0]

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
