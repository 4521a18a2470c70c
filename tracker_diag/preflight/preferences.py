"""Preference pairs before training: whether the better answer is the chosen one."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, judged, unchecked

ORDER = "pairs_order"

WRONG = 0.5
"""Share of pairs in the wrong order from which on the two columns are swapped, and not the labels noisy."""

GIVE = "give preferences=..., a list of mappings with chosen, rejected, chosen_score and rejected_score"


def order_check(preferences: Sequence[Mapping[str, Any]]) -> Check:
    """Compare the scores of chosen and rejected answers.

    Raises:
        BatchError: a pair without chosen or rejected.
    """
    for i, pair in enumerate(preferences):
        if missing := [name for name in ("chosen", "rejected") if pair.get(name) is None]:
            raise BatchError(f"preferences[{i}]", f"a pair without {missing[0]}", "chosen and rejected in each")
    scores = [(pair.get("chosen_score"), pair.get("rejected_score")) for pair in preferences]
    known = [(float(a), float(b)) for a, b in scores if a is not None and b is not None and a != b]
    if not known:
        return unchecked(ORDER, "nothing says which answer is better", GIVE)
    wrong = sum(not a > b for a, b in known)
    reason = f"rejected has the higher score in {wrong} of {len(known)} pairs"
    flaws = [(wrong > WRONG * len(known), reason, "swap the two columns, or the sign of the score")]
    return judged(ORDER, reason, flaws, wrong=wrong)
