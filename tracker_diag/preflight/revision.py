"""A reward that is to be changed: the same samples, scored by the old definition and by the new one."""

from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, Flaw, judged, unchecked
from tracker_diag.preflight.rewards import array

NAME = "reward_revision"
WORSE = 0.02
"""Share of pairs of a solved and another sample that may be ordered worse than before: a choice."""

GIVE = "give rewards=... by the new definition, rewards_before=... of the same samples by the old one, and success=..."


def revision_check(rewards: Any, rewards_before: Any, success: Any) -> Check:
    """Whether the new reward orders solved samples before others as well as the old one; each (n,)."""
    new, old, solved = array("rewards", rewards), array("rewards_before", rewards_before), array("success", success)
    if not len(new) == len(old) == len(solved):
        raise BatchError("rewards_before", f"{len(old)} values", f"{len(new)}, as rewards has, and as many of success")
    known = np.isfinite(new) & np.isfinite(old) & np.isfinite(solved)
    right, wrong = known & (solved > 0.5), known & (solved <= 0.5)
    if not (right.any() and wrong.any()):
        return unchecked(NAME, "no solved samples, or no others", GIVE)
    before, after = (_ordered(values[right], values[wrong]) for values in (old, new))
    paid = int((new[wrong] > new[right].max()).sum())
    reason = f"a solved sample has more reward than another in {after:.1%} of pairs, {before:.1%} before the change"
    read = "read what is paid more than before and is not solved; a small change opens a new way to be paid"
    flaws: list[Flaw] = [
        (after < before - WORSE, reason, read),
        (paid, f"{paid} samples that are not solved have more reward than any solved one", read),
    ]
    return judged(NAME, reason, flaws, before=before, after=after)


def _ordered(right: Any, wrong: Any) -> float:
    """Share of pairs in which the first has more, ties being half."""
    ordered = np.sort(wrong)
    below, above = np.searchsorted(ordered, right, "left"), np.searchsorted(ordered, right, "right")
    return float(((below + above) / 2).mean() / len(wrong))
