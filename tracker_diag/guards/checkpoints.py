"""The register of checkpoints: where each lies, whether the run was clean there, and whether it is whole still.

Files are read in threads of their own, so that training does not wait for it: a checkpoint may be a hundred gigabytes.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.records import Table
from tracker_diag.report.tables import CHECKPOINTS

MOST = 256
"""Checkpoints that are kept in the register, the last ones."""

PATIENCE = 10.0
"""Seconds that a call waits for files to be read; what takes longer is asked for again at the next one."""

CHUNK = 1 << 20


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


@dataclass(frozen=True)
class Content:
    """What lies at a path."""

    files: int
    size: int
    digest: str


class Register:
    """The checkpoints of a run, by their steps."""

    def __init__(self) -> None:
        self._kept: dict[int, Checkpoint] = {}
        """Those without a digest are being read for the first time."""
        self._underway: dict[int, Future[Content]] = {}
        self._check: tuple[Checkpoint, Future[None]] | None = None
        """The one that is being read again."""
        self._failed: list[BaseException] = []
        self.changed = False
        """Whether there is news for the table."""

    def add(self, path: Path, step: int, incidents: Sequence[str]) -> None:
        """Register what lies at `path`; one of the same path or step is replaced, as its files are."""
        new = Checkpoint(str(path.absolute()), step, tuple(incidents))
        self._take_in()
        for at in [at for at, one in self._kept.items() if one.path == new.path or at == step]:
            del self._kept[at]
            self._underway.pop(at, None)
        self._kept[step] = new
        self._kept = dict(sorted(self._kept.items())[-MOST:])
        self._underway[step] = _in_background(partial(read, path.absolute()))
        self.changed = True

    def taint(self, onset: int, incident: str) -> None:
        """What was saved since `onset` is not clean, as is known only now."""
        for at, one in self._kept.items():
            if at >= onset and one.clean:
                self._kept[at] = replace(one, incidents=(incident,))
                self.changed = True

    def errors(self) -> list[BaseException]:
        """What kept checkpoints from being registered, since the last time of asking."""
        self._take_in()
        failed, self._failed = self._failed, []
        return failed

    def before(self, onset: int, *, look: bool) -> tuple[Checkpoint | None, list[str], bool]:
        """The last clean checkpoint before step `onset` that is whole.

        Args:
            look: whether the contents of files are read; else only whether they are there, and as large as they were.

        Returns:
            The checkpoint, what is wrong with later ones, and whether that is certain: files may still be read.
        """
        self._take_in(PATIENCE if look else 0.0)
        wrong: list[str] = []
        for at, one in sorted(self._kept.items(), reverse=True):
            if not one.clean or at >= onset:
                continue
            if at in self._underway:
                return None, wrong, False
            found = _glance(one)
            if look and found is None:
                check = self._check[1] if self._check and self._check[0] == one else _in_background(partial(_same, one))
                self._check = one, check
                if not wait([check], PATIENCE).done:
                    return None, wrong, False
                found, self._check = (None if check.exception() is None else str(check.exception())), None
            if found is None:
                return one, wrong, True
            wrong.append(f"that of step {at}: {found}")
        return None, wrong, True

    def table(self) -> Table:
        """All of them, a row each."""
        self._take_in()
        self.changed = bool(self._underway)
        columns = ("step", "path", "clean", "incidents", "files", "bytes", "digest")
        rows = tuple(
            (at, one.path, "yes" if one.clean else "no", ", ".join(one.incidents), one.files, one.size, one.digest)
            for at, one in self._kept.items()
        )
        return Table(CHECKPOINTS, columns, rows)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def state_dict(self) -> list[dict[str, Any]]:
        """In JSON values; waits for what is being read, and leaves it out if that takes too long."""
        self._take_in(PATIENCE)
        return [asdict(one) | {"incidents": list(one.incidents)} for one in self._kept.values() if one.digest]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._kept = {one["step"]: of_state(one) for one in state}
        self._underway, self._check, self.changed = {}, None, bool(self._kept)

    def _take_in(self, seconds: float = 0.0) -> None:
        """Take in what has been read by now, or within `seconds`."""
        done = wait(self._underway.values(), seconds).done
        for at in [at for at, reading in self._underway.items() if reading in done]:
            reading = self._underway.pop(at)
            if (error := reading.exception()) is None:
                self._kept[at] = replace(self._kept[at], **asdict(reading.result()))
            else:
                del self._kept[at]
                self._failed.append(error)


def of_state(state: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that `state` has in JSON values."""
    kept: dict[str, Any] = {**state, "incidents": tuple(state["incidents"])}
    return Checkpoint(**kept)


def read(root: Path) -> Content:
    """What lies at `root`, a file or a folder.

    Raises:
        DiagError: there is nothing, or a file is half written as far as its format tells.
        OSError: a file cannot be read.
    """
    total, files, size = hashlib.sha256(), 0, 0
    for file in _files(root):
        if cut := _cut_off(file):
            raise DiagError(f"checkpoint {root}: {file.name} is half written, {cut}; register it once it is whole")
        own, length = hashlib.sha256(), 0
        with file.open("rb") as content:
            while part := content.read(CHUNK):
                own.update(part)
                length += len(part)
        name = file.relative_to(root).as_posix() if file != root else file.name
        total.update(json.dumps([name, length, own.hexdigest()]).encode())
        files, size = files + 1, size + length
    if not size:
        raise DiagError(f"checkpoint {root}: nothing there, expected a file or a folder with files")
    return Content(files, size, total.hexdigest())


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    else:
        yield from sorted(file for file in root.rglob("*") if file.is_file())


def _cut_off(file: Path) -> str | None:
    """What is missing of a file of safetensors or of `torch.save`; None if nothing is, or it is of another kind."""
    size = file.stat().st_size
    with file.open("rb") as content:
        head = content.read(8)
        if head[:4] == b"PK\x03\x04" and not zipfile.is_zipfile(content):
            return "a zip file without its end"
        if file.suffix == ".safetensors":
            length = int.from_bytes(head, "little")  # of the header, which says where each tensor ends
            if len(head) < 8 or 8 + length > size:
                return f"{size} bytes, shorter than its header"
            content.seek(8)
            tensors = [one for name, one in json.loads(content.read(length)).items() if name != "__metadata__"]
            whole = 8 + length + max((one["data_offsets"][1] for one in tensors), default=0)
            if size < whole:
                return f"{size} of {whole} bytes"
    return None


def _same(checkpoint: Checkpoint) -> None:
    if read(Path(checkpoint.path)).digest != checkpoint.digest:
        raise DiagError("its files are not what they were when it was registered")


def _glance(checkpoint: Checkpoint) -> str | None:
    """What is wrong with it, as far as names and sizes tell."""
    root = Path(checkpoint.path)
    if not root.exists():
        return "gone"
    sizes = [file.stat().st_size for file in _files(root)]
    if (len(sizes), sum(sizes)) != (checkpoint.files, checkpoint.size):
        return f"{sum(sizes):,} bytes in {len(sizes)} files, {checkpoint.size:,} in {checkpoint.files} when registered"
    return None


def _in_background(call: Callable[[], Any]) -> "Future[Any]":
    """What `call` returns or raises; in a daemon's thread, for which the end of the process does not wait."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001  # whoever asks for the result is told
            future.set_exception(error)

    Thread(target=work, name="tracker_diag-checkpoint", daemon=True).start()
    return future
