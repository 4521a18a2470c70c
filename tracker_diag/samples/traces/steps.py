"""The training step of each trace: what it says itself, else by the clock of its run."""

from bisect import bisect_left
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.open import read_run

FAR = 10
"""If a time is so many mean distances of two rows before the first row, its clock is another one."""


def add_steps(records: list[dict[str, Any]], source: str, run: FinishedRun | None, odd: Odd) -> None:
    """Give a `step` to those of `records` that do not say theirs.

    A step's row is logged after the rollouts that it was made of. So a trace is of the first step whose row was logged
    at its end or later; one that ends after the last row is of none.

    Args:
        source: that the records are of; where it is MLflow, the runs that traces name are read from there.
        run: the training run of all traces.
    """
    clocks: dict[str | None, list[tuple[float, int]]] = {None: _clock(run, odd)}
    for record in records:
        name = None if run else record.get("run")
        if "step" in record or "time" not in record:
            continue
        if name not in clocks:
            clocks[name] = _clock(_run(source, str(name), odd), odd)
        step = _step(record["id"], record["time"] + record.get("seconds", 0.0), clocks[name], odd)
        if step is not None:
            record["step"] = step


def _run(source: str, run: str, odd: Odd) -> FinishedRun | None:
    """The run in the same MLflow."""
    if not source.startswith("mlflow:"):
        return None
    uri = source.rpartition("@")[2] if "@" in source else ""
    try:
        return read_run(f"mlflow:{run}{f'@{uri}' if uri else ''}")
    except DiagError as error:
        odd.count("runs that cannot be read, their traces have no step", str(error))
        return None


def _clock(run: FinishedRun | None, odd: Odd) -> list[tuple[float, int]]:
    """When the row of each step was logged, in seconds since 1970, in the order of time."""
    if run is None:
        return []
    if run.began is None:
        odd.count("runs that do not tell the time of their rows, their traces have no step", run.source)
        return []
    return sorted((run.began + seconds, step) for step, seconds in run.seconds.items())


def _step(trace: str, end: float, clock: list[tuple[float, int]], odd: Odd) -> int | None:
    if not clock:
        return None
    place = bisect_left(clock, (end, -1))
    if place == len(clock):
        odd.count("traces that end after the last row of their run, of no step", trace)
        return None
    if place == 0 and clock[0][0] - end > FAR * (clock[-1][0] - clock[0][0]) / max(1, len(clock) - 1):
        odd.count("traces that end long before the first row of their run, taken for its step", trace)
    return clock[place][1]
