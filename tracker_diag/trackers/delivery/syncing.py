"""Syncing: one thread has the operating system write all open journals every few seconds."""

import contextlib
import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

EVERY = 5.0
"""Seconds: what a power cut can cost."""


class Synced(Protocol):
    """A file that is open."""

    def sync(self) -> None:
        """Have it written."""
        ...


_open: "WeakSet[Synced]" = WeakSet()
_lock = threading.Lock()
_running: int | None = None
"""The process in which the thread runs; a fork has none."""


def keep_synced(file: Synced) -> None:
    """From now on, as long as `file` is there."""
    global _running  # noqa: PLW0603  # one thread for all
    with _lock:
        _open.add(file)
        if _running != os.getpid():
            _running = os.getpid()
            with contextlib.suppress(RuntimeError):  # none starts in `atexit` from Python 3.12 on
                threading.Thread(target=_run, name="tracker_diag-sync", daemon=True).start()


def _run() -> None:
    while True:
        time.sleep(EVERY)
        _sync_all()


def _sync_all() -> None:
    with _lock:
        files = [*_open]
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            file.sync()


def _forked() -> None:
    """What is open is the parent's, and so is the thread."""
    global _lock  # noqa: PLW0603  # somebody else may hold it
    _lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forked)
