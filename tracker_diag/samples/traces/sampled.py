"""What traces come to: sample records, the table of tools, and what to write back to each trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.rules.findings import Finding
from tracker_diag.samples.columns import NUMBERS
from tracker_diag.samples.marks import marks
from tracker_diag.samples.messages import answer
from tracker_diag.samples.records import as_number
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.traces.trace import Trace

FEWEST_FOR_P95 = 20
"""Calls that a p95 is told of."""
RULES_TAG, MARKS_TAG = "diag.rules", "diag.marks"


def record_of(trace: Trace) -> dict[str, Any]:
    """The sample record of a trace, in JSON values; what is not known is left out."""
    known = {"id": trace.id, "run": trace.run, "step": trace.step, "time": trace.time, "seconds": trace.seconds}
    texts = {
        "prompt": trace.prompt or None,
        "completion": trace.completion or None,
        "text": answer(trace.completion) if trace.completion else None,
        "calls": trace.calls,
        "turns": trace.turns or None,
    }
    given = {key: _plain(key, value) for key, value in trace.given.items()}
    return {key: value for key, value in {**known, **texts, **given}.items() if value is not None}


@dataclass(frozen=True)
class ToolRow:
    """How the calls of one tool went, over all samples."""

    tool: str
    calls: int
    failed: float
    """Shares of the calls, as the next three; None where no call tells."""
    timeout: float
    malformed: float
    truncated: float | None
    p50: float | None
    """Seconds that a call took."""
    p95: float | None
    """None of less than 20 calls."""
    tokens: float | None
    """Mean of the results."""


def tool_rows(samples: Samples) -> list[ToolRow]:
    """One row a tool, the one called most on top."""
    calls = samples.calls
    order = np.argsort(calls.tool, kind="stable")
    bounds = np.searchsorted(calls.tool[order], np.arange(len(calls.names) + 1))
    rows: list[ToolRow] = []
    for i, name in enumerate(calls.names):
        chosen = order[bounds[i] : bounds[i + 1]]
        seconds, cut, tokens = (_known(column[chosen]) for column in (calls.seconds, calls.truncated, calls.tokens))
        rows.append(
            ToolRow(
                name,
                len(chosen),
                float(calls.failed[chosen].mean()),
                float(calls.timeout[chosen].mean()),
                float(calls.malformed[chosen].mean()),
                float(cut.mean()) if len(cut) else None,
                float(np.quantile(seconds, 0.5)) if len(seconds) else None,
                float(np.quantile(seconds, 0.95)) if len(seconds) >= FEWEST_FOR_P95 else None,
                float(tokens.mean()) if len(tokens) else None,
            )
        )
    return sorted(rows, key=lambda row: -row.calls)


def tags(traces: Sequence[Trace], samples: Samples, findings: Sequence[Finding]) -> dict[str, dict[str, str | None]]:
    """Tags of each trace, by its id: the rules that fired on its step and tools, and what is odd about it itself.

    None takes away what an earlier time has left.
    """
    fired = [finding for finding in findings if finding.fired is not None]
    by_trace: dict[str, dict[str, str | None]] = {}
    for trace, own in zip(traces, marks(samples), strict=True):
        rules = dict.fromkeys(finding.rule.id for finding in fired if _concerns(finding, trace))
        tag = {RULES_TAG: ", ".join(rules) or None, MARKS_TAG: "; ".join(own) or None}
        by_trace[trace.id] = {key: value for key, value in tag.items() if value or key in trace.tagged}
    return by_trace


def _plain(name: str, value: Any) -> Any:
    """Trackers keep numbers as texts; what is none stays as it is, to be counted."""
    number = as_number(value) if name in NUMBERS else None
    return value if number is None else number


def _concerns(finding: Finding, trace: Trace) -> bool:
    """Whether `trace` is of a step in which `finding` held, and called its tool if it is about one."""
    if trace.step is None or finding.onset > trace.step:
        return False
    if finding.resolved is not None and trace.step >= finding.resolved:
        return False
    dimension, _, tool = finding.slice.partition(":")
    return dimension != "tool" or any(call.get("name") == tool for call in trace.calls)


def _known(values: "np.typing.NDArray[np.float64]") -> "np.typing.NDArray[np.float64]":
    return values[np.isfinite(values)]
