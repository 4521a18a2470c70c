"""Journal: a file that is a queue. What is put into it outlives the process, and so does what was taken out.

One JSON object and its checksum a line, appended with one call, so that a killed process leaves whole lines. How far
it has been delivered stands in a second file beside it, and lines that are damaged in a third. One process at a time
has it open.
"""

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from tracker_diag.errors import DiagError
from tracker_diag.trackers.tracker import Tracker

try:
    import fcntl
except ImportError:  # no such locks on Windows: there, a journal in use is not told from one that is left
    fcntl = None  # type: ignore[assignment]

FOLDER = "TRACKER_DIAG_DIR"
"""Environment variable that says where journals lie; `.tracker_diag` in the working directory by default."""

VERSION = 2
"""Of the format; it stands in the first line."""

READ = {1, VERSION}
"""Versions that are read; lines of the first have no checksum."""

CHUNK = 1 << 20
"""Bytes read at once, if no line is longer."""

SHRINK = 1 << 20
"""Size from which a file of which all is delivered starts afresh."""

LARGEST = 1 << 30
"""Bytes that a journal may have: 1 GiB, the scalars of some hundred thousand steps."""

_WIDTH = 20


class JournalInUse(DiagError):
    """The journal is open elsewhere: its process is alive, and delivers it itself."""


class JournalVersion(DiagError):
    """The journal was written by another version of tracker_diag; it is left as it is."""


def _line(value: Mapping[str, object]) -> bytes:
    data = json.dumps(value).encode()
    return b"%s\t%08x\n" % (data, crc32(data))


class Journal:
    """Opens the journal at `path`, made if need be; what an earlier process left in it comes first.

    Args:
        about: what it is for, kept in the first line.

    Raises:
        JournalInUse: another process, or this one, has it open.
        JournalVersion: an earlier process left it in another format.
        OSError: the folder cannot be written to.
    """

    def __init__(self, path: Path, about: Mapping[str, object]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._marks = os.open(path.with_suffix(".sent"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError):
                raise JournalInUse(f"{path}: in use by a process that is alive") from error
            raise
        self._findings = path.with_suffix(".findings.jsonl")
        self.damaged = 0
        """Lines that could not be read, and were put aside."""
        self._seen = 0
        """Up to where damage was looked for."""
        self._size = os.fstat(self._fd).st_size
        if self._size == 0:
            self.append({"version": VERSION, **about})
        first = os.pread(self._fd, CHUNK, 0)
        self._start = first.index(b"\n") + 1 if b"\n" in first else len(first)
        with contextlib.suppress(ValueError):
            head = first[: self._start]
            about = json.loads(head.rpartition(b"\t")[0] or head)
            self.about: Mapping[str, Any] = about if isinstance(about, dict) else {}
            if (version := self.about.get("version")) not in READ:
                self.close(keep=True)
                do = "deliver it with the tracker_diag that wrote it, or delete it"
                raise JournalVersion(f"{path}: a journal of version {version} given, expected {VERSION}; {do}")
        if os.pread(self._fd, 1, self._size - 1) != b"\n":  # the disk was full, or the machine went down
            self._write(b"\n")
        try:
            sent = int(os.pread(self._marks, _WIDTH, 0) or 0)
        except ValueError:  # all again then, rather than none
            sent = 0
        self.sent = max(sent, self._start) if sent <= self._size else self._start
        """Up to where it is delivered."""
        self.given = self.sent
        """Up to where it has been read."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self._size

    @property
    def unread(self) -> bool:
        return self.given < self._size

    @property
    def undelivered(self) -> bool:
        return self.sent < self._size

    def append(self, line: Mapping[str, object], *, keep: bool = False) -> None:
        """Put `line` at the end, in one piece; one to `keep` also where it stays when it has been delivered.

        Raises:
            OSError: the disk is full, say, or the journal is; the line is then not in it.
        """
        data = _line(line)
        if self._size + len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"a journal holds {LARGEST >> 20} MiB at most", str(self.path))
        self._write(data)
        if keep:
            with self._findings.open("ab") as file:
                file.write(data)

    def kept(self) -> list[dict[str, Any]]:
        """The lines that were to be kept, of this process and of those before it."""
        try:
            lines = self._findings.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        found = [(line, self._value(line)) for line in lines]
        for line, value in found:
            if value is None:
                self._put_aside(line)
        return [value for _, value in found if value is not None]

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):  # half a line must not run into the next
            os.ftruncate(self._fd, self._size)
            raise OSError(f"{self.path}: {written} of {len(data)} bytes written")
        self._size += written

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """The next lines, each with the place where it ends; `given` is for the caller to move on."""
        size = CHUNK
        while b"\n" not in (data := os.pread(self._fd, size, self.given)) and self.given + size < self._size:
            size *= 2
        lines, place = [], self.given
        for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
            place += len(line) + 1
            value = self._value(line)
            if value is None and place > self._seen:
                self._put_aside(line)
            self._seen = max(self._seen, place)
            lines.append((place, value or {}))
        return lines

    def _value(self, line: bytes) -> dict[str, Any] | None:
        """What stands in `line`; None if it is damaged."""
        data, _, check = line.rstrip(b"\n").rpartition(b"\t")
        data, check = (data, check) if data else (check, b"")  # of version 1
        try:
            value = json.loads(data)
            if isinstance(value, dict) and (not check or int(check, 16) == crc32(data)):
                return value
        except (ValueError, RecursionError):
            pass
        return None

    def _put_aside(self, line: bytes) -> None:
        if line.strip():  # an empty one is what a full disk left of another
            self.damaged += 1
            with contextlib.suppress(OSError), self.aside.open("ab") as file:
                file.write(line.rstrip(b"\n") + b"\n")

    @property
    def aside(self) -> Path:
        """Where damaged lines are put."""
        return self.path.with_suffix(".damaged")

    def delivered(self) -> None:
        """All that was given is delivered."""
        self.sent = self.given
        os.pwrite(self._marks, f"{self.sent:{_WIDTH}d}".encode(), 0)

    def shrink(self) -> None:
        """Start afresh if all is delivered and the file has grown; nobody may `append` meanwhile."""
        if not self.undelivered and self._size >= SHRINK:
            os.pwrite(self._marks, f"{self._start:{_WIDTH}d}".encode(), 0)
            os.ftruncate(self._fd, self._start)
            self._size = self.sent = self.given = self._start

    def halve(self) -> None:
        """Forget the older half of the lines, for a journal of which only the end will ever be wanted."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        lines = os.read(self._fd, self._size)[self._start :].splitlines(keepends=True)
        later = b"".join(lines[len(lines) // 2 :])
        os.ftruncate(self._fd, self._start)
        self._size = self._start
        self._write(later)

    def close(self, *, keep: bool) -> None:
        """Let go of the file; delete it unless there is something to `keep`. What comes after is an OSError."""
        if self._fd < 0:
            return
        os.close(self._fd)
        os.close(self._marks)
        self._fd = self._marks = -1  # the numbers soon are those of other files
        if not keep:
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".sent").unlink(missing_ok=True)
            self._findings.unlink(missing_ok=True)


def folder() -> Path:
    """Where journals lie."""
    return Path(os.environ.get(FOLDER, ".tracker_diag"))


def file_name(text: str) -> str:
    """`text` with nothing in it that a file's name may not have."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in text)


def journal_for(tracker: Tracker, kind: str = "") -> Journal:
    """A journal of `tracker`; of `kind`, if what stands in it is for `tracker-diag flush` alone.

    It has another name where the first is in use, of another version, or of a kind that is not to go on with it.
    """
    about = {"tracker": tracker.name, "address": dict(tracker.address)}
    run = file_name(tracker.address.get("run", str(os.getpid())))
    for number in count():
        with contextlib.suppress(JournalInUse, JournalVersion):
            journal = Journal(folder() / f"{tracker.name}-{run}{kind}{f'-{number}' if number else ''}.jsonl", about)
            if not (kind and journal.undelivered):
                return journal
            journal.close(keep=True)
    raise AssertionError
