"""The state of a watch: which rows it has judged and which alerts it has sent, in one file that outlives it."""

import json
import os
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracker_diag.errors import DiagError
from tracker_diag.report.fleet import FleetRow
from tracker_diag.rules.model import Severity

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, nothing keeps two watches out of one folder
    fcntl = None  # type: ignore[assignment]

VERSION = 2
"""Version of the format, kept in the file."""
FILE = "watch.json"
DO = "delete the folder to begin anew, or name another with --state"


class RunState(BaseModel):
    """What is kept of one run."""

    model_config = ConfigDict(extra="forbid")

    row: FleetRow
    underway: bool
    """Whether the run was still going when it was first judged. A run that had ended is judged by its length."""
    mark: str = ""
    """The mark of the rows that were judged and whose alerts were all sent."""
    gap: float = 0.0
    """Median seconds between two rows."""
    worst: Severity | None = None
    """The highest severity of an incident so far."""
    sent: dict[str, list[str]] = {}
    """Ids of the notices that were sent, by receiver."""

    def start_receivers(self, names: Collection[str]) -> None:
        """Let a new receiver begin with the alerts that come from now on."""
        before = sorted(set().union(*self.sent.values()))
        for name in names:
            self.sent.setdefault(name, list(before))


class WatchState(BaseModel):
    """What is kept of a watch."""

    model_config = ConfigDict(extra="forbid")

    file: Path = Field(exclude=True)
    version: int = VERSION
    source: str
    project: bool
    began: float = Field(default_factory=time.time)
    """When the first watch of this source began, in seconds since 1970."""
    runs: dict[str, RunState] = {}
    """By the source of the run."""

    def save(self) -> None:
        """Write the file.

        Raises:
            OSError: for example, the disk is full; the file then stays as it was.
        """
        replace_file(self.file, self.model_dump_json())


@contextmanager
def open_state(folder: Path, source: str, *, project: bool) -> Generator[WatchState]:
    """The state that `folder` holds for the watch of `source`, made if need be; no other watch can open it inside.

    Raises:
        DiagError: another watch has it open; it is damaged, has another version or belongs to another source; or
            nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise DiagError(f"{folder}: {error.strerror or error}; name another folder with --state") from error
    try:
        yield _locked(lock, WatchState(file=folder / FILE, source=source, project=project))
    finally:
        os.close(lock)


def _locked(lock: int, new: WatchState) -> WatchState:
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = _loaded(new) if new.file.exists() else new
        state.save()
    except BlockingIOError as error:
        raise DiagError(f"{new.file}: another watch has it open; stop that one, or use another --state") from error
    except OSError as error:
        raise DiagError(f"{new.file}: {error.strerror or error}; name another folder with --state") from error
    return state


def _loaded(new: WatchState) -> WatchState:
    """What the file of `new` holds; it has to be of the same watch."""
    try:
        content = json.loads(new.file.read_bytes())
        for field in ("version", "source", "project"):
            if content[field] != getattr(new, field):
                expected = f"{field} {content[field]!r} given, expected {getattr(new, field)!r}"
                raise DiagError(f"{new.file}: {expected}; {DO}")
        return WatchState.model_validate(content | {"file": new.file})
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        raise DiagError(f"{new.file}: damaged: {field}: {problem['msg']}; {DO}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DiagError(f"{new.file}: damaged: {type(error).__name__}: {error}; {DO}") from error


def short_hash(*parts: object) -> str:
    """An id of `parts` that is the same in each process."""
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` at once: a reader, and a process that starts after a kill, sees the old file or the new.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
