"""Trackio: `Run.log`, which `trackio.log` calls too, the end of a run, and its beginning."""

from collections.abc import Callable, Mapping
from typing import Any

from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.trackers.tracker import Listener, Off, writing_of_ours


def listen(run: Any, listener: Listener, upcoming: Callable[[], int]) -> Off:
    """Have `log` and `finish` of `run` heard; `upcoming` is the step that a call without one gets."""

    def hear(given: Mapping[str, Any]) -> None:
        if not writing_of_ours():
            listener.hear(given["metrics"], given.get("step"), upcoming())

    own = Unlocked(listener.record)
    return all_off(
        before(run, "log", ("metrics", "step"), hear, own),
        before(run, "finish", (), lambda _: listener.end(), own),
    )
