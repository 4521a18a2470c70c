"""Background: work that need not hold up the training thread, on a thread of its own."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class Background:
    """Runs one task at a time: the next one waits for it, so that memory, and what a kill can cost, are bounded."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[Task | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def run(self, task: Task) -> None:
        """Begin `task`, once the one before is done. It must not raise."""
        self.settle()
        if self._thread is None or not self._thread.is_alive():
            # A daemon: unlike an executor's it still works in `atexit`, when a run that nobody closed is closed.
            self._thread = threading.Thread(target=self._work, name="tracker_diag", daemon=True)
            with contextlib.suppress(RuntimeError):  # none starts in `atexit` from Python 3.12 on
                self._thread.start()
        if self._thread.ident is None:
            task()
        else:
            self._tasks.put(task)

    def settle(self) -> None:
        """Wait until the task that is underway is done."""
        if self._thread is not None and self._thread.is_alive():  # as it is not in a fork of this process
            self._tasks.join()

    def close(self) -> None:
        """Settle, and end the thread; the next task begins another."""
        self.settle()
        if self._thread is not None and self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                task()
            finally:
                self._tasks.task_done()
