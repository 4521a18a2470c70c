"""The register of checkpoints: where each is, whether the run was clean there, and whether it is whole still.

The proof of a checkpoint is its manifest: names, sizes and hashes of its files, written last and next to them.
Files are read in threads of their own, so that training does not wait for it: a checkpoint may be a hundred gigabytes.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread, get_ident
from typing import Any, TypeAlias, TypeVar

from tracker_diag.errors import DiagError
from tracker_diag.guards.whole import lacking
from tracker_diag.health import opened
from tracker_diag.records import Table
from tracker_diag.report.tables import CHECKPOINTS

MOST = 256
"""Checkpoints that are kept in the register, the last ones."""

PATIENCE = 0.5
"""Seconds from its beginning that a reading is waited for; what takes longer is asked for at later steps."""

MANIFEST = "tracker_diag_manifest.json"
"""In the folder of a checkpoint; of a file it has the file's name in front."""

OURS = "tracker_diag_"
"""What the names of our own files in a checkpoint begin with: they change after it was registered."""

Check: TypeAlias = Callable[["Checkpoint"], str | None]
"""What is wrong with a checkpoint; empty if nothing is, None while that is not known."""

CHUNK = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """One that was saved, as it was then."""

    path: str
    """Its file or folder, absolute."""
    step: int
    incidents: tuple[str, ...] = ()
    """Those at warn or above that were open at its step."""
    files: int = 0
    size: int = 0
    """Bytes of all its files."""
    digest: str = ""
    """SHA-256 over the names, sizes and contents of its files."""

    @property
    def clean(self) -> bool:
        return not self.incidents

    def state_dict(self) -> dict[str, Any]:
        return asdict(self) | {"incidents": list(self.incidents)}


Manifest: TypeAlias = Mapping[str, tuple[int, str]]
"""Size and SHA-256 of each file of a checkpoint, by its name below it."""


class Register:
    """The checkpoints of a run, by their steps."""

    def __init__(self) -> None:
        self._kept: dict[int, Checkpoint] = {}
        """Those without a digest are being read for the first time."""
        self._underway: dict[int, Reading[Manifest]] = {}
        self._again: dict[Checkpoint, Reading[None]] = {}
        """Those that were read again, or are being read, for the decision that is underway."""
        self._failed: list[Exception] = []
        self.changed = False
        """Whether there is news for the table."""

    def register(self, path: Path, step: int, incidents: Sequence[str]) -> None:
        """Register what is at `path`; one of the same path or step is replaced, as its files are."""
        new = Checkpoint(str(path.absolute()), step, tuple(incidents))
        self._take_in()
        for at in [at for at, checkpoint in self._kept.items() if checkpoint.path == new.path or at == step]:
            del self._kept[at]
            self._underway.pop(at, None)
        self._kept[step] = new
        self._kept = dict(sorted(self._kept.items())[-MOST:])
        self._underway[step] = _in_background(partial(prove, path.absolute()))
        self.changed = True

    def taint(self, onset: int, incident: str) -> None:
        """What was saved since `onset` is not clean, as is known only now."""
        for at, checkpoint in self._kept.items():
            if at >= onset and checkpoint.clean:
                self._kept[at] = replace(checkpoint, incidents=(incident,))
                self.changed = True

    def errors(self) -> list[Exception]:
        """What kept checkpoints from being registered, since the last time of asking."""
        self._take_in()
        failed, self._failed = self._failed, []
        return failed

    def before(self, onset: int, *checks: Check) -> tuple[Checkpoint | None, list[str], bool]:
        """The last clean checkpoint before step `onset` that is there and passes all `checks`.

        Returns:
            The checkpoint, what is wrong with later ones, and whether that is certain: files may still be read.
        """
        self._take_in(waits=bool(checks))
        wrong, whole = list[str](), None
        for at, checkpoint in sorted(self._kept.items(), reverse=True):
            if not checkpoint.clean or at >= onset:
                continue
            if at in self._underway:
                return None, wrong, False
            results = [check(checkpoint) for check in checks]  # all of them, as each may take its time
            problem = glance(checkpoint) or next((result for result in results if result), "")
            if not problem and None in results:
                return None, wrong, False
            if not problem:
                whole = checkpoint
                break
            wrong.append(f"that of step {at}: {problem}")
        self.forget()
        return whole, wrong, True

    def forget(self) -> None:
        """A decision is made: for the next one all is read anew."""
        self._again.clear()

    def reread(self, checkpoint: Checkpoint) -> str | None:
        """What is wrong with the contents of its files, as a `Check`; they are read once for each decision."""
        if checkpoint not in self._again:
            self._again[checkpoint] = _in_background(partial(_same, checkpoint))
        check = self._again[checkpoint]
        if not check.is_done():
            return None
        return "" if check.exception() is None else str(check.exception())

    def table(self) -> Table:
        """All of them, a row each."""
        self._take_in()
        self.changed = bool(self._underway)
        columns = ("step", "path", "clean", "incidents", "files", "bytes", "digest")
        rows = tuple(
            (at, kept.path, ("no", "yes")[kept.clean], ", ".join(kept.incidents), kept.files, kept.size, kept.digest)
            for at, kept in self._kept.items()
        )
        return Table(CHECKPOINTS, columns, rows)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def state_dict(self) -> list[dict[str, Any]]:
        """In JSON values; what is still being read is left out."""
        self._take_in(waits=True)
        return [checkpoint.state_dict() for checkpoint in self._kept.values() if checkpoint.digest]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._kept = {saved["step"]: of_state(saved) for saved in state}
        self._underway, self._again, self.changed = {}, {}, bool(self._kept)

    def _take_in(self, *, waits: bool = False) -> None:
        """Take in what has been read by now, or within `seconds`."""
        for at in [at for at, reading in self._underway.items() if (reading.is_done() if waits else reading.done())]:
            reading = self._underway.pop(at)
            try:
                files = reading.result()
                size = sum(size for size, _ in files.values())
                self._kept[at] = replace(self._kept[at], files=len(files), size=size, digest=digest_of(files))
            except Exception as error:  # noqa: BLE001  # what reading raised is counted
                del self._kept[at]
                self._failed.append(error)


def of_state(state: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that `state` has in JSON values."""
    kept: dict[str, Any] = {**state, "incidents": tuple(state["incidents"])}
    return Checkpoint(**kept)


def prove(root: Path) -> Manifest:
    """Read what is at `root`, a file or a folder, and write its manifest."""
    below = sorted(path for path in root.rglob("*") if not path.name.startswith(OURS))
    there = [root] if root.is_file() or (root.is_symlink() and not root.exists()) else below
    if missing := lacking(root, there):
        raise DiagError(f"checkpoint {root}: {missing}; register it once it is whole")
    files = [path for path in there if path.is_file()]
    names = [file.name if file == root else file.relative_to(root).as_posix() for file in files]
    manifest = read_manifest(root, names)
    if not any(size for size, _ in manifest.values()):
        raise DiagError(f"checkpoint {root}: nothing there, expected a file or a folder with files")
    file = manifest_of(root)
    part = file.with_suffix(f".{get_ident()}.part")  # the same path may be registered again meanwhile
    with opened(part) as written:
        json.dump({"version": 1, "files": manifest}, written)
        written.flush()
        os.fsync(written.fileno())
    part.replace(file)
    for left in root.parent.glob(f"*.{MANIFEST}"):  # of files that the trainer has deleted since
        if not left.with_name(left.name.removesuffix(f".{MANIFEST}")).exists():
            left.unlink(missing_ok=True)
    return manifest


def read_manifest(root: Path, names: Sequence[str]) -> Manifest:
    """The files of these names below `root`, or `root` itself, as they are now."""
    manifest: dict[str, tuple[int, str]] = {}
    for name in names:
        own, size = hashlib.sha256(), 0
        with (root / name if root.is_dir() else root).open("rb") as content:
            while part := content.read(CHUNK):
                own.update(part)
                size += len(part)
        manifest[name] = size, own.hexdigest()
    return manifest


def digest_of(manifest: Manifest) -> str:
    """SHA-256 over names, sizes and hashes."""
    return hashlib.sha256(json.dumps(sorted(manifest.items())).encode()).hexdigest()


def manifest_of(root: Path) -> Path:
    """Where the manifest of a checkpoint is."""
    return root / MANIFEST if root.is_dir() else root.with_name(f"{root.name}.{MANIFEST}")


def glance(checkpoint: Checkpoint) -> str:
    """What is wrong with it, as far as names and sizes say; empty if nothing is."""
    root = Path(checkpoint.path)
    try:
        if not root.exists():
            return f"{root.name} is gone"
        listed = _listed(root)
        for name, (size, _) in listed.items():
            now = (root / name if root.is_dir() else root).stat().st_size
            if now != size:
                return f"{name} has {now:,} bytes, {size:,} when registered"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is gone"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"its manifest cannot be read: {error}"
    same = digest_of(listed) == checkpoint.digest
    return "" if same else "its manifest is not the one that was written when it was registered"


def changed(checkpoint: Checkpoint) -> str:
    """What is wrong with it, read now as a whole; empty if nothing is."""
    if problem := glance(checkpoint):
        return problem
    try:
        _same(checkpoint)
    except (DiagError, OSError) as error:
        return str(error)
    return ""


def _listed(root: Path) -> dict[str, tuple[int, str]]:
    listed = json.loads(manifest_of(root).read_text(encoding="utf-8"))["files"]
    return {str(name): (int(size), str(digest)) for name, (size, digest) in listed.items()}


def _same(checkpoint: Checkpoint) -> None:
    root = Path(checkpoint.path)
    if digest_of(read_manifest(root, [*_listed(root)])) != checkpoint.digest:
        raise DiagError("its files are not what they were when it was registered")


class Reading(Future[T]):
    """Files that a thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self._until = time.monotonic() + PATIENCE

    def is_done(self) -> bool:
        """Whether they are read, by now or within `PATIENCE` of the beginning: later calls wait for nothing."""
        wait([self], max(0.0, self._until - time.monotonic()))
        return self.done()


def _in_background(call: Callable[[], T]) -> Reading[T]:
    """What `call` returns or raises; in a daemon's thread, for which the end of the process does not wait."""
    reading = Reading[T]()

    def work() -> None:
        try:
            reading.set_result(call())
        except Exception as error:  # noqa: BLE001  # the caller of `result` gets it
            reading.set_exception(error)

    Thread(target=work, name="tracker_diag-checkpoint", daemon=True).start()
    return reading
