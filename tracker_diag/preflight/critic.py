"""The critic on one fixed rollout: whether it fits those returns at all."""

from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, failed, judged, unchecked
from tracker_diag.preflight.rewards import array
from tracker_diag.stats.arrays import Float64Array

NAME = "critic_fit"
LEAST = 0.05
"""Explained variance below which a critic explains nothing: CRI001."""
LINEAR = 0.5
"""Explained variance of a line through the values, at which only scale or sign of a poor critic is wrong."""
FEWEST = 16

GIVE = (
    "give returns=... of one rollout, and values=..., what the critic says after fitting them, or features=... (n, d)"
)


def critic_check(returns: Any, values: Any = None, features: Any = None) -> Check:
    """How much of the variance of `returns` (n,) `values` (n,) explain, or a line through `features` (n, d).

    The explained variance is 1 − Var(returns − prediction) / Var(returns); For the features' least-squares fit it is
    adjusted for their number d, as n features fit any n numbers.

    Raises:
        BatchError: the lengths do not agree.
    """
    wanted = array("returns", returns)
    if values is None and features is None:
        return unchecked(NAME, "returns without values or features", GIVE)
    columns = array("values", values)[:, None] if values is not None else array("features", features, dimensions=2)
    n, d = columns.shape
    if n != len(wanted):
        field = "values" if values is not None else "features"
        raise BatchError(field, f"{n} rows", f"{len(wanted)}, as returns has")
    if bad := int((~np.isfinite(np.column_stack([wanted, columns]))).any(1).sum()):
        do = "check bootstrap targets and terminal masks; a NaN in one of them is in all"
        return failed(NAME, f"{bad} of {n} rows are NaN or infinite", do)
    if n < FEWEST or n <= d + 1:
        return unchecked(NAME, f"{n} returns for {d} columns", f"give {max(FEWEST, d + 2)} returns at least")
    if not np.ptp(wanted):
        do = "give a rollout whose returns differ; if they never do, look at the reward first"
        return unchecked(NAME, f"all {n} returns are {wanted[0]:.3g}: there is nothing to explain", do)
    if values is None:
        explained = 1 - (1 - _explained(wanted, _fitted(columns, wanted))) * (n - 1) / (n - d - 1)
        reason = f"a least-squares fit of {d} features explains {explained:.0%} of the variance of {n} returns"
        do = "see whether observations and returns belong to the same steps, and what the features leave out"
        return judged(NAME, reason, [(explained < LEAST, reason, do)], explained_variance=explained)
    given = columns[:, 0]
    explained = _explained(wanted, given)
    line = _explained(wanted, _fitted(columns, wanted)) if np.ptp(given) else 0.0
    reason = f"the critic explains {explained:.0%} of the variance of {n} returns"
    spread = f"the values spread by {given.std():.3g}, the returns by {wanted.std():.3g}"
    what = "sign" if line and np.corrcoef(given, wanted)[0, 1] < 0 else "scale"
    target = f"look at the {what} of the value target: normalised in one place alone, or a cost in place of a reward"
    do = "check terminal masks and bootstrap targets, then the scale of the reward; only then raise its learning rate"
    poor = explained < LEAST
    flaws = [
        (poor and line >= LINEAR, f"{reason}, a line through its values {line:.0%}: {spread}", target),
        (poor, reason, do),
    ]
    return judged(NAME, reason, flaws, explained_variance=explained, of_a_line=line)


def _explained(wanted: Float64Array, predicted: Float64Array) -> float:
    return float(1 - np.var(wanted - predicted) / np.var(wanted))


def _fitted(columns: Float64Array, wanted: Float64Array) -> Float64Array:
    """The least-squares fit of a constant and `columns`."""
    design = np.column_stack([np.ones(len(columns)), columns])
    weights, *_ = np.linalg.lstsq(design, wanted, rcond=None)
    return np.asarray(design @ weights, dtype=np.float64)
