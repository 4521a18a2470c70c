"""Journal: a file that is a queue. What is put into it outlives the process, and so does what was taken out.

One JSON object and its checksum a line, appended with one call, so that a killed process leaves whole lines. Lines
that say how far it has been delivered are among them.

Each process has files of its own, and no locks. The first line says what a file is for, and whose it is, until a later
line names another owner. Who renames the file of a dead process first has it. A mark in its name is no other file's.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import shlex
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import ref
from zlib import crc32

from tracker_diag.errors import DiagError
from tracker_diag.health import folder, own_folder
from tracker_diag.trackers.delivery.owner import Owner, here, owner_in, owner_of
from tracker_diag.trackers.tracker import Tally, Tracker, asked

VERSION = 6
"""Of the format; it is in the first line."""

CHUNK = 1 << 20
"""Bytes read at once, if no line is longer."""

LARGEST = 1 << 30
"""Bytes that a journal may have: 1 GiB, the scalars of some hundred thousand steps."""

SYNCED_EVERY = 5.0
"""Seconds from the end of a sync to the next one: a power cut can cost what was written since the last one began."""

NEVER_WAITS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""How a file that may be anything is opened."""

END = ".journal"
"""Of the names of journals."""

MARKED = re.compile(r"\.\d+-[0-9a-f]{8}$")
"""Ends a name's part before the owner: when the journal began, and random digits."""

DAMAGED = {"damaged": True}
"""What is read of a line whose checksum is another one."""


class NoJournal(DiagError):
    """A file that is no journal, or is not to be touched; the message says why."""


class InUse(NoJournal):
    """The process that it belongs to may be alive, and delivers it itself."""


class Unsynced(OSError):
    """A journal that the operating system may lose in a power cut; the message says why."""


class Journal:
    """A journal that is this process's own: `new` begins one, `taken` continues that of a dead process."""

    def __init__(self, path: Path, fd: int, tally: Tally | None) -> None:
        self.path, self._fd = path, fd
        about, self._start = _head(fd, path)
        self.about = about
        """What it is for: the tracker's name and address, and the kind."""
        self.size = os.fstat(fd).st_size
        self.sent = self.given = self._start
        """Up to where it is delivered, and up to where it has been read; its owner moves `given`."""
        self.tally = tally or Tally()
        """Counts what could not be synced."""
        self._open = threading.Lock()
        """Held while the file must not be closed."""
        self._in_folder = False
        """Whether the folder was synced since the file is in it."""

    @classmethod
    def new(cls, base: str, about: Mapping[str, object], tally: Tally | None = None) -> "Journal":
        """A journal that no other process or journal of this one has; `tally` counts what could not be synced.

        Raises:
            OSError: the folder cannot be written to.
        """
        own_folder(folder())
        path = _named(folder().absolute(), base, here())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            os.write(fd, _line({"version": VERSION, **vars(here()), **about}))
            journal = cls(path, fd, tally)
        except (OSError, NoJournal) as error:  # the disk took no line, or a part of it
            os.close(fd)
            path.unlink()
            raise OSError(errno.ENOSPC, "no room for a first line", str(path)) from error
        journal._have_synced()
        return journal

    @classmethod
    def taken(cls, path: Path, about: Mapping[str, object] | None = None, tally: Tally | None = None) -> "Journal":
        """The journal that a dead process left at `path`, which has another name from now on.

        Args:
            about: what its first line must say, where only some journals are wanted.

        Raises:
            NoJournal: it is none, or not to be touched; nothing was changed.
            OSError: it cannot be opened; `FileNotFoundError` if another process was quicker.
        """
        if path.is_symlink():
            raise NoJournal("it is a link, and is not followed")
        owner, base = owner_of(path.name.removesuffix(END))
        _refuse_living(owner, path)  # it may be about to write into it that it is its owner
        fd = os.open(path, os.O_RDWR | os.O_APPEND | NEVER_WAITS)
        try:
            _check(fd, path, about or {})
            before = os.fstat(fd)
            journal = cls(path, fd, tally)
            owner, whole = journal._read()
            _refuse_living(owner, path)
            mine = journal.path = path.rename(_named(path.parent, base, here()))
            now = os.fstat(fd)
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                journal = cls(mine, fd, tally)  # meanwhile another process had it, and let go of it
                _, whole = journal._read()
        except BaseException:
            os.close(fd)
            raise
        journal._belongs_to(here())
        if whole:
            journal.sent = journal.given = journal.size
        journal._have_synced()
        return journal

    def _have_synced(self) -> None:
        with contextlib.suppress(RuntimeError):  # none starts in `atexit` from Python 3.12 on
            threading.Thread(target=_keep_synced, args=(ref(self),), name="tracker_diag-sync", daemon=True).start()

    def _read(self) -> tuple[Owner, bool]:
        """Find out how far it was delivered; whose it is, and whether all was."""
        owner, last = owner_in(self.about) or Owner(), self._start
        for place, entry in self.entries(self._start):
            if "sent" in entry:
                self.sent = self.given = max(self._start, min(entry["sent"], place))
                owner = owner_in(entry) or owner
            else:
                last = place
        return owner, self.sent >= last

    def _belongs_to(self, owner: Owner) -> None:
        """Write down whose it is. Where the disk is full, the name alone says so."""
        torn = os.pread(self._fd, 1, self.size - 1) != b"\n"  # the disk was full, or the machine went down
        with contextlib.suppress(OSError):
            self._write(b"\n" * torn + _line({"sent": self.sent, **vars(owner)}))

    @property
    def unread(self) -> bool:
        return self.given < self.size

    @property
    def undelivered(self) -> bool:
        return self.sent < self.size

    def append(self, *entries: Mapping[str, object]) -> None:
        """Put `entries` at the end, in one piece.

        Raises:
            OSError: the disk is full, say, or the journal is; none of them is then in it.
        """
        data = b"".join(map(_line, entries))
        if self.size + len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"a journal holds {LARGEST >> 20} MiB at most", str(self.path))
        self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
            if written < len(data):  # half a line must not run into the next
                os.ftruncate(self._fd, self.size)
                raise OSError(f"{self.path}: {written} of {len(data)} bytes written")
        finally:  # Ctrl-C may come in between, and the lines are there
            self.size = os.fstat(self._fd).st_size

    def entries(self, start: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines from `start` on: where each ends, and what is in it; `DAMAGED` if it is no whole line.

        Without `start` those that wait to be delivered; none that is put in after this call.
        """
        start, end = self.given if start is None else start, self.size
        while start < end:
            data = os.pread(self._fd, CHUNK, start)
            while b"\n" not in data and start + len(data) < end:
                data += os.pread(self._fd, len(data) + CHUNK, start + len(data))
            for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True) or [data]:
                start += len(line)
                if start <= end:
                    yield start, _entry(line)

    def delivered(self) -> None:
        """All that was given is delivered; a line says so."""
        whole = not self.unread
        if self.sent < self.given:
            self.sent = self.given
            with contextlib.suppress(OSError):  # a full disk: what is sent twice is one thing to a tracker
                self._write(_line({"sent": self.given}))
        if whole:
            self.sent = self.given = self.size

    def restart(self) -> None:
        """Forget all that is in it; nobody may `append` meanwhile."""
        os.ftruncate(self._fd, self._start)
        self.size = self.sent = self.given = self._start

    def sync(self) -> bool:
        """Have the operating system write what it has, which dates the file anew; False once it is closed."""
        with self._open:
            if self._fd >= 0:
                try:
                    os.fsync(self._fd)
                    os.utime(self._fd if os.utime in os.supports_fd else self.path)
                    if not self._in_folder and os.name != "nt":  # there, no folder can be opened
                        self._in_folder = True
                        _sync_folder(self.path.parent)
                except OSError as error:
                    self.tally.failed(Unsynced(f"{self.path}: a power cut may cost what is in it, {error}"))
            return self._fd >= 0

    def close(self, *, keep: bool) -> None:
        """Let go of the file; delete it unless there is something to `keep`. What comes after is an OSError."""
        if self._fd < 0:
            return
        if keep:
            self._belongs_to(Owner())
            self.sync()
            with contextlib.suppress(OSError):
                base = owner_of(self.path.name.removesuffix(END))[1]
                self.path = self.path.rename(_named(self.path.parent, base, Owner()))
        else:
            self.path.unlink(missing_ok=True)
        with self._open:
            os.close(self._fd)
            self._fd = -1  # the number soon is that of another file


def journal_for(tracker: Tracker, kind: str = "") -> Journal:
    """The journal of `tracker`: that which a dead process left of the same run, or a new one.

    Where several were left, the others wait for `tracker-diag flush`.

    Args:
        kind: where what is in it is for `tracker-diag flush` alone, and no process continues it.

    Raises:
        OSError: the folder cannot be written to.
    """
    about = {"tracker": tracker.name, "address": dict(asked(tracker, "address", {})), "kind": kind}
    base = f"{base_of(tracker)}{kind}"
    for path in sorted(folder().glob(f"{base}*{END}")) if not kind else ():
        with contextlib.suppress(NoJournal, OSError):
            return Journal.taken(path, about, tracker.tally)
    return Journal.new(base, about, tracker.tally)


def base_of(tracker: Tracker) -> str:
    """What the names of the files for `tracker` begin with."""
    address: Mapping[str, str] = asked(tracker, "address", {})
    return f"{tracker.name}-{file_name(address.get('run', str(os.getpid())))}"


def file_name(text: str) -> str:
    """`text` with nothing in it that a file's name may not have."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in text)


def _line(entry: Mapping[str, object]) -> bytes:
    data = json.dumps(entry, default=dict).encode()  # a mapping need not be a dictionary
    return b"%s\t%08x\n" % (data, crc32(data))


def _entry(line: bytes) -> dict[str, Any]:
    data, _, check = line.rstrip(b"\n").rpartition(b"\t")
    try:
        entry, same = json.loads(data), check == b"%08x" % crc32(data)
    except (ValueError, RecursionError):
        return DAMAGED
    return entry if same and isinstance(entry, dict) and isinstance(entry.get("sent", 0), int) else DAMAGED


def _head(fd: int, path: Path) -> tuple[Mapping[str, Any], int]:
    """What the first line of an open file says, and where the second one begins.

    Raises:
        NoJournal: it is not that of a journal of this version.
    """
    first = os.pread(fd, CHUNK, 0)
    line = first[: first.find(b"\n") + 1]
    about = _entry(line)
    if "version" not in about or not isinstance(about.get("address", {}), dict):
        raise NoJournal(f"{path}: no first line of a journal, expected one with its checksum")
    if about["version"] != VERSION:
        do = "deliver it with the tracker_diag that wrote it, or delete it"
        raise NoJournal(f"{path}: a journal of version {about['version']} given, expected {VERSION}; {do}")
    if owner_in(about) is None:
        raise NoJournal(f"{path}: the first line names no process, expected host, pid and start")
    return about, len(line)


def _check(fd: int, path: Path, about: Mapping[str, object]) -> None:
    """Refuse a file that may not be touched: what is in it says where a tracker is written to, with what you may do.

    Raises:
        NoJournal: why it may not.
    """
    there = os.fstat(fd)
    if not stat.S_ISREG(there.st_mode):
        raise NoJournal("it is no regular file")
    if there.st_nlink > 1:
        raise NoJournal(f"it has {there.st_nlink} names (hard links), and delivery writes into it; remove the others")
    if os.name != "nt":  # there are no owners and modes of this kind
        if there.st_uid != os.getuid():
            do = f"sudo chown $USER {shlex.quote(str(path))}"
            raise NoJournal(f"it belongs to another user; if you trust what is in it: {do}")
        if there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            do = f"chmod 600 {shlex.quote(str(path))}"
            raise NoJournal(f"others may have written it; if you trust what is in it: {do}")
    given, _ = _head(fd, path)
    if any(given.get(name) != value for name, value in about.items()):
        raise NoJournal("it is of another run")


def _refuse_living(owner: Owner, path: Path) -> None:
    """Refuse the journal at `path` of a process that may be alive.

    Raises:
        InUse: why it may be.
    """
    if (alive := owner.alive(path)) is not None:
        raise InUse(alive)


def _named(place: Path, base: str, owner: Owner) -> Path:
    """A path that is no other journal's, now or later; of those with one `base` the older ones sort first."""
    mark = "" if MARKED.search(base) else f".{time.time_ns()}-{secrets.token_hex(4)}"
    return place / f"{base}{mark}.{owner}{END}"


def _sync_folder(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _keep_synced(journal: "ref[Journal]") -> None:
    """Have the operating system write the journal, now and every few seconds, as long as it is there and open."""
    while (there := journal()) is not None and there.sync():
        del there
        time.sleep(SYNCED_EVERY)
