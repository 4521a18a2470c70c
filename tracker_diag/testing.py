"""For tests, ours and yours: series in short notation, rules held against them, a tracker that keeps all."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracker_diag.metrics.reasons import no_series
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.curves import Panel
from tracker_diag.report.picture import Bars, Picture
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.cases import RuleCase, check_rule, load_cases, series
from tracker_diag.rules.findings import Finding, Reading
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.tracker import Tracker

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


def example_batch(step: int) -> dict[str, Any]:
    """What `observe` takes, made up: 64 sequences of 24 tokens, half of them with a tool result in the middle.

    From step 75 on the log-ratios after the tool result grow by 10 % a step; before it they stay as they are.
    """
    rng = np.random.default_rng(step)
    sampled = np.ones((64, 24), bool)
    sampled[:32, 8:12] = False  # what the tool said
    old = rng.uniform(-3, -0.1, sampled.shape)
    spread = np.full(sampled.shape, 0.02)
    spread[:32, 12:] *= math.exp(max(0, step - 75) * 0.1)
    new = old + spread * rng.normal(size=sampled.shape)
    return {"logprobs": new, "old_logprobs": old, "response_mask": np.ones_like(sampled), "model_mask": sampled}


class CapturingTracker(Tracker):
    """Keeps everything it is given."""

    name = "capturing"
    local = True

    def __init__(self) -> None:
        self.own: dict[int, dict[str, float]] = {}
        """The trainer's metrics, by step."""
        self.records: dict[int, list[Record]] = {}
        self.findings: list[tuple[int, Finding]] = []
        self.notices: list[Notice] = []
        self.events: list[tuple[int, str]] = []
        self.summary: Summary | None = None
        self.tables: tuple[Table, ...] = ()

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.own.setdefault(step, {}).update(metrics)

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        self.records.setdefault(step, []).extend(records)

    def finding(self, step: int, finding: Finding) -> None:
        self.findings.append((step, finding))

    def alert(self, step: int, notice: Notice) -> None:
        self.notices.append(notice)

    def event(self, step: int, event: str) -> None:
        self.events.append((step, event))

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        self.summary, self.tables = summary, tuple(tables)

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
    finding = _finding()
    wrong = [*_declared(tracker), *(found for step in range(0, 20, 2) for found in _written(tracker, step, finding))]
    tracker.flush(last=True)
    table = Table("diag/slices", ("pair", "count", "note"), (("policy", 1, None), ("policy", None, "x")))
    summary = Summary("check", 20, 0, 19, (finding,), {"EVA002": (no_series("eval_score"),)}, ("NUM001",))
    wrong += _raised("close", partial(tracker.close, summary, (table,)))
    if scalars is not None:
        for name in ("diag/policy/all/p95", *ODD_NAMES):
            expected = {step: step / 10 if name.endswith("all/p95") else 1.0 for step in range(0, 20, 2)}
            found = dict(scalars(name))
            same = found.keys() == expected.keys() and np.allclose([found[s] for s in expected], [*expected.values()])
            if not same:
                wrong.append(f"{name}: {found} arrived, expected {expected}")
    return wrong


def _declared(tracker: Tracker) -> list[str]:
    wrong = []
    if not tracker.name or tracker.name == Tracker.name:
        wrong.append(f"name: {tracker.name!r}, expected one of its own")
    wrong += _raised("address", lambda: json.dumps(dict(tracker.address)))
    if tracker.temporary(ConnectionError("down")) not in (True, False):
        wrong.append("temporary: expected True or False")
    return wrong


def _written(tracker: Tracker, step: int, finding: Finding) -> list[str]:
    """What goes wrong when all that there is at `step` is written."""
    counts = np.array([3, 2, 0, 1])
    tail = Histogram(
        "diag/policy/text_only/hist", "policy", "text_only", counts, np.array([0.0, 0.1, 0.2, 0.4, 1.0]), counts
    )
    records: list[Record] = [Scalar("diag/policy/all/p95", step / 10), *(Scalar(name, 1.0) for name in ODD_NAMES), tail]
    calls = [
        partial(tracker.metrics, step, {"loss": math.nan, "reward": math.inf, "kl": 0.1}),
        partial(tracker.log, step, records, 1.7e9 + step),
        partial(tracker.log, step + 1, [], 1.7e9 + step),
    ]
    if step == 10:
        records += [
            Table("diag/worst_sequences", ("step", "tool"), ((10, "search"), (None, None))),
            _time_line(),
        ]
        notice = Notice(10, "warn", "POL001 all: a title", "A text.\n<b>**bold**</b> | a | cell")
        calls += [
            partial(tracker.finding, 10, finding),
            partial(tracker.standing, 10, (finding,)),
            partial(tracker.alert, 10, notice),
            partial(tracker.event, 10, "new baseline: a reason"),
        ]
    wrong = [found for call in calls for found in _raised(f"step {step}: {call.func.__name__}", call)]
    if tracker.flush() not in (True, False):
        wrong.append("flush: expected True or False")
    return wrong


def _raised(what: str, call: Callable[[], object]) -> list[str]:
    try:
        call()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is to be told
        return [f"{what}: {type(error).__name__}: {error}"]
    return []


def _time_line() -> Drawing:
    """The picture that comes with an alert."""
    curves = [Panel("reward", {"": {0: 0.1, 10: 0.5}}), Panel("policy p95", {"post_tool": {0: 0.1, 10: 0.4}})]
    lanes = [Bars("cause", "a title", "POL001 post_tool", "warn", [(4, 10, 10)])]
    return Picture("a title, on post_tool, from step 4", "p95 is 0.4", 0, 10, [4], [], lanes, curves).drawing()


def _finding() -> Finding:
    from tracker_diag.rules.loader import catalog

    rule = next(rule for rule in catalog() if rule.id == "POL001")
    reading = Reading("post_tool_tail_grows", "policy/post_tool/p95", holds=True, value=0.4, baseline=0.1, n=800)
    return Finding(rule, "policy", "post_tool", "firing", 4, 10, None, "p95 is <0.4> | **high**", (reading,))
