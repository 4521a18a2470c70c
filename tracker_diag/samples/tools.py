"""Tool calls of a step, over all tools and for each: how often, how well, how fast."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from tracker_diag.samples.calls import Calls
from tracker_diag.samples.rewards import known, means
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import BoolArray, Float64Array

FEWEST_EPISODES = 2
"""Episodes that the mean reward after a failed or a working call is taken of."""
FEWEST_FOR_P95 = 20
"""Calls of which there is a p95."""
RATES = {
    "tool_failure_rate": "failed", "tool_timeouts": "timeout", "tool_seconds": "seconds",
    "tool_result_tokens": "tokens", "tool_truncated_share": "truncated",
}  # fmt: skip
"""Names of series, and the field of calls that each is the mean of."""


def tool_aggregates(samples: Samples, keys: Mapping[str, str], essential: Collection[str]) -> dict[str, float]:
    """What the calls say.

    Args:
        keys: tools that have series of their own, and the name in those; the others count in the totals alone.
        essential: tools that were declared so, by their name in series.
    """
    calls = samples.calls
    episodes = int(np.isfinite(samples["calls"]).sum())
    if not episodes:
        return {}
    values = {"tool_calls": len(calls) / episodes} | _rates(calls, np.ones(len(calls), dtype=bool))
    if len(calls):
        values["malformed_call_rate"] = float(calls["malformed"].mean())
        values["repeated_call_share"] = float(calls["repeated"].mean())
    for tool, key in keys.items():
        its = calls["tool"] == (calls.names.index(tool) if tool in calls.names else -1)
        values[f"tool_calls:{key}"] = float(its.sum()) / episodes
        values |= {f"{name}:{key}": rate for name, rate in _rates(calls, its).items()}
        if len(calls):
            values[f"tool_share:{key}"] = float(its.mean())
    if len(calls) and essential:
        shares = {key: values.get(f"tool_share:{key}", 0.0) for key in essential}
        values |= {f"essential_tool_share:{key}": share for key, share in shares.items()}
        values["essential_tool_share"] = min(shares.values())
    return values | _recovered(calls) | _reward_after(calls, samples["reward"])


def _rates(calls: Calls, chosen: BoolArray) -> dict[str, float]:
    """Of the `chosen` calls; what is not known of any is left out."""
    return means({name: calls[field][chosen] for name, field in RATES.items()})


def _recovered(calls: Calls) -> dict[str, float]:
    """Of the failed calls, those after which a later one of their episode worked."""
    failed = np.flatnonzero(calls["failed"])
    if not len(failed):
        return {}
    last = np.full(int(calls["sequence"].max()) + 1, -1)  # place of the last call of each sequence that worked
    worked = np.flatnonzero(calls["failed"] == 0)
    last[calls["sequence"][worked]] = worked  # of several the last counts, as they come in order
    return {"recovery_rate": float((last[calls["sequence"][failed]] > failed).mean())}


def _reward_after(calls: Calls, reward: Float64Array) -> dict[str, float]:
    """Mean reward of the episodes whose last call failed, and of those whose last call worked."""
    last = np.diff(calls["sequence"], append=-1) != 0
    rewards, failed = reward[calls["sequence"][last]], calls["failed"][last] > 0
    after = {"reward_after_tool_failure": rewards[failed], "reward_after_tool_success": rewards[~failed]}
    return means(after, FEWEST_EPISODES)


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
    rows: list[ToolRow] = []
    for i, name in enumerate(samples.calls.names):
        its = samples.calls.rows[samples.calls["tool"] == i]
        seconds, cut, tokens = (known(its[field]) for field in ("seconds", "truncated", "tokens"))
        failed, timeout, malformed = (float(its[field].mean()) for field in ("failed", "timeout", "malformed"))
        p50 = float(np.median(seconds)) if len(seconds) else None
        p95 = float(np.quantile(seconds, 0.95)) if len(seconds) >= FEWEST_FOR_P95 else None
        truncated, size = (float(values.mean()) if len(values) else None for values in (cut, tokens))
        rows.append(ToolRow(name, len(its), failed, timeout, malformed, truncated, p50, p95, size))
    return sorted(rows, key=lambda row: -row.calls)
