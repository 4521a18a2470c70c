"""Logbook: what a watch has read, and what it has told, in a folder that outlives it.

Each run has a file that is replaced as a whole. What was told stands in a list to which lines are appended: one before
a notice is handed over, one when it was taken. A watch that is killed in between knows that it cannot know.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tracker_diag.errors import DiagError

try:
    import fcntl
except ImportError:  # no such locks on Windows: there, two watches in one folder are not told apart
    fcntl = None  # type: ignore[assignment]

VERSION = 1
"""Of the format; it stands in each file."""

Outcome: TypeAlias = Literal["begun", "told", "failed"]


class LogbookInUse(DiagError):
    """Another process keeps it: the same watch is running already."""


class Logbook:
    """Opens the logbook in `folder`, made if need be, for the watch of `source`.

    Raises:
        LogbookInUse: another process has it open.
        DiagError: it is another watch's, of another version, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, source: str, *, project: bool) -> None:
        self.folder = folder
        about: Mapping[str, Any] = {"version": VERSION, "source": source, "project": project, "began": time.time()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            self._own()
            known = _read(folder / "watch.json")
            if known is None:
                replace_file(folder / "watch.json", json.dumps(about))
            self._list = os.open(folder / "told.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise DiagError(f"{folder}: {error.strerror or error}; --state names another folder") from error
        about = known or about
        for field, wanted in (("version", VERSION), ("source", source), ("project", project)):
            if about.get(field) != wanted:
                given = f"{field} {about.get(field)!r} given, expected {wanted!r}"
                self.close()
                raise DiagError(f"{folder}: the state of another watch: {given}; --state names another folder")
        self.began = float(about["began"])
        """When the first watch of this source began, in seconds since 1970."""
        self._told: dict[tuple[str, str], Outcome] = {}
        self._load()

    def _own(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._lock)
                raise LogbookInUse(f"{self.folder}: another watch is at work here, and tells the same") from error

    def _load(self) -> None:
        data = (self.folder / "told.jsonl").read_bytes()
        for line in data.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a line that a full disk or a power cut left
                one = json.loads(line)
                self._told[one["id"], one["to"]] = one["is"]
        if data and not data.endswith(b"\n"):
            os.write(self._list, b"\n")

    def outcome(self, notice: str, to: str) -> Outcome | None:
        """What is known of telling `notice` to the channel `to`; both are ids."""
        return self._told.get((notice, to))

    def write(self, notice: str, to: str, outcome: Outcome) -> None:
        """Keep what became of it; on disk when this returns.

        Raises:
            OSError: the disk is full, say.
        """
        line = json.dumps({"id": notice, "to": to, "is": outcome}).encode() + b"\n"
        if os.write(self._list, line) < len(line):
            raise OSError(f"{self.folder}: the disk is full")
        os.fsync(self._list)
        self._told[notice, to] = outcome

    def run(self, source: str) -> dict[str, Any] | None:
        """What was kept of the run `source`; None if nothing was, or if it cannot be read any more."""
        found = _read(self._file(source))
        return found if found and found.get("version") == VERSION else None

    def runs(self) -> list[tuple[str, dict[str, Any]]]:
        """The runs of which something was kept, and what that is."""
        found = [_read(file) for file in sorted(self.folder.glob("run-*.json"))]
        return [(one["source"], one) for one in found if one and one.get("version") == VERSION]

    def keep(self, source: str, state: Mapping[str, Any]) -> None:
        """Keep `state`, JSON values, of the run `source`.

        Raises:
            OSError: the disk is full, say; what was kept before is then still there.
        """
        replace_file(self._file(source), json.dumps({"version": VERSION, "source": source, **state}))

    def _file(self, source: str) -> Path:
        return self.folder / f"run-{short_hash(source)}.json"

    def close(self) -> None:
        """Let go of the folder."""
        for name in ("_lock", "_list"):
            with suppress(OSError, AttributeError):
                os.close(getattr(self, name))


def short_hash(*parts: object) -> str:
    """A name for `parts` that is the same in each process."""
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` as a whole: whoever reads it meanwhile, or after a kill, finds the old one or the new.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
