"""The time that a rank takes for itself, in functions of its trainer that wait for no other rank."""

import time
from collections.abc import Callable
from typing import Any

from tracker_diag.hooks import all_off, replace


class OwnTime:
    """Adds up the seconds of the functions that it is put on; one that calls another counts once."""

    def __init__(self) -> None:
        self._depth = 0
        self._seconds: float | None = None

    def on(self, owner: Any, *names: str) -> Callable[[], None]:
        """Put a clock on the functions among `names` that `owner` has; gives a function that takes it off."""
        there = {name: function for name in names if callable(function := getattr(owner, name, None))}
        return all_off(*(replace(owner, name, function, self._timed(function)) for name, function in there.items()))

    def taken(self) -> float | None:
        """Seconds since the last call of this; None if no function was called."""
        seconds, self._seconds = self._seconds, None
        return seconds

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun, outermost = time.perf_counter(), self._depth == 0
            self._depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if outermost:
                    self._seconds = (self._seconds or 0.0) + time.perf_counter() - begun

        return call
