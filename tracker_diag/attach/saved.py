"""The state of the diagnostics next to a framework's checkpoints, for those that have no place for it in them.

The framework has written the checkpoint of a step: `put`. A row is logged: `logged`. Training continues from a
checkpoint: `find`.
"""

import json
import logging
from pathlib import Path
from typing import Any

from tracker_diag.attach.kit import resume
from tracker_diag.errors import disabled
from tracker_diag.health import private
from tracker_diag.monitor.monitor import Monitor

UNSAVED = "the state of the diagnostics is not in its checkpoints, and a resumed run starts over"
"""What is lost where a framework's checkpoints cannot be followed."""

_log = logging.getLogger("tracker_diag")


class Saved:
    """One file in each checkpoint's folder, of each process that has a monitor its own, as with random states.

    Args:
        rank: this process's number, where several have a monitor.
    """

    def __init__(self, monitor: Monitor, rank: int = 0) -> None:
        self._monitor, self._rank = monitor, rank
        self._open: tuple[Path, int] | None = None
        self._warned = False

    def put(self, folder: str | Path, row: int | None = None) -> None:
        """A checkpoint is in `folder`; write the state there.

        Args:
            row: the step of the checkpoint, where the framework logs its row later: `logged` writes the state once more
                then. None where it was logged before.
        """
        if disabled():
            return
        if "://" in str(folder):
            if not self._warned:
                self._warned = True
                _log.warning("%s is no folder here: the state of the diagnostics is not saved next to it", folder)
            return
        with self._monitor.guard("integration_errors"):
            self._open = None if row is None else (Path(folder), row)
            self._write(Path(folder))

    def logged(self) -> None:
        """A row has come; it may be that of the last checkpoint, or a part of it."""
        now = self._monitor.step
        if self._open is None or now is None or now < self._open[1]:
            return
        folder, row = self._open
        if now > row:
            self._open = None
        elif folder.is_dir():  # it may have been moved or taken away since
            with self._monitor.guard("integration_errors"):
                self._write(folder)

    def find(self, folder: str | Path) -> bool:
        """Training continues from the checkpoint in `folder`: load its state, or warn that there is none.

        Returns:
            Whether there was one that could be used.
        """
        if disabled():
            return False
        with self._monitor.guard("integration_errors"):
            saved = _state_in(folder, self._rank)
            self._monitor.guards.saved_in(Path(folder))
            return resume(self._monitor, saved, f"{file_of(folder, self._rank)} is not there")
        return False

    def _write(self, folder: Path) -> None:
        private(file_of(folder, self._rank), json.dumps(self._monitor.state_dict()))


def file_of(folder: str | Path, rank: int) -> Path:
    """The file with the state of one process."""
    return Path(folder) / f"tracker_diag_{rank}.json"


def _state_in(folder: str | Path, rank: int) -> dict[str, Any] | None:
    """The state of one process, or the first one's where there are more now than there were; None if there is none.

    What it held of tensors that had not been logged yet was the first one's own, and stays there. A file that is
    damaged holds a state that cannot be used.
    """
    own, first = file_of(folder, rank), file_of(folder, 0)
    file = own if own.exists() else first
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"version": f"damaged: {error}"}
    if file != own:
        state["intake"]["observed"] = [{}, {}]
    return state
