"""Background: work that need not hold up the training thread, on a thread of its own."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

Task: TypeAlias = Callable[[], None]


class Background:
    """Runs tasks in the order in which they come. One may wait while another is underway, so memory is bounded."""

    def __init__(self) -> None:
        self._tasks: queue.Queue[Task | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None

    def run(self, task: Task) -> None:
        """Do `task` soon; waits while another one waits already. It must not raise."""
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
        """Wait until all is done that was asked for."""
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
