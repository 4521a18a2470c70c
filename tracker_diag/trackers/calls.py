"""Calls: scalars into any function that takes metrics and a step, such as a logger of one's own."""

from collections.abc import Callable, Mapping, Sequence

from tracker_diag.records import Record, Scalar
from tracker_diag.trackers.tracker import Tracker


class CallTracker(Tracker):
    """Gives each step's scalars to `call(metrics, step)`, in the training thread: it may bear no other."""

    name = "calls"
    local = True

    def __init__(self, call: Callable[[Mapping[str, float], int], object]) -> None:
        self._call = call

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        scalars = {record.name: record.value for record in records if isinstance(record, Scalar)}
        if scalars:
            self._call(scalars, step)
