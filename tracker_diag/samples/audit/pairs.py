"""A reward model on pairs: of two answers to one prompt, how often the better one has more reward.

Longer answers are often the better ones, and a model that counts tokens is then right as often. So the share is given
with lengths balanced too: the mean of that over pairs whose better answer is longer, and that over pairs in which it is
shorter. What such a benchmark of reward models looks like: Lambert et al. 2024, "RewardBench", arXiv 2403.13787.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracker_diag.samples.audit.estimates import FEWEST, Estimate, estimate
from tracker_diag.samples.records import Record
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray

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
    every: BoolArray = np.ones(len(won), dtype=bool)

    def share(rows: BoolArray) -> float | None:
        return float(won[rows].mean()) if rows.any() else None

    def balanced(rows: BoolArray) -> float | None:
        shares = share(rows & (longer > 0)), share(rows & (longer < 0))
        return None if None in shares else float(np.mean([given for given in shares if given is not None]))

    asked: dict[str, tuple[Any, BoolArray]] = {
        "all": (share, every),
        "balanced": (balanced, longer != 0),
        "longer": (share, longer > 0),
        "shorter": (share, longer < 0),
    }
    shares = {name: estimate(statistic, rows, of_pair, (0.0, 1.0)) for name, (statistic, rows) in asked.items()}
    return {name: known for name, known in shares.items() if known is not None and known.n >= FEWEST}


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
