"""The critic on one fixed rollout: whether it fits those returns at all."""

from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, failed, judged, unchecked
from tracker_diag.preflight.rewards import array

NAME = "critic_fit"
LEAST = 0.05
"""Explained variance below which a critic explains nothing: CRI001."""
LINEAR = 0.5
"""Explained variance of a line through the values, at which only scale or sign of a poor critic is wrong."""
FEWEST = 16

GIVE = "give returns=... of one rollout, and values=..., what the critic says after fitting them"


def critic_check(returns: Any, values: Any) -> Check:
    """How much of the variance of `returns` (n,) `values` (n,) explain: 1 − Var(returns − values) / Var(returns).

    Raises:
        BatchError: the lengths do not agree.
    """
    wanted, given = array("returns", returns), array("values", values)
    n = len(given)
    if n != len(wanted):
        raise BatchError("values", f"{n} rows", f"{len(wanted)}, as returns has")
    if bad := int((~np.isfinite(wanted + given)).sum()):
        do = "check bootstrap targets and terminal masks; a NaN in one of them is in all"
        return failed(NAME, f"{bad} of {n} rows are NaN or infinite", do)
    if n < FEWEST:
        return unchecked(NAME, f"{n} returns", f"give {FEWEST} returns at least")
    if not np.ptp(wanted):
        do = "give a rollout whose returns differ; if they never do, look at the reward first"
        return unchecked(NAME, f"all {n} returns are {wanted[0]:.3g}: there is nothing to explain", do)
    explained = float(1 - np.var(wanted - given) / np.var(wanted))
    correlation = float(np.corrcoef(given, wanted)[0, 1]) if np.ptp(given) else 0.0
    line = correlation**2
    reason = f"the critic explains {explained:.0%} of the variance of {n} returns"
    spread = f"the values spread by {given.std():.3g}, the returns by {wanted.std():.3g}"
    what = "sign" if correlation < 0 else "scale"
    target = f"look at the {what} of the value target: normalised in one place alone, or a cost in place of a reward"
    do = "check terminal masks and bootstrap targets, then the scale of the reward; only then raise its learning rate"
    poor = explained < LEAST
    flaws = [
        (poor and line >= LINEAR, f"{reason}, a line through its values {line:.0%}: {spread}", target),
        (poor, reason, do),
    ]
    return judged(NAME, reason, flaws, explained_variance=explained, of_a_line=line)
