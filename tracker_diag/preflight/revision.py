"""A reward that is to be changed: the same samples, scored by the old definition and by the new one."""

from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, Flaw, judged, unchecked
from tracker_diag.preflight.rewards import array, scored
from tracker_diag.samples.rewards import superiority

NAME = "reward_revision"
WORSE = 0.02
"""Share of pairs of a solved and another sample that may be ordered worse than before: a choice."""

GIVE = "give rewards=... by the new definition, rewards_before=... of the same samples by the old one, and success=..."


def revision_check(rewards: Any, rewards_before: Any, success: Any) -> Check:
    """Whether the new reward orders solved samples before others as well as the old one; each (n,)."""
    samples, old = scored(rewards, success), array("rewards_before", rewards_before)
    new, solved = samples["reward"], samples["success"]
    if len(old) != samples.n:
        raise BatchError("rewards_before", f"{len(old)} values", f"{samples.n}, as rewards has")
    known = np.isfinite(new) & np.isfinite(old) & np.isfinite(solved)
    right, wrong = known & (solved > 0.5), known & (solved <= 0.5)
    if not (right.any() and wrong.any()):
        return unchecked(NAME, "no solved samples, or no others", GIVE)
    before, after = (superiority(values[right], values[wrong]) for values in (old, new))
    paid = int((new[wrong] > new[right].max()).sum())
    reason = f"a solved sample has more reward than another in {after:.1%} of pairs, {before:.1%} before the change"
    read = "read what is paid more than before and is not solved; a small change opens a new way to be paid"
    flaws: list[Flaw] = [
        (after < before - WORSE, reason, read),
        (paid, f"{paid} samples that are not solved have more reward than any solved one", read),
    ]
    return judged(NAME, reason, flaws, before=before, after=after)
