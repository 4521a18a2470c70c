"""What reaches the optimiser: the gradient of the clipped loss, by slice, side of the clip range and sign.

The loss of PPO and GRPO for each token is −min(w A, clip(w, 1 − low, 1 + high) A). There w = exp(log π − log π_old)
(Schulman et al. 2017). Its derivative by the token's log π is −w A, or 0 if the minimum is the clipped term. That is so
if A > 0 and w > 1 + high, or A < 0 and w < 1 − low. So |w A| over the other tokens is what they pull at the policy
with, each on its own. A trainer averages it over all tokens (DAPO, verl's token-mean; Dr. GRPO by a constant). Or it
averages over each sequence first (GRPO), so a token of a short sequence weighs more.
"""

import math

import numpy as np

from tracker_diag.stats.arrays import Array, Float64Array, float64, namespace

BELOW, INSIDE, ABOVE = range(3)
"""Of the clip range."""
NEGATIVE, POSITIVE = range(2)
"""Advantages."""
SHAPE = (2, 3, 2)
"""Number of tokens and sum of |w A|, by side, by sign of the advantage."""
SIZE = 13
"""Those twelve, and the sum of |w A| of unclipped tokens over the number of tokens of their sequence."""
MOST = 50.0
"""Log-ratios beyond this count as this, so that no weight is beyond floats."""


def gradient_sums(
    r: Array, advantages: Array, row: Array, clip: tuple[float, float], applied: Array | None = None, *,
    rows: int, share: Array,
) -> Array:  # fmt: skip
    """(rows, 13) float64, of `SHAPE` and one more, over the tokens of each row; they add up over parts.

    Args:
        r: (N,) log-ratios of the policy, in nats.
        advantages: (N,) floats; a token with 0, or with NaN or inf in any of the two, is in no cell.
        row: (N,) integers; a token whose row is not below `rows` is in none.
        clip: how far below and above 1 the ratio is clipped.
        applied: (N,) weights that the loss of each token is multiplied by, as those against a mismatch.
        rows: how many there are.
        share: (N,) 1 over the number of model tokens of each token's sequence.
    """
    xp = namespace(r)
    r, pull = float64(r), abs(float64(advantages))
    if applied is not None:
        pull = pull * abs(float64(applied))
    counted = (row < rows) & xp.isfinite(r) & xp.isfinite(pull) & (advantages != 0)
    low, high = log_limits(clip)
    side = (r >= low) * 1 + (r > high) * 1
    everything = xp is np and counted.all()  # on a host it is known, and saves three passes

    def only(values: Array, otherwise: float) -> Array:
        return values if everything else xp.where(counted, values, otherwise)

    cell = only((row * 3 + side) * 2 + (advantages > 0) * 1, rows * 6)
    mass = only(pull * xp.exp(xp.clip(only(r, 0.0), -MOST, MOST)), 0.0)
    summed = [_summed(cell, values, rows * 6 + 1)[:-1].reshape(rows, 6) for values in (counted, mass, mass * share)]
    by_sequence = summed[2].sum(1) - summed[2][:, 2 * ABOVE + POSITIVE] - summed[2][:, 2 * BELOW + NEGATIVE]
    return xp.concatenate([summed[0], summed[1], by_sequence[:, None]], 1)


def log_limits(clip: tuple[float, float]) -> tuple[float, float]:
    """The log-ratios at which clipping begins, below and above."""
    return math.log1p(-clip[0]), math.log1p(clip[1])


def _summed(cell: Array, values: Array, cells: int) -> Array:
    """(cells,) float64 sums of `values` by `cell`; on a device nothing is read back."""
    if isinstance(cell, np.ndarray):
        return (
            np.bincount(cell, values, cells) if values.dtype != np.bool_ else np.bincount(cell, minlength=cells) * 1.0
        )
    xp = namespace(cell)
    return xp.zeros(cells, dtype=xp.float64, device=cell.device).index_add_(0, cell.long(), values.double())


def kept(sums: Float64Array, *, by_sequence: bool = False) -> float:
    """Σ|w A| of the tokens that are not clipped, of `sums` (13,); or with each sequence alike, whatever its length."""
    if by_sequence:
        return float(sums[-1])
    mass = sums[:-1].reshape(SHAPE)[1]
    return float(mass.sum() - mass[ABOVE, POSITIVE] - mass[BELOW, NEGATIVE])


def clipped_away(sums: Float64Array) -> float:
    """The part of Σ|w A| that clipping takes away; NaN where there is none."""
    total = float(sums[6:-1].sum())
    return 1 - kept(sums) / total if total > 0 else math.nan
