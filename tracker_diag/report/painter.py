"""A process that draws. matplotlib holds the interpreter: a second to import it, a tenth for each picture.

A thread that draws beside training would keep training waiting as long. So a picture is asked for over a pipe, one at a
time, and comes back as its pixels. Where no process can be started it is drawn here.
"""

import io
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tracker_diag.records import Drawing, Histogram

Pixels = npt.NDArray[np.uint8]

_HEAD = struct.Struct("<II")
"""Of an answer: height and width; (height, width, 3) uint8 follow."""


class Painter:
    """Draws tails and time lines, in a process that all painters of this one share.

    It starts with the first picture, and ends with the last `close` or with this process.
    """

    def __init__(self) -> None:
        _process.painters.add(self)

    def tail(self, histograms: Sequence[Histogram], title: str) -> Pixels:
        """The picture of `report.figures.figure_of`, (H, W, 3) uint8 RGB."""
        return self._painted({"title": title, "of": [_plain(one) for one in histograms]})

    def picture(self, drawing: Drawing) -> Pixels:
        """The time line that `drawing` is of, (H, W, 3) uint8 RGB."""
        return self._painted({"picture": drawing.of})

    def close(self) -> None:
        """Let go of the process; what is asked for later is drawn here."""
        _process.leave(self)

    def _painted(self, wanted: dict[str, Any]) -> Pixels:
        there = _process.ask(wanted) if self in _process.painters else None
        return _drawn(wanted) if there is None else there


class _Process:
    """The one that draws for all `painters` that are not closed."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a fork, which leaves the process of its parent alone."""
        self.painters = WeakSet[Painter]()
        self._lock = threading.RLock()
        self._running: subprocess.Popen[bytes] | None = None
        self._fails = False

    def ask(self, wanted: dict[str, Any]) -> Pixels | None:
        """What it draws; None if it cannot be started, or has ended by itself, until all painters are closed."""
        with self._lock:
            try:
                return None if self._fails else self._asked(wanted)
            except (OSError, EOFError, ValueError):
                self._fails = True
                self._end()
                return None

    def leave(self, painter: Painter) -> None:
        """Do without `painter`, and end with the last one."""
        with self._lock:
            self.painters.discard(painter)
            if not self.painters:
                self._fails = False
                self._end()

    def _asked(self, wanted: dict[str, Any]) -> Pixels:
        self._running = self._running or _started()
        asked, answer = self._running.stdin, self._running.stdout
        if asked is None or answer is None:
            raise OSError("no pipe")
        asked.write(json.dumps(wanted).encode() + b"\n")
        asked.flush()
        height, width = _HEAD.unpack(_read(answer, _HEAD.size))
        return np.frombuffer(_read(answer, height * width * 3), np.uint8).reshape(height, width, 3)

    def _end(self) -> None:
        process, self._running = self._running, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with suppress(OSError, ValueError):
                if stream is process.stdin and stream:
                    stream.write(b"\n")  # a fork of this process may hold the pipe open
                    stream.flush()
            if stream:
                with suppress(OSError):
                    stream.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_process = _Process()

if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_process.forget)


def _started() -> "subprocess.Popen[bytes]":
    # Not `-m`, which would look for the package in the working directory first.
    path = "import json, sys; sys.path[:] = json.loads(sys.argv.pop())"
    command = [sys.executable, "-c", f"{path}; from tracker_diag.report.painter import main; main()"]
    return subprocess.Popen(  # noqa: S603  # our own
        [*command, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is none of its business
    )


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _plain(one: Histogram) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in vars(one).items()}


def _drawn(wanted: dict[str, Any]) -> Pixels:
    from tracker_diag.report.figures import figure_of, picture_figure, pixels
    from tracker_diag.report.picture import Picture

    if "picture" in wanted:
        return pixels(picture_figure(Picture.of_drawing(wanted["picture"])))
    given = [
        Histogram(**one | {name: np.array(one[name]) for name in ("counts", "edges", "baseline")})
        for one in wanted["of"]
    ]
    return pixels(figure_of(given, wanted["title"]))


def file_of(drawn: Pixels) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(drawn).save(buffer, "png")
    return buffer.getvalue()


def main() -> None:
    """Answer requests, a line of JSON each, until an empty one comes or there are no more."""
    for line in sys.stdin.buffer:
        if not line.strip():
            return
        picture = _drawn(json.loads(line))
        sys.stdout.buffer.write(_HEAD.pack(*picture.shape[:2]) + picture.tobytes())
        sys.stdout.buffer.flush()
