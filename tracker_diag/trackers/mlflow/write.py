"""MLflow: metrics, tables, pictures, tags and a chart view, in the run that exists."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tracker_diag.errors import DiagError, require, require_installed
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import SAMPLES, Cell, Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.console import near
from tracker_diag.report.curves import PAIRS_IN_WORDS
from tracker_diag.report.picture import drawn, drawn_tail, ready
from tracker_diag.report.tables import CHECKPOINTS, events_table
from tracker_diag.report.tokens import WORST
from tracker_diag.scrub import without_password
from tracker_diag.trackers.mlflow import listen
from tracker_diag.trackers.mlflow.answers import AGAINST_IT, REFUSED, judged, status
from tracker_diag.trackers.mlflow.artifacts import Artifacts, HalfWritten, picture_file, table_file
from tracker_diag.trackers.mlflow.read import list_mlflow, read_mlflow, split
from tracker_diag.trackers.mlflow.tags import described, tags_of, with_links
from tracker_diag.trackers.mlflow.view import RULE, VIEW_TAG, chart_view, keys_in, shown_of
from tracker_diag.trackers.tracker import (
    RECORDS,
    Address,
    Description,
    End,
    Entry,
    Event,
    File,
    Listener,
    Name,
    Off,
    Refused,
    Standing,
    Tracker,
    Unavailable,
    is_a,
)

SQLITE = "sqlite:///"

BATCH = 1000
"""Metrics that a server takes at once."""

STATES = (RULE, f"{PREFIX}health/")  # beginnings of keys that say how something is, at each step again

FIRST = ("/post_tool/", "/p95", "/policy/")

NOTE_TAG = "mlflow.note.content"

WHOLE = (WORST, CHECKPOINTS)
"""Tables that are complete each time that they come; to the others rows are added."""

MOST = 20 * BATCH
"""Metrics in memory, some hundred steps, beyond which no more are taken in while the server is down."""

LOCAL = ("sqlite:", "file:")  # beginnings of addresses that no credentials are sent to

UNKNOWN = ("RESOURCE_DOES_NOT_EXIST", REFUSED)
"""Error codes of an id that is no run's. Servers that are being redeployed answer 404 too, with other codes."""

TRIES = 8
"""If a store of artifacts answers 4xx so many times in a row, it does not want the file."""


class MlflowTracker(Tracker):
    """Writes into the run `run_id` through `client`, and never ends it.

    Each request that writes is repeated on its own, and twice does no harm. A metric with the same time in milliseconds
    is one row in MLflow. A file has the same name again. Artifacts come last. So if their store is down, metrics and
    tags do not wait.

    Args:
        client: an `mlflow.MlflowClient`.
        experiment: the id of the run's experiment, where it is known; else MLflow is asked.
    """

    name = "mlflow"
    takes = (*RECORDS, Standing, Event, Description, File, End)
    library = "mlflow"
    pace = 5.0
    read = staticmethod(read_mlflow)
    runs = staticmethod(list_mlflow)

    def __init__(self, client: Any, run_id: str, *, experiment: str = "") -> None:
        self._mlflow: Any = require("mlflow", "mlflow")
        require_installed("matplotlib", "mlflow")
        ready()
        self._client, self.run_id = client, run_id
        self._artifacts = Artifacts(client, run_id)
        self._known_experiment = experiment or self._asked()
        self._metrics: list[Any] = []
        self._kept: dict[str, Any] = {}
        """The last value of each state; in `_staying`, if it repeats the one before and waits for the batch."""
        self._staying: dict[str, Any] = {}
        self._tags: dict[str, str] = {}  # the run's tags with their final values; of `NOTE_TAG`, our part
        self._files: dict[str, Callable[[], bytes]] = {}  # what waits, by path: of several files with one path the last
        self._pictures: dict[str, Callable[[], bytes]] = {}
        """The same, drawn when they are sent, and sent after the files, as that takes long."""
        self._after: dict[str, Callable[[], None]] = {}
        """What waits until the files are there: the run's list of tables, and the view."""
        self._tables: dict[str, Table] = {}  # the last one that came for each path; at the end it comes once more
        self._new_rows: dict[str, list[tuple[Cell, ...]]] = {}  # of tables that grow, by path
        self._sending: dict[str, list[Any]] = {}
        """All rows of a table that is on its way: a try that failed may have been done all the same."""
        self._tails: dict[str, Callable[[], bytes]] = {}
        """Pictures of the last distributions; they are sent at an alert and at the end."""
        self._charted: set[str] = set()  # ratio pairs and rules that the view was made for
        self._tries = 0  # times in a row that something was answered by 4xx

    @classmethod
    def find(cls, target: Any = None, *, run_id: str | None = None) -> Tracker | None:
        """For the `mlflow` module, that is for its active run, for an `ActiveRun`, or for a client with `run_id`.

        Raises:
            DiagError: no run is active, or a client came without `run_id`.
        """
        if isinstance(target, Address):
            return cls._reopened(target)
        if isinstance(target, Name):
            run, uri = split(target)
            return cls(require("mlflow", "mlflow").MlflowClient(uri or None), run)
        mlflow: Any = sys.modules.get("mlflow")
        if is_a(target, "mlflow", "MlflowClient"):
            if run_id is None:
                raise DiagError("run_id: nothing given, expected the id of the run that the client logs to")
            return cls(target, run_id)
        active = target if is_a(target, "mlflow", "ActiveRun") else None
        if target is None or target is mlflow:
            active = mlflow.active_run() if hasattr(mlflow, "active_run") else None
            if active is None and target is not None:
                raise DiagError("mlflow: no active run, expected one; call mlflow.start_run() before wrap(mlflow)")
        if active is None:
            return None
        return cls(mlflow.MlflowClient(), active.info.run_id, experiment=active.info.experiment_id)

    @classmethod
    def _reopened(cls, address: Address) -> Tracker:
        import mlflow

        uri, named = address["uri"], os.environ.get("MLFLOW_TRACKING_URI", "")
        if without_password(named) == uri:
            uri = named
        elif "://" in uri and not uri.startswith(LOCAL):  # the writer of the journal must not choose who gets a token
            raise DiagError(
                f"the journal names {uri}, and MLFLOW_TRACKING_URI does not; to send it there, with the credentials "
                f"that you have for MLflow: tracker-diag flush --to {uri}"
            )
        return cls(mlflow.MlflowClient(uri), address["run"])

    @classmethod
    def watch(cls, begun: Callable[[Tracker], None]) -> Off:
        return listen.EARS.watch(lambda client, run_id: begun(cls(client, run_id)))

    def listen(self, listener: Listener | None) -> Off:
        if listener is None:
            return super().listen(None)
        return listen.EARS.listen(self.run_id, listener)

    @property
    def config(self) -> Mapping[str, object]:
        return dict(self._client.get_run(self.run_id).data.params)

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self.run_id, "uri": without_password(str(self._client.tracking_uri))}

    def _asked(self) -> str:
        """The run's experiment; empty where the server is away or refuses to answer.

        Raises:
            DiagError: MLflow says that there is no such run.
        """
        try:
            return str(self._client.get_run(self.run_id).info.experiment_id)
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code in UNKNOWN:
                at = without_password(str(self._client.tracking_uri))
                raise DiagError(f"run_id: {self.run_id!r} given, expected a run at {at}; {error.message}") from error
            return ""

    @property
    def _experiment(self) -> str:
        self._known_experiment = self._known_experiment or self._asked()
        return self._known_experiment

    @property
    def page(self) -> str:
        if self._uri.startswith("http"):
            return f"{self._uri.rstrip('/')}/#/experiments/{self._experiment}/runs/{self.run_id}"
        return f"mlflow ui --backend-store-uri {self._uri}  # run {self.run_id}"

    @property
    def source(self) -> str:
        return f"mlflow:{self.run_id}@{self._uri}"

    @property
    def _uri(self) -> str:
        """The store, as it may be shown to a person."""
        uri = without_password(str(self._client.tracking_uri))
        return SQLITE + near(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else uri

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        self._write_records(step, [entry for entry in entries if isinstance(entry, RECORDS)], at)
        for entry in entries:
            if isinstance(entry, Standing):
                self._tags |= tags_of(entry.findings)
            elif isinstance(entry, Event):
                self._put_table(events_table([(step, entry.text)]))
            elif isinstance(entry, Description):
                self._tags[NOTE_TAG] = with_links(entry, self._experiment, self.run_id)
            elif isinstance(entry, File):
                self._files[f"{PREFIX}{entry.name}"] = entry.text.encode
            elif isinstance(entry, End):
                self._end(entry)
        self.full = len(self._metrics) >= MOST

    def _write_records(self, step: int, records: Sequence[Record], at: float) -> None:
        tails: dict[str, list[Histogram]] = {}
        # The tail that a reader looks for comes first: MLflow lists metrics as they first came.
        for record in sorted(records, key=lambda record: tuple(part not in record.name for part in FIRST)):
            if isinstance(record, Scalar):
                self._put_metric(self._mlflow.entities.Metric(record.name, record.value, int(at * 1000), step))
            elif isinstance(record, Table):
                self._put_table(record)
            elif isinstance(record, Histogram):
                tails.setdefault(record.pair, []).append(record)
        for pair, histograms in tails.items():
            kind, what = ("reward", "Reward of sequences") if pair == SAMPLES else ("tail", PAIRS_IN_WORDS[pair])
            title = f"{what}, step {step}"
            self._tails[f"{PREFIX}{pair}/{kind}.png"] = partial(picture_file, drawn_tail, histograms, title)
        for record in records:
            if isinstance(record, Drawing):
                self._pictures |= {f"{record.name}.png": partial(picture_file, drawn, record), **self._tails}
        charted = {record.name for record in records if record.name.startswith(RULE)} | {*tails}
        if not charted <= self._charted:
            self._charted |= charted
            self._after["view"] = self._show

    def _put_metric(self, metric: Any) -> None:
        """Take a metric in. Of a state that stays, a batch has the first and the last: a chart draws the same line."""
        if metric.key.startswith(STATES):
            kept, self._kept[metric.key] = self._kept.get(metric.key), metric
            if kept and kept.value == metric.value:
                self._staying[metric.key] = metric
                return
            if stayed := self._staying.pop(metric.key, None):
                self._metrics.append(stayed)
        self._metrics.append(metric)

    def _put_table(self, table: Table) -> None:
        path = f"{table.name}.json"
        if table.name in WHOLE:
            self._files[path] = partial(table_file, table.columns, table.rows)
        else:
            self._new_rows.setdefault(path, []).extend(table.rows)
            self._files[path] = partial(self._grown, path, table.columns)
        self._tables[path] = table
        self._after["tables"] = lambda: self._artifacts.list_tables(sorted(self._tables))

    def _grown(self, path: str, columns: Sequence[str]) -> bytes:
        """The rows that the run has in the table, of an earlier process too, and the new ones below them."""
        if path not in self._sending:
            try:
                self._sending[path] = self._artifacts.rows_in(path)
            except HalfWritten as error:
                self.tally.failed(error)
                self._sending[path] = []
        self._sending[path] += self._new_rows.pop(path, [])
        return table_file(columns, self._sending[path])

    def _end(self, end: End) -> None:
        self._tags |= tags_of(end.summary.findings)
        self._files[f"{PREFIX}findings.json"] = json.dumps(end.summary.to_json(), indent=1).encode
        self._files[f"{PREFIX}report.html"] = end.report.encode
        for table in end.tables:
            if self._tables.get(f"{table.name}.json") != table:
                self._put_table(table)
        self._pictures |= self._tails
        self._after["view"] = self._show  # outcomes may have come since it was made

    def flush(self, *, last: bool = False) -> bool:
        late = None
        try:
            self._flush_metrics()
        except Unavailable as error:
            if not status(error):
                raise
            late = error  # what answers may take tags: an alert does not wait for a quota of metrics
        self._send_all(self._tags, self._put_tag)
        if late:
            raise late
        for files in (self._files, self._pictures):
            self._send_all(files, partial(self._put_file, files), tries=TRIES)
        self._send_all(self._after, lambda name: self._after[name](), tries=TRIES)
        return True

    def _flush_metrics(self) -> None:
        self._metrics += self._staying.values()
        self._staying.clear()
        while self._metrics:  # in one call: a database takes twenty steps at the price of one
            batch, refused = self._metrics[:BATCH], []
            try:
                self._log(batch)
            except Refused:
                for metric in batch:
                    try:
                        self._log([metric])
                    except Refused as error:  # noqa: PERF203  # each by itself is the point
                        refused.append(f"{metric.key}: {error}")
            del self._metrics[: len(batch)]
            self.full = False
            self.sent += 1
            if refused:
                raise Refused(f"mlflow: {len(refused)} metrics refused, {refused[0]}")

    def _log(self, metrics: Sequence[Any]) -> None:
        with judged():
            self._client.log_batch(self.run_id, metrics=metrics, synchronous=True)

    def _send_all(self, waiting: dict[str, Any], send: Callable[[str], None], tries: float = math.inf) -> None:
        """Send what waits, one by one; what never goes well, or was refused so many times, is given up."""
        while waiting:
            key = next(iter(waiting))
            try:
                with judged():
                    send(key)
            except Refused:
                del waiting[key]
                raise
            except Unavailable as error:
                self._tries += status(error) in AGAINST_IT
                if self._tries < tries:
                    raise
                del waiting[key]
                self._tries = 0
                raise Refused(f"mlflow: {key} given up after {tries} tries, {error}") from error
            del waiting[key]
            self._tries = 0
            self.sent += 1

    def _put_tag(self, key: str) -> None:
        value = self._tags[key]
        if key == NOTE_TAG:
            value = described(self._client.get_run(self.run_id).data.tags.get(NOTE_TAG, ""), value)
        self._client.set_tag(self.run_id, key, value, synchronous=True)

    def _put_file(self, files: dict[str, Callable[[], bytes]], path: str) -> None:
        content = files[path]()
        files[path] = lambda: content  # it is not drawn again at the next try
        self._artifacts.put(path, content)
        self._sending.pop(path, None)

    def _show(self) -> None:
        """Write the view anew; it keeps the charts of other runs of the experiment."""
        logged = self._client.get_run(self.run_id).data.metrics
        present = self._client.get_experiment(self._experiment).tags.get(VIEW_TAG, "")
        self._client.set_experiment_tag(self._experiment, VIEW_TAG, chart_view(shown_of(logged) | keys_in(present)))
