"""Attribution: which cells carry the growth of a tail, from what each counts now and in the reference period."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from tracker_diag.stats.arrays import IntArray

FALSE = 0.05
"""Chance at most of naming any cell where none carries more than its share, as far as tokens are independent."""
ALIKE = 4
"""Tokens of one sequence are alike: as many count as one."""
MORE = 1.25
"""Times its share of the tokens that a cell has to carry of the growth, at least."""
FEWEST = 200
"""Tokens of the reference period of which a cell's own tail is known."""


@dataclass(frozen=True)
class Carrier:
    """A cell that carries more of a tail's growth than its share of the tokens. All are shares, in (0, 1]."""

    cell: str
    growth: float
    """Of the tokens that are beyond the limit and were not expected there."""
    tokens: float
    """Of the tokens of the cell's dimension."""
    least: float
    """Lower bound of `growth`."""

    def __str__(self) -> str:
        return f"{self.cell} carries {self.growth:.0%} of the growth with {self.tokens:.0%} of the tokens"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def carriers(cells: Mapping[str, tuple[IntArray, IntArray]], beyond: int, among: int) -> Sequence[Carrier]:
    """The cells of a dimension that carry more of the growth than their share of its tokens, largest first.

    What is expected of a cell beyond the limit is what it had there in the reference period; of a cell that is new,
    what all had. Bounds are Wilson's (JASA 22, 1927), held over all cells by Bonferroni.

    Args:
        cells: by name the counts (4098,) of |r| now and in the reference period.
        beyond: the first bin that is beyond the limit.
        among: how many cells are looked at altogether, of all dimensions.
    """
    now = {name: (int(n[beyond:].sum()), int(n.sum())) for name, (n, _) in cells.items()}
    then = {name: (int(n[beyond:].sum()), int(n.sum())) for name, (_, n) in cells.items()}
    tokens, before = sum(n for _, n in now.values()), sum(n for _, n in then.values())
    usual = sum(k for k, _ in then.values()) / before if before else math.nan
    rate = {name: k / n if n >= FEWEST else usual for name, (k, n) in then.items()}
    growth = {name: max(k - n * rate[name], 0.0) for name, (k, n) in now.items()}
    whole = sum(growth.values())
    if not whole > 0:
        return ()
    z = NormalDist().inv_cdf(1 - FALSE / among)
    candidates = [
        Carrier(name, growth[name] / whole, n / tokens, max(n * (_least(k, n, z) - rate[name]), 0.0) / whole)
        for name, (k, n) in now.items()
        if n
    ]
    surely = (carrier for carrier in candidates if carrier.least > MORE * carrier.tokens)
    return sorted(surely, key=lambda carrier: -carrier.growth)


def _least(k: int, n: int, z: float) -> float:
    """Wilson's lower bound of a share of which `k` of `n` were seen, `ALIKE` of them as good as one."""
    n_alone, p = n / ALIKE, k / n
    spread = z * math.sqrt(p * (1 - p) / n_alone + z * z / (4 * n_alone * n_alone))
    return max((p + z * z / (2 * n_alone) - spread) / (1 + z * z / n_alone), 0.0)
