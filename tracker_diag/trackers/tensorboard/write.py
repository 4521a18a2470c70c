"""TensorBoard: scalars, histograms, tables as text, and charts that hold both slices, in event files of our own.

They lie in a folder inside the writer's, which TensorBoard shows as runs beside yours. Not in the writer's own:
without its fast data server TensorBoard follows the latest file of a folder alone, and your curves would stop.
"""

import os
import shlex
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT, PAIRS, StatKey
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.console import near
from tracker_diag.report.markdown import findings_text, markdown
from tracker_diag.report.picture import Pixels, drawn, picture, png_of
from tracker_diag.report.tables import TIMELINE, brief, events_table, findings_table
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.panels import PLOTS
from tracker_diag.trackers.tensorboard import listen
from tracker_diag.trackers.tracker import (
    RECORDS,
    Address,
    End,
    Entry,
    Event,
    Listener,
    Off,
    Standing,
    Tracker,
)

CHARTS = {plot.statistic.name: plot.title for plot in PLOTS if plot.section != "Shape"}
"""Statistics that stand once more as `diag/<pair>/<stat>`, in a run for each slice: one chart, a colour a slice."""

_numbers = count()


class TensorBoardTracker(Tracker):
    """Writes into `folder`/diag, for the writer that logs into `folder`; the writer itself is left alone."""

    name = "tensorboard"
    takes = (*RECORDS, Standing, Event, End)

    def __init__(self, folder: str | Path, writer: Any = None) -> None:
        self._folder, self._writer = str(folder), writer
        place = os.path.join(self._folder, PREFIX.rstrip("/"))  # noqa: PTH118  # it may be a bucket's address
        self._main = EventFile(place)
        self._slices: dict[str, EventFile] = {
            name: EventFile(os.path.join(place, name))  # noqa: PTH118
            for name in CONTEXT
        }
        self._pairs: set[str] = set()
        self._events: list[tuple[int, str]] = []
        self._step, self._at = 0, time.time()

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        """For a `SummaryWriter`: that of torch, of tensorboardX, and what is made of them, are known by their name."""
        if isinstance(target, Address):
            return cls(target["folder"])
        if not any(kind.__name__ == "SummaryWriter" for kind in type(target).__mro__):
            return None
        folder = getattr(target, "log_dir", None) or getattr(target, "logdir", None)
        return cls(folder, target) if folder else None

    def listen(self, listener: Listener | None) -> Off:
        if listener is None or self._writer is None:
            return super().listen(None)
        return listen.listen(self._writer, listener)

    @property
    def address(self) -> Mapping[str, str]:
        folder = self._folder if "://" in self._folder else str(Path(self._folder).absolute())
        return {
            "run": f"{Path(folder).name}-{crc32(os.fsencode(folder)):08x}",
            "folder": folder,
            "source": folder,
        }  # one folder, one name

    @property
    def key(self) -> tuple[str, object]:
        return self.name, id(self if self._writer is None else self._writer)

    @property
    def page(self) -> str:
        return f"tensorboard --logdir {shlex.quote(self.source)}"

    @property
    def source(self) -> str:
        return self._folder if "://" in self._folder else near(self._folder)

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        self._step, self._at = step, at
        self._write_records(step, [entry for entry in entries if isinstance(entry, RECORDS)], at)
        for entry in entries:
            if isinstance(entry, Standing):
                self._put([_summary(findings_table(entry.findings))])
            elif isinstance(entry, Event):
                self._events.append((step, entry.text))
                self._put([_summary(events_table(self._events))])
            elif isinstance(entry, End):
                everything = [*entry.tables, findings_table(entry.summary.findings)]
                self._put([_summary(table) for table in everything if table.rows])
                self._put([*_timeline(entry.summary)])

    def _write_records(self, step: int, records: Sequence[Record], at: float) -> None:
        charts: dict[str, list[Any]] = {name: [] for name in CONTEXT}
        pairs: set[str] = set()
        for record in records:
            key = StatKey.parse(record.name.removeprefix(PREFIX)) if isinstance(record, Scalar) else None
            if isinstance(record, Scalar) and key and key.slice in charts and key.stat in CHARTS:
                charts[key.slice].append(scalar(f"{PREFIX}{key.pair}/{key.stat}", record.value))
                pairs.add(key.pair)
        if not pairs <= self._pairs:
            self._pairs |= pairs
            self._put([layout([pair for pair in PAIRS if pair in self._pairs])])
        self._put([_summary(record) for record in records if not isinstance(record, Drawing)])
        for name, values in charts.items():
            self._slices[name].put(step, at, values)
        for record in records:
            if isinstance(record, Drawing):
                self._put([_image(drawn(record))])

    def flush(self, *, last: bool = False) -> bool:
        for file in (self._main, *self._slices.values()):
            file.flush()
        return True

    def _put(self, values: Sequence[Any]) -> None:
        self._main.put(self._step, self._at, values)


class EventFile:
    """An event file in `folder`, begun with the first event, and begun anew when it cannot be written to.

    It starts with a mark that a run begins at its first step, so that after a resume TensorBoard leaves out what was
    written of later steps before.
    """

    def __init__(self, folder: str) -> None:
        self._files: Any = require("tensorboard.compat", "tensorboard").tf.io.gfile
        self._folder = folder
        self._files.makedirs(folder)  # what cannot be written to is told now
        self._waiting: list[Any] = []
        self._file: Any = None

    def put(self, step: int, at: float, values: Sequence[Any]) -> None:
        """Have summaries of `step` written with the next `flush`."""
        if values:
            summary = _pb("summary").Summary(value=values)
            self._waiting.append(_pb("event").Event(wall_time=at, step=step, summary=summary))

    def flush(self) -> None:
        """Write what waits, to the disk."""
        if not self._waiting:
            return
        try:
            if self._file is None:
                self._file = self._begin(self._waiting[0])
            for event in self._waiting:
                self._file.write(event.SerializeToString())
            self._file.flush()
        except Exception:
            self._file = None  # half a record may stand at its end: what waits goes into a new one
            raise
        self._waiting.clear()

    def _begin(self, first: Any) -> Any:
        from tensorboard.summary.writer.record_writer import RecordWriter

        now, host = time.time(), socket.gethostname()
        name = f"events.out.tfevents.{int(now):010d}.{host}.{os.getpid()}.{next(_numbers):06d}.tracker_diag"
        self._files.makedirs(self._folder)
        file = RecordWriter(self._files.GFile(os.path.join(self._folder, name), "wb"))  # noqa: PTH118
        pb = _pb("event")
        started = pb.SessionLog(status=pb.SessionLog.START)
        for event in (
            pb.Event(wall_time=now, file_version="brain.Event:2"),
            pb.Event(wall_time=first.wall_time, step=first.step, session_log=started),
        ):
            file.write(event.SerializeToString())
        return file


def _pb(name: str) -> Any:
    """TensorBoard's message types of one kind."""
    return require(f"tensorboard.compat.proto.{name}_pb2", "tensorboard")


def _summary(record: Scalar | Histogram | Table) -> Any:
    if isinstance(record, Scalar):
        return scalar(record.name, record.value)
    if isinstance(record, Histogram):
        return histogram(record)
    content = findings_text(record) if record.name == f"{PREFIX}findings" else markdown(brief(record))
    return _string(record.name, content.encode(), "text")


def _timeline(summary: Summary) -> Generator[Any]:
    """The picture of what was found, if there is anything to point at."""
    require("matplotlib", "tensorboard")
    shown = picture(summary)
    if shown is not None:
        yield _image(drawn(shown))


def _image(image: Pixels) -> Any:
    height, width, _ = image.shape
    values = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": png_of(image)}
    return _pb("summary").Summary.Value(tag=TIMELINE, image=_pb("summary").Summary.Image(**values))


def scalar(tag: str, value: float) -> Any:
    """A summary that holds one number."""
    return _pb("summary").Summary.Value(tag=tag, simple_value=value)


def histogram(record: Histogram) -> Any:
    """A summary with the counts as they are; sums take each token at the middle of its bin."""
    pb = _pb("summary")
    counts, edges = record.counts, record.edges
    middle, filled = (edges[:-1] + edges[1:]) / 2, np.flatnonzero(counts)
    histo = pb.HistogramProto(
        min=edges[filled[0]] if len(filled) else 0.0,
        max=edges[filled[-1] + 1] if len(filled) else 0.0,
        num=counts.sum(),
        sum=counts @ middle,
        sum_squares=counts @ middle**2,
        bucket_limit=edges[1:],
        bucket=counts,
    )
    return pb.Summary.Value(tag=record.name, histo=histo)


def layout(pairs: Sequence[str]) -> Any:
    """What the page of custom scalars shows: a section for each pair, with the charts that hold both slices."""
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    pb: Any = layout_pb2

    def chart(pair: str, stat: str) -> Any:
        lines = pb.MultilineChartContent(tag=[f"^{PREFIX}{pair}/{stat}$"])
        return pb.Chart(title=CHARTS[stat], multiline=lines)

    sections = [pb.Category(title=f"{PREFIX}{pair}", chart=[chart(pair, stat) for stat in CHARTS]) for pair in pairs]
    return _string(metadata.CONFIG_SUMMARY_TAG, pb.Layout(category=sections).SerializeToString(), metadata.PLUGIN_NAME)


def _string(tag: str, content: bytes, plugin: str) -> Any:
    """A summary that holds one string, for the page of `plugin`."""
    pb = _pb("summary")
    plugin_data = pb.SummaryMetadata.PluginData(plugin_name=plugin)
    about = pb.SummaryMetadata(plugin_data=plugin_data, data_class=pb.DATA_CLASS_TENSOR)
    tensor = _pb("tensor").TensorProto(dtype=_pb("types").DT_STRING, string_val=[content])
    return pb.Summary.Value(tag=tag, metadata=about, tensor=tensor)
