"""TensorBoard: scalars, histograms, tables as text, and charts that hold both slices, in event files of our own.

They are in a folder inside the writer's, which TensorBoard shows as runs next to yours. They are not in the writer's
own folder. Without its fast data server, TensorBoard follows only the latest file of a folder, and your curves would
stop.
"""

import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tracker_diag.errors import require
from tracker_diag.health import opened, own_folder
from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT, StatKey
from tracker_diag.records import Drawing, Histogram, Scalar, Table
from tracker_diag.report.console import near
from tracker_diag.report.markdown import escaped, findings_text, markdown, note_on
from tracker_diag.report.picture import drawn, png_of, ready
from tracker_diag.report.tables import brief
from tracker_diag.trackers.panels import CHARTS
from tracker_diag.trackers.tables import Tables
from tracker_diag.trackers.tracker import RECORDS, Address, End, Entry, Event, Listener, Off, Standing, Tracker

CHARTED = {chart.statistic.name for chart in CHARTS if chart.section != "Shape"}
"""Statistics that come once more as `diag/<pair>/<stat>`, in a run for each slice: one chart, a colour a slice."""

FIRST = "0_diag/decision"
"""Tag of the picture. TensorBoard sorts by the alphabet, unfolds the first two groups, and begins with numbers."""

_numbers = count()


class TensorBoardTracker(Tracker):
    """Writes into `folder`/diag, for the writer that logs into `folder`; the writer itself is left alone."""

    name = "tensorboard"
    takes = (*RECORDS, Standing, Event, End)

    def __init__(self, folder: str | Path, writer: Any = None) -> None:
        ready()
        self._folder, self._writer = str(folder), writer
        place = self._folder.rstrip("/")
        self._main = EventFile(f"{place}/{PREFIX.rstrip('/')}")  # no Path: it may be a bucket's address
        self._slices = {name: EventFile(f"{place}/{PREFIX}{name}") for name in CONTEXT}
        self._tables = Tables()

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
        own = Unlocked(listener.record)

        def scalar(given: Mapping[str, Any]) -> None:
            listener.hear({given["tag"]: given["scalar_value"]}, given.get("global_step"), None)

        def several(given: Mapping[str, Any]) -> None:
            metrics = {f"{given['main_tag']}/{tag}": value for tag, value in given["tag_scalar_dict"].items()}
            listener.hear(metrics, given.get("global_step"), None)

        return all_off(
            before(self._writer, "add_scalar", ("tag", "scalar_value", "global_step"), scalar, own),
            before(self._writer, "add_scalars", ("main_tag", "tag_scalar_dict", "global_step"), several, own),
            before(self._writer, "close", (), lambda _: listener.end(), own),
        )

    @property
    def address(self) -> Mapping[str, str]:
        folder = self._folder if "://" in self._folder else str(Path(self._folder).absolute())
        name = f"{Path(folder).name}-{crc32(os.fsencode(folder)):08x}"  # one folder, one name
        return {"run": name, "folder": folder, "source": folder}

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
        for entry in entries:
            for table in self._tables.changed_by(step, entry):
                self._main.put(step, at, _text(table.name, _of_table(table)))
            if isinstance(entry, Scalar):
                self._main.put(step, at, _scalar(entry.name, entry.value))
                key = StatKey.parse(entry.name.removeprefix(PREFIX))
                if key and key.slice in self._slices and key.stat in CHARTED:
                    self._slices[key.slice].put(step, at, _scalar(f"{PREFIX}{key.pair}/{key.stat}", entry.value))
            elif isinstance(entry, Histogram):
                self._main.put(step, at, histogram(entry))
        for entry in entries:
            if isinstance(entry, Drawing):
                # A tag of its own: TensorBoard's data server shows the first of two kinds under one tag alone.
                self._main.put(step, at, _text(f"{entry.name}/text", note_on(entry.summary, "")))
                self._main.put(step, at, _image(entry))  # last, as nothing else is lost where it cannot be drawn

    def flush(self, *, last: bool = False) -> bool:
        for file in (self._main, *self._slices.values()):
            file.flush()
        return True


class EventFile:
    """An event file in `folder`, begun with the first event, and started over when it cannot be written to.

    It starts with a mark that a run begins at its first step. So after a resume TensorBoard leaves out later steps from
    before.
    """

    def __init__(self, folder: str) -> None:
        self._files: Any = require("tensorboard.compat", "tensorboard").tf.io.gfile
        self._folder = folder
        self._make_folder()  # one that cannot be written to is an error now
        self._waiting: list[Any] = []
        self._file: Any = None

    def _make_folder(self) -> None:
        if "://" not in self._folder:
            Path(self._folder).parent.mkdir(parents=True, exist_ok=True)  # those are yours
            own_folder(Path(self._folder))
        self._files.makedirs(self._folder)

    def put(self, step: int, at: float, value: Any) -> None:
        """Have a summary of `step` written with the next `flush`, in one event with others of the same time."""
        last = self._waiting[-1] if self._waiting else None
        if last is None or (last.step, last.wall_time) != (step, at):
            last = _pb("event").Event(wall_time=at, step=step)
            self._waiting.append(last)
        last.summary.value.append(value)

    def flush(self) -> None:
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
        self._make_folder()
        path = f"{self._folder}/{name}"
        if "://" not in path:
            opened(Path(path)).close()  # it is there then, for nobody else to read
        file = RecordWriter(self._files.GFile(path, "wb"))
        pb = _pb("event")
        started = pb.SessionLog(status=pb.SessionLog.START)
        file.write(pb.Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        file.write(pb.Event(wall_time=first.wall_time, step=first.step, session_log=started).SerializeToString())
        return file


def _pb(name: str) -> Any:
    return require(f"tensorboard.compat.proto.{name}_pb2", "tensorboard")


def _of_table(table: Table) -> str:
    """Findings one below the other, events as a list, all else as a table."""
    if table.name == f"{PREFIX}events":
        return "\n".join(f"- step {step}: {escaped(event)}" for step, event in table.rows)
    return findings_text(table) if table.name == f"{PREFIX}findings" else markdown(brief(table))


def _text(tag: str, content: str) -> Any:
    pb = _pb("summary")
    about = pb.SummaryMetadata(plugin_data={"plugin_name": "text"}, data_class=pb.DATA_CLASS_TENSOR)
    tensor = _pb("tensor").TensorProto(dtype=_pb("types").DT_STRING, string_val=[content.encode()])
    return pb.Summary.Value(tag=tag, metadata=about, tensor=tensor)


def _image(drawing: Drawing) -> Any:
    require("matplotlib", "tensorboard")
    image = drawn(drawing)
    height, width, _ = image.shape
    values = {"height": height, "width": width, "colorspace": 3, "encoded_image_string": png_of(image)}
    return _pb("summary").Summary.Value(tag=FIRST, image=_pb("summary").Summary.Image(**values))


def _scalar(tag: str, value: float) -> Any:
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
