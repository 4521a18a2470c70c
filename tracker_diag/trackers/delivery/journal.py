"""Journal: a file that is a queue. What is put into it outlives the process, and so does what was taken out.

One JSON object and its checksum a line, appended with one call, so that a killed process leaves whole lines. Lines
that say how far it has been delivered are among them. Damaged lines are put into a second file.

Each process has files of its own, and no locks: the name says whose file it is (`owner`), and who renames the file
of a dead process first has it. The first line says who began it.
"""

import contextlib
import errno
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from tracker_diag.errors import DiagError
from tracker_diag.health import folder
from tracker_diag.trackers.delivery.owner import Owner, here, owner_of
from tracker_diag.trackers.delivery.syncing import keep_synced
from tracker_diag.trackers.tracker import Tracker

VERSION = 3
"""Of the format; it is in the first line."""

CHUNK = 1 << 20
"""Bytes read at once, if no line is longer."""

SHRINK = 1 << 20
"""Size from which a file of which all is delivered starts afresh."""

LARGEST = 1 << 30
"""Bytes that a journal may have: 1 GiB, the scalars of some hundred thousand steps."""

NEVER_WAITS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""How a file that may be anything is opened."""

END = ".journal"
"""Of the names of journals."""


class NoJournal(DiagError):
    """A file that is no journal, or is not to be touched; the message says why."""


class InUse(NoJournal):
    """The process that it belongs to may be alive, and delivers it itself."""


def _line(value: Mapping[str, object]) -> bytes:
    data = json.dumps(value).encode()
    return b"%s\t%08x\n" % (data, crc32(data))


def _value(line: bytes) -> dict[str, Any] | None:
    """What is in `line`; None if it is damaged."""
    data, _, check = line.rstrip(b"\n").rpartition(b"\t")
    try:
        value = json.loads(data)
        return value if isinstance(value, dict) and int(check, 16) == crc32(data) else None
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Head:
    """What the first line of a journal says."""

    about: Mapping[str, Any]
    """What it is for: the tracker's name and address, and the kind."""
    end: int
    """Where the second line begins."""


def head_of(fd: int, path: Path) -> Head:
    """The first line of an open file.

    Raises:
        NoJournal: it is not that of a journal of this version.
    """
    first = os.pread(fd, CHUNK, 0)
    line = first[: first.find(b"\n") + 1]
    about = _value(line)
    if about is None or "version" not in about:
        raise NoJournal(f"{path}: no first line of a journal, expected one with its checksum")
    if about["version"] != VERSION:
        do = "deliver it with the tracker_diag that wrote it, or delete it"
        raise NoJournal(f"{path}: a journal of version {about['version']} given, expected {VERSION}; {do}")
    return Head(about, len(line))


class Journal:
    """A journal that is this process's own: `new` begins one, `taken` continues that of a dead process."""

    def __init__(self, path: Path, fd: int, head: Head) -> None:
        self.path, self._fd, self._start, self.about = path, fd, head.end, head.about
        self.damaged = 0
        """Lines that could not be read, and were put aside."""
        self._seen = 0
        """Up to where damage was looked for."""
        self._kept: list[bytes] = []
        """Lines that stay when they have been delivered."""
        self._size = os.fstat(fd).st_size
        self.sent = self.given = head.end
        """Up to where it is delivered, and up to where it has been read."""
        keep_synced(self)

    @classmethod
    def new(cls, base: str, about: Mapping[str, object]) -> "Journal":
        """A journal that no other process or journal of this one has.

        Raises:
            OSError: the folder cannot be written to.
        """
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in count():
            path = folder() / f"{base}{f'-{number}' if number else ''}.{here()}{END}"
            with contextlib.suppress(FileExistsError):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                began = {"host": here().host, "pid": here().pid, "start": here().start}
                os.write(fd, _line({"version": VERSION, **began, **about}))
                return cls(path, fd, head_of(fd, path))
        raise AssertionError

    @classmethod
    def taken(cls, path: Path, about: Mapping[str, object] | None = None) -> "Journal":
        """The journal that a dead process left at `path`, which has another name from now on.

        Args:
            about: what its first line must say, where only some journals are wanted.

        Raises:
            NoJournal: it is none, or not to be touched; nothing was changed.
            OSError: it cannot be opened, or another process was quicker.
        """
        if path.is_symlink():
            raise NoJournal("it is a link, and is not followed")
        if (alive := owner_of(path, END).alive(path)) is not None:
            raise InUse(alive)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | NEVER_WAITS)
        try:
            head = _trusted(fd, path, about or {})
            mine = _free(path, here())
            path.rename(mine)
        except BaseException:
            os.close(fd)
            raise
        journal = cls(mine, fd, head)
        journal._continue()
        return journal

    def _continue(self) -> None:
        """Find what was kept, and how far it was delivered."""
        if os.pread(self._fd, 1, self._size - 1) != b"\n":  # the disk was full, or the machine went down
            self._write(b"\n")
        last = self._start
        for place, line in self.lines():
            value = _value(line) or {}
            if "sent" in value:
                self.sent = self.given = min(int(value["sent"]), place)
                continue
            last = place
            if value.get("kept"):
                self._kept.append(line)
        if self.sent >= last:  # nothing but that line comes after
            self.sent = self.given = self._size

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
        """Put `line` at the end, in one piece; one to `keep` stays when it has been delivered.

        Raises:
            OSError: the disk is full, say, or the journal is; the line is then not in it.
        """
        data = _line({**line, "kept": True} if keep else line)
        if self._size + len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"a journal holds {LARGEST >> 20} MiB at most", str(self.path))
        self._write(data)
        if keep:
            self._kept.append(data)

    def kept(self) -> list[dict[str, Any]]:
        """The lines that were to be kept, of this process and of those before it."""
        return [value for line in self._kept if (value := _value(line)) is not None]

    def adopt(self, others: Sequence["Journal"]) -> None:
        """Take over all that `others` have, before anything else is put in; they are deleted.

        Raises:
            OSError: the disk is full, or all are too large for one; the others are then as they were.
        """
        if self._size + sum(other.size for other in others) > LARGEST:
            raise OSError(errno.EFBIG, f"a journal holds {LARGEST >> 20} MiB at most", str(self.path))
        for other in others:
            before = [line for place, line in other.lines() if place <= other.sent]
            for line in before:
                self._write_kept(line, only=True)
        self.delivered(self._size)
        for other in others:
            for _, line in other.lines(other.sent):
                self._write_kept(line)
        os.fsync(self._fd)
        for other in others:
            other.close(keep=False)

    def _write_kept(self, line: bytes, *, only: bool = False) -> None:
        """Put in a line of another journal; `only` if it is to be kept."""
        value = _value(line) or {}
        if value.get("kept"):
            self._kept.append(line)
        if value.get("kept") or not (only or "sent" in value):
            self._write(line)

    def _write(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):  # half a line must not run into the next
            os.ftruncate(self._fd, self._size)
            raise OSError(f"{self.path}: {written} of {len(data)} bytes written")
        self._size += written

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """The next lines, each with the place where it ends; `given` is for the caller to move on."""
        lines: list[tuple[int, dict[str, Any]]] = []
        for place, line in self._chunk(self.given):
            value = _value(line)
            if value is None and place > self._seen:
                self._put_aside(line)
            self._seen = max(self._seen, place)
            lines.append((place, {} if value is None or "sent" in value else value))
        return lines

    def _chunk(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines from `start` on, each with the place where it ends: at least one, if there is one."""
        size = CHUNK
        while b"\n" not in (data := os.pread(self._fd, size, start)) and start + size < self._size:
            size *= 2
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            start += len(line)
            yield start, line

    def lines(self, start: int | None = None) -> Iterator[tuple[int, bytes]]:
        """All lines from `start` on, each with the place where it ends; by default all but the first."""
        start = self._start if start is None else start
        while lines := [*self._chunk(start)]:
            yield from lines
            start, _ = lines[-1]

    def _put_aside(self, line: bytes) -> None:
        if line.strip():  # an empty line is what a full disk left of another
            self.damaged += 1
            with contextlib.suppress(OSError):
                aside = os.open(self.aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(aside, "ab") as file:
                    file.write(line.rstrip(b"\n") + b"\n")

    @property
    def aside(self) -> Path:
        """Where damaged lines are put."""
        return self.path.with_suffix(".damaged")

    def delivered(self, up_to: int | None = None) -> None:
        """All that was given, or what is before `up_to`, is delivered; a line says so."""
        self.given = self.given if up_to is None else up_to
        whole = self.given == self._size
        if self.sent < self.given:
            self.sent = self.given
            with contextlib.suppress(OSError):  # a full disk: what is sent twice is one thing to a tracker
                self._write(_line({"sent": self.given}))
        if whole:
            self.sent = self.given = self._size

    def shrink(self) -> None:
        """Start afresh if all is delivered and the file has grown; nobody may `append` meanwhile."""
        if not self.undelivered and self._size >= SHRINK:
            os.ftruncate(self._fd, self._start)
            self._size = self.sent = self.given = self._start
            for line in self._kept:
                self._write(line)
            self.delivered(self._size)

    def halve(self) -> None:
        """Forget the older half of the lines, for a journal of which only the end will ever be wanted."""
        lines = [line for _, line in self.lines()]
        os.ftruncate(self._fd, self._start)
        self._size = self._start
        self._write(b"".join(lines[len(lines) // 2 :]))

    def sync(self) -> None:
        """Have the operating system write what it has; the file's date says that its process is alive."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.utime(self.path)

    def close(self, *, keep: bool) -> None:
        """Let go of the file; delete it unless there is something to `keep`. What comes after is an OSError."""
        if self._fd < 0:
            return
        if keep:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            with contextlib.suppress(OSError):
                free = _free(self.path, Owner("", 0, 0))
                self.path.rename(free)
                self.path = free
        else:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1  # the number soon is that of another file


def _trusted(fd: int, path: Path, about: Mapping[str, object]) -> Head:
    """The first line of the file at `path`, which is open as `fd`, where it may be touched.

    Raises:
        NoJournal: it may not.
    """
    if problem := _foreign(os.fstat(fd), path):
        raise NoJournal(problem)
    head = head_of(fd, path)
    if any(head.about.get(name) != value for name, value in about.items()):
        raise NoJournal("it is of another run")
    return head


def _foreign(there: os.stat_result, path: Path) -> str | None:
    """Why a file is not to be trusted: what is in it says where a tracker is written to, with what you may do."""
    if not stat.S_ISREG(there.st_mode):
        return "it is no regular file"
    if os.name == "nt":  # no owners and modes of this kind
        return None
    if there.st_uid != os.getuid():
        return f"it belongs to another user; if you trust what is in it: sudo chown $USER {shlex.quote(str(path))}"
    if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may have written it; if you trust what is in it: chmod 600 {shlex.quote(str(path))}"
    return None


def _free(path: Path, owner: Owner) -> Path:
    """A name for the journal at `path` that nobody has, with another `owner`."""
    base = owner_of(path, END).base
    for number in count():
        name = path.with_name(f"{base}{f'_{number}' if number else ''}.{owner}{END}")
        if not name.exists():
            return name
    raise AssertionError


def file_name(text: str) -> str:
    """`text` with nothing in it that a file's name may not have."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in text)


def journal_for(tracker: Tracker, kind: str = "") -> Journal:
    """A new journal of `tracker`, with what dead processes left of the same run.

    Args:
        kind: where what is in it is for `tracker-diag flush` alone, and no process continues it.

    Raises:
        OSError: the folder cannot be written to.
    """
    about = {"tracker": tracker.name, "address": dict(tracker.address), "kind": kind}
    base = f"{tracker.name}-{file_name(tracker.address.get('run', str(os.getpid())))}{kind}"
    left = sorted(folder().glob(f"{base}*{END}")) if not kind else []
    journal, earlier = Journal.new(base, about), list[Journal]()
    for path in left:
        with contextlib.suppress(NoJournal, OSError):
            earlier.append(Journal.taken(path, about))
    try:
        journal.adopt(earlier)
    except OSError:  # they wait for `tracker-diag flush`
        for other in earlier:
            other.close(keep=True)
    return journal
