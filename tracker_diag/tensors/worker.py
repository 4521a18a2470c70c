"""Writer: one thread that talks to a slow tracker, so that training never waits for it."""

import threading
from collections import deque
from collections.abc import Callable

LIMIT = 1000
"""Calls that may wait, unless said otherwise. Beyond it droppable calls are dropped and reported."""


class Writer:
    """Runs the calls it is given one after another, in order, in a thread of its own.

    The thread is a daemon: unlike those of an executor it still works in `atexit`, which is when a run
    that nobody closed is closed.
    """

    def __init__(self, name: str, limit: int = LIMIT) -> None:
        self._limit = limit
        self._calls: deque[Callable[[], object] | None] = deque()
        self._wake = threading.Condition()
        self._errors: list[Exception] = []
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], object], *, droppable: bool = False) -> None:
        """Have `call` run later. Never blocks and never raises."""
        with self._wake:
            if droppable and len(self._calls) >= self._limit:
                self._dropped += 1
            else:
                self._calls.append(call)
                self._wake.notify()

    def errors(self) -> list[Exception]:
        """What calls have raised, and how many were dropped, since the last time of asking."""
        with self._wake:
            errors, self._errors = self._errors, []
            if self._dropped:
                errors.append(RuntimeError(f"{self._dropped} calls dropped: what they were for is slower than the run"))
                self._dropped = 0
        return errors

    def close(self, seconds: float) -> None:
        """Wait until all is written, at most `seconds`; `errors` reports what is left then."""
        with self._wake:
            self._calls.append(None)
            self._wake.notify()
        self._thread.join(seconds)
        with self._wake:
            if left := sum(call is not None for call in self._calls):
                self._errors.append(TimeoutError(f"{left} calls not written within {seconds:.0f} s"))

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: len(self._calls) > 0)
                call = self._calls[0]
            if call is None:
                return
            try:
                call()
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
                with self._wake:
                    self._errors.append(error)
            with self._wake:
                self._calls.popleft()
