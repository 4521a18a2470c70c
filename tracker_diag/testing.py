"""For tests, ours and yours: series in short notation, rules held against them, a tracker that keeps all."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracker_diag.metrics.reasons import no_series
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.tables import DECISION
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.cases import RuleCase, check_rule, load_cases, series
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.tracker import RECORDS, End, Entry, Event, File, Metrics, Standing, Tracker, give

__all__ = [
    "ODD_NAMES",
    "CapturingTracker",
    "RuleCase",
    "check_rule",
    "check_tracker",
    "example_batch",
    "load_cases",
    "series",
]


EXAMPLE_FAULT = 85
"""The step from which on the example's log-ratios grow."""


def example_batch(step: int) -> dict[str, Any]:
    """What `observe` takes, made up: 64 sequences of 24 tokens, half of them with a tool result in the middle.

    From step `EXAMPLE_FAULT` on the log-ratios after the tool result grow by 10 % a step; before it they stay as they
    are.
    """
    rng = np.random.default_rng(step)
    sampled = np.ones((64, 24), bool)
    sampled[:32, 8:12] = False  # what the tool said
    old = rng.uniform(-3, -0.1, sampled.shape)
    spread = np.full(sampled.shape, 0.02)
    spread[:32, 12:] *= math.exp(max(0, step - EXAMPLE_FAULT) * 0.1)
    new = old + spread * rng.normal(size=sampled.shape)
    return {"logprobs": new, "old_logprobs": old, "response_mask": np.ones_like(sampled), "model_mask": sampled}


class CapturingTracker(Tracker):
    """Keeps everything it is given."""

    name = "capturing"
    takes = (Metrics, *RECORDS, Finding, Notice, Event, File, End)
    local = True

    def __init__(self) -> None:
        self.own: dict[int, dict[str, float]] = {}
        """The trainer's metrics, by step."""
        self.records: dict[int, list[Record]] = {}
        self.findings: list[tuple[int, Finding]] = []
        self.notices: list[Notice] = []
        self.events: list[tuple[int, str]] = []
        self.files: dict[str, str] = {}
        self.summary: Summary | None = None
        self.tables: tuple[Table, ...] = ()

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        for entry in entries:
            if isinstance(entry, Metrics):
                self.own.setdefault(step, {}).update(entry.values)
                self.records.setdefault(step, [])
            elif isinstance(entry, Finding):
                self.findings.append((step, entry))
            elif isinstance(entry, Notice):
                self.notices.append(entry)
            elif isinstance(entry, Event):
                self.events.append((step, entry.text))
            elif isinstance(entry, File):
                self.files[entry.name] = entry.text
            elif isinstance(entry, End):
                self.summary, self.tables = entry.summary, tuple(entry.tables)
            elif isinstance(entry, RECORDS):
                self.records.setdefault(step, []).append(entry)

    def scalars(self, step: int) -> dict[str, float]:
        """The scalars of `step`, by name; of those that came twice the last."""
        return {record.name: record.value for record in self.records[step] if isinstance(record, Scalar)}


ODD_NAMES = ("diag/policy/tool:search/p95", "diag/policy/tool:a b.c-d_e/p95", "diag/policy/" + "long" * 40 + "/p95")
"""Names with everything in them that a slice's name may hold."""


def check_tracker(tracker: Tracker, scalars: Callable[[str], Mapping[int, float]] | None = None) -> list[str]:
    """What `tracker` does other than the contract of `Tracker` asks, one sentence each; empty if it keeps it all.

    Writes ten steps of everything there is, some of it twice as after a lost answer, and closes the tracker.

    Args:
        tracker: made for this, on a run of its own.
        scalars: gives, once the tracker is closed, what has arrived under a name, by step; None for a tracker that
            takes no numbers.
    """
    finding, trial = _finding(), _Trial(tracker)
    if not tracker.name or tracker.name == Tracker.name:
        trial.wrong.append(f"name: {tracker.name!r}, expected one of its own")
    trial.call("listen", partial(tracker.listen, None))
    trial.call("address", lambda: json.dumps(dict(tracker.address)))
    for name in ("config", "page", "source", "key"):
        trial.call(name, partial(getattr, tracker, name))
    for step in range(0, 20, 2):
        for part in _parts(step, finding):
            trial.write(step, *part)
        if tracker.flush() not in (True, False):
            trial.wrong.append("flush: expected True or False")
    table = Table("diag/slices", ("pair", "count", "note"), (("policy", 1, None), ("policy", None, "x")))
    summary = Summary("check", 20, 0, 19, (finding,), {"EVA002": (no_series("eval_score"),)}, ("NUM001",))
    trial.write(19, _time_line())
    trial.write(19, End(summary, (table,)))
    trial.call("flush", partial(tracker.flush, last=True))
    trial.call("close", tracker.close)
    if scalars is None:
        return trial.wrong
    for name in ("diag/policy/all/p95", *ODD_NAMES):
        expected = {step: step / 10 if name.endswith("all/p95") else 1.0 for step in range(0, 20, 2)}
        arrived = dict(scalars(name))
        same = arrived.keys() == expected.keys()
        if not (same and np.allclose([arrived[step] for step in expected], [*expected.values()])):
            trial.wrong.append(f"{name}: {arrived} arrived, expected {expected}")
    return trial.wrong


class _Trial:
    """Calls of a tracker, and what went wrong in them."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self.wrong = tracker, list[str]()

    def call(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # any error is to be reported
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")

    def write(self, step: int, *entries: Entry) -> None:
        """Write those of `entries` that the tracker takes."""
        what = f"step {step}: write: {type(entries[-1]).__name__}" if len(entries) == 1 else f"step {step}: write"
        self.call(what, lambda: give(self._tracker, step, entries))


def _parts(step: int, finding: Finding) -> list[list[Entry]]:
    """All that there is at `step`, in the parts in which it is written."""
    counts = np.array([3, 2, 0, 1])
    edges = np.array([0.0, 0.1, 0.2, 0.4, 1.0])
    tail = Histogram("diag/policy/text_only/hist", "policy", "text_only", counts, edges, counts)
    odd = [Scalar(name, 1.0) for name in ODD_NAMES]
    first: list[Entry] = [Metrics({"loss": math.nan, "reward": math.inf, "kl": 0.1})]
    first += [Scalar("diag/policy/all/p95", step / 10), *odd, tail]
    if step != 10:
        return [first]
    first += [Table("diag/worst_sequences", ("step", "tool"), ((10, "search"), (None, None))), _time_line()]
    notice = Notice(10, "warn", "POL001 all: a title", "A text.\n<b>**bold**</b> | a | cell")
    event, file = Event("new baseline: a reason"), File("context.json", "{}")
    return [first, [finding], [Standing((finding,))], [notice], [event], [file]]


def _time_line() -> Drawing:
    """The picture that comes with an alert."""
    curves = {"policy/post_tool/p95": {0: 0.1, 10: 0.4}}
    return Drawing(DECISION, Summary("x", 11, 0, 10, (_finding(),), {}, (), curves=curves))


def _finding() -> Finding:
    from tracker_diag.rules.loader import catalog

    rule = next(rule for rule in catalog() if rule.id == "POL001")
    reading = Reading("post_tool_tail_grows", "policy/post_tool/p95", holds=True, value=0.4, baseline=0.1, n=800)
    return Finding(rule, "policy", "post_tool", "firing", 4, 10, None, "p95 is <0.4> | **high**", (reading,))
