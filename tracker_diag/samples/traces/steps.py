"""The training step of each trace: what it says itself, else by the clock of its run."""

from bisect import bisect_left
from dataclasses import replace

from tracker_diag.errors import DiagError
from tracker_diag.samples.traces.trace import Trace, Traces
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.open import read_run

FAR = 10
"""Times the mean distance of two rows before the first one, from which on a clock is taken to be another one."""


def with_steps(collected: Traces, source: str, run: FinishedRun | None = None) -> Traces:
    """`collected`, with the steps of those traces that do not say theirs.

    A step's row is logged after the rollouts that it was made of. So a trace is of the first step whose row was logged
    at its end or later; one that ends after the last row is of none.

    Args:
        source: that `collected` was read from; where it is MLflow, the runs that traces name are read from there.
        run: the training run of all traces.
    """
    odd = Odd()
    clocks: dict[str | None, list[tuple[float, int]]] = {None: _clock(run, odd)}
    traces: list[Trace] = []
    for trace in collected.traces:
        name = None if run else trace.run
        if trace.step is None and name not in clocks:
            clocks[name] = _clock(_run(source, str(name), odd), odd)
        traces.append(trace if trace.step is not None else _placed(trace, clocks[name], odd))
    return replace(collected, traces=tuple(traces), notes=(*collected.notes, *odd.notes))


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


def _placed(trace: Trace, clock: list[tuple[float, int]], odd: Odd) -> Trace:
    if not clock or trace.end is None:
        return trace
    place = bisect_left(clock, (trace.end, -1))
    if place == len(clock):
        odd.count("traces that end after the last row of their run, of no step", trace.id)
        return trace
    if place == 0 and clock[0][0] - trace.end > FAR * (clock[-1][0] - clock[0][0]) / max(1, len(clock) - 1):
        odd.count("traces that end long before the first row of their run, taken for its step", trace.id)
    return replace(trace, step=clock[place][1])
