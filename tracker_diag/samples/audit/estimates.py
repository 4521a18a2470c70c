"""Estimates with intervals that hold for samples in groups, by a jackknife over blocks of whole groups; and pairs.

Of two answers to one prompt, the better one is to have more reward. Longer answers are often the better ones, and a
model that counts tokens is then right as often. So the share is given with lengths balanced too: the mean of that over
pairs whose better answer is longer, and that over pairs in which it is shorter. What such a benchmark of reward models
looks like: Lambert et al. 2024, "RewardBench", arXiv 2403.13787.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_diag.samples.records import Record
from tracker_diag.samples.rewards import superiority
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray

BLOCKS = 50
FEWEST = 30
"""Samples below which nothing is estimated."""
FEWEST_OF_A_KIND = 10
"""Samples of a kind, such as refusals, below which they are not held against the others."""
T95 = 2.01
"""The 97.5 % quantile of Student's t with 49 degrees of freedom."""


@dataclass(frozen=True)
class Estimate:
    """A statistic, its 95 % interval, and how many samples it rests on."""

    value: float
    low: float
    high: float
    n: int


def blocks_of(groups: npt.NDArray[Any]) -> IntArray:
    """(n,) the block of each sample: whole groups are dealt into 50 blocks, as samples of a group are alike."""
    _, place = np.unique(groups, return_inverse=True)
    blocks: IntArray = np.random.default_rng(0).permutation(int(place.max(initial=0)) + 1)[place] % BLOCKS
    return blocks


def estimate(
    statistic: Callable[[BoolArray], float | None],
    rows: BoolArray,
    blocks: IntArray,
    ends: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate | None:
    """`statistic` of the samples in `rows`, with an interval; None if it cannot be computed.

    The delete-a-group jackknife: Kott, "Delete-a-group jackknife", Journal of Official Statistics 17 (2001).

    Args:
        statistic: of the samples that a mask selects; None where it is not defined.
        ends: the least and the largest value that it can have.
    """
    value = statistic(rows)
    if value is None or rows.sum() < FEWEST:
        return None
    names = np.unique(blocks[rows])
    without = [statistic(rows & (blocks != name)) for name in names]
    known = np.array([estimated for estimated in without if estimated is not None])
    if len(known) < max(2, len(names) - 1):
        return None
    m = len(known)
    spread = T95 * float(np.sqrt((m - 1) / m * ((known - known.mean()) ** 2).sum()))
    return Estimate(float(value), max(ends[0], value - spread), min(ends[1], value + spread), int(rows.sum()))


def rank_correlation(first: Float64Array, other: Float64Array, blocks: IntArray) -> Estimate | None:
    """Spearman's rank correlation where both are known; None where one of them does not vary."""

    def spearman(rows: BoolArray) -> float | None:
        a, b = first[rows], other[rows]
        if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
            return None
        return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])

    return estimate(spearman, np.isfinite(first) & np.isfinite(other), blocks, (-1.0, 1.0))


def _ranks(values: Float64Array) -> Float64Array:
    """(n,) the rank of each value, the mean one of equal values."""
    _, place, n = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float64Array = (np.cumsum(n) - (n - 1) / 2)[place]
    return ranks


def advantage_of(kind: Float64Array, score: Float64Array, blocks: IntArray) -> Estimate | None:
    """How likely a sample of the `kind` scores higher than another one: 0.5 if it makes no difference.

    None with fewer than ten of the kind or of the others.
    """

    def parts(rows: BoolArray) -> tuple[Float64Array, Float64Array]:
        return score[rows & (kind > 0)], score[rows & (kind <= 0)]

    def area(rows: BoolArray) -> float | None:
        return superiority(*parts(rows)) if all(map(len, parts(rows))) else None

    both = np.isfinite(score) & np.isfinite(kind)
    enough = min(map(len, parts(both))) >= FEWEST_OF_A_KIND
    return estimate(area, both, blocks, (0.0, 1.0)) if enough else None


def mean(values: Float64Array, rows: BoolArray, blocks: IntArray) -> Estimate | None:
    """The mean of `values` where they are known."""

    def average(kept: BoolArray) -> float | None:
        return float(values[kept].mean()) if kept.any() else None

    return estimate(average, rows & np.isfinite(values), blocks)


def beyond(score: Float64Array, label: Float64Array) -> Float64Array:
    """What of `score` its `label` does not explain: the distance from the mean of all samples with that label.

    A label of many values is cut into ten parts of equal size. NaN where the label is not known; where no label is
    known at all, the score itself.
    """
    known = np.isfinite(label) & np.isfinite(score)
    if not known.any():
        return score
    levels, place = np.unique(label[known], return_inverse=True)
    if len(levels) > 10:
        place = np.searchsorted(np.quantile(label[known], np.linspace(0.1, 0.9, 9)), label[known])
    mean_of = np.bincount(place, score[known]) / np.maximum(1, np.bincount(place))
    shares = np.full(len(score), np.nan)
    shares[known] = score[known] - mean_of[place]
    return shares


HALVES = ("chosen", "rejected")


def answers(records: Sequence[Record]) -> Iterator[Record]:
    """The records, of which each with `chosen` and `rejected` becomes two answers to one prompt.

    Their scores, `chosen_score` and `rejected_score`, are the reward that is judged; `success` says which is chosen.
    """
    for number, record in enumerate(records):
        if not all(record.get(half) is not None for half in HALVES):
            yield record
            continue
        rest = {name: value for name, value in record.items() if name.partition("_")[0] not in HALVES}
        for half in HALVES:
            own = {"completion": record[half], "reward": record.get(f"{half}_score"), "success": half == "chosen"}
            length = record.get(f"{half}_length")
            yield {"group": number} | rest | own | ({} if length is None else {"length": length})


def pairwise(samples: Samples, label: Float64Array, blocks: IntArray) -> dict[str, Estimate]:
    """How often the better answer of a pair has more reward, ties being half: `all`, `balanced`, `longer`, `shorter`.

    Args:
        label: (n,) says which answer of a group is better; equal labels and NaN make no pair.
        blocks: (n,) of the jackknife, in which a group is whole.
    """
    better, worse = _pairs(samples["group"], label, samples["reward"])
    won = np.sign(samples["reward"][better] - samples["reward"][worse]) / 2 + 0.5
    longer = np.sign(samples["length"][better] - samples["length"][worse])
    of_pair = blocks[better]

    def share(rows: BoolArray) -> float | None:
        return float(won[rows].mean()) if rows.any() else None

    def balanced(rows: BoolArray) -> float | None:
        long, short = share(rows & (longer > 0)), share(rows & (longer < 0))
        return None if long is None or short is None else (long + short) / 2

    shares = {
        "all": estimate(share, np.ones(len(won), dtype=bool), of_pair, (0.0, 1.0)),
        "balanced": estimate(balanced, longer != 0, of_pair, (0.0, 1.0)),
        "longer": estimate(share, longer > 0, of_pair, (0.0, 1.0)),
        "shorter": estimate(share, longer < 0, of_pair, (0.0, 1.0)),
    }
    return {name: known for name, known in shares.items() if known is not None}


def _pairs(group: Float64Array, label: Float64Array, reward: Float64Array) -> tuple[IntArray, IntArray]:
    """Places of the better and of the worse answer of each pair within a group."""
    known = np.flatnonzero(np.isfinite(group) & np.isfinite(label) & np.isfinite(reward))
    order = known[np.argsort(group[known], kind="stable")]
    better, worse = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        first, other = np.nonzero(label[rows][:, None] > label[rows][None, :])
        better.append(rows[first])
        worse.append(rows[other])
    return np.concatenate(better), np.concatenate(worse)
