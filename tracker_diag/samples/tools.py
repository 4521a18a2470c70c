"""Tool calls of a step, over all tools and for each: how often, how well, how fast."""

from collections.abc import Collection, Mapping

import numpy as np

from tracker_diag.samples.calls import Calls
from tracker_diag.samples.rewards import known
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import Float64Array

FEWEST_EPISODES = 2
"""Episodes that the mean reward after a failed or a working call is taken of."""


def tool_aggregates(samples: Samples, keys: Mapping[str, str], essential: Collection[str]) -> dict[str, float]:
    """What the calls tell.

    Args:
        keys: tools that have series of their own, and the name in those; the others count in the totals alone.
        essential: tools that were declared so, by their name in series.
    """
    calls = samples.calls
    episodes = int(np.isfinite(samples["calls"]).sum())
    if not episodes:
        return {}
    found = {"tool_calls": len(calls.sequence) / episodes}
    found |= _rates(calls, np.ones(len(calls.sequence), dtype=bool))
    if len(calls.sequence):
        found["malformed_call_rate"] = float(calls.malformed.mean())
        found["repeated_call_share"] = float(calls.repeated.mean())
    for tool, key in keys.items():
        of = calls.tool == (calls.names.index(tool) if tool in calls.names else -1)
        found[f"tool_calls:{key}"] = float(of.sum()) / episodes
        found |= {f"{name}:{key}": value for name, value in _rates(calls, of).items()}
        if len(of):
            found[f"tool_share:{key}"] = float(of.mean())
    if len(calls.sequence) and essential:
        shares = {key: found.get(f"tool_share:{key}", 0.0) for key in essential}
        found |= {f"essential_tool_share:{key}": share for key, share in shares.items()}
        found["essential_tool_share"] = min(shares.values())
    return found | _recovered(calls) | _reward_after(calls, samples["reward"])


def _rates(calls: Calls, of: "np.typing.NDArray[np.bool_]") -> dict[str, float]:
    """Of the calls `of`; a time that is not known of any is left out."""
    if not of.any():
        return {}
    found = {"tool_failure_rate": float(calls.failed[of].mean()), "tool_timeouts": float(calls.timeout[of].mean())}
    for name, values in (
        ("tool_seconds", calls.seconds), ("tool_result_tokens", calls.tokens), ("tool_truncated_share", calls.truncated)
    ):  # fmt: skip
        if len(some := known(values[of])):
            found[name] = float(some.mean())
    return found


def _recovered(calls: Calls) -> dict[str, float]:
    """Of the failed calls, those after which a later one of their episode worked."""
    failed = np.flatnonzero(calls.failed)
    if not len(failed):
        return {}
    last = np.full(int(calls.sequence.max()) + 1, -1)  # place of the last call of each sequence that worked
    worked = np.flatnonzero(calls.failed == 0)
    last[calls.sequence[worked]] = worked  # of several the last counts, as they come in order
    return {"recovery_rate": float((last[calls.sequence[failed]] > failed).mean())}


def _reward_after(calls: Calls, reward: Float64Array) -> dict[str, float]:
    """Mean reward of the episodes whose last call failed, and of those whose last call worked."""
    last = np.append(calls.sequence[1:] != calls.sequence[:-1], True) if len(calls.sequence) else np.zeros(0, bool)
    rewards, failed = reward[calls.sequence[last]], calls.failed[last] > 0
    found: dict[str, float] = {}
    for name, of in (("reward_after_tool_failure", failed), ("reward_after_tool_success", ~failed)):
        if len(some := known(rewards[of])) >= FEWEST_EPISODES:
            found[name] = float(some.mean())
    return found
