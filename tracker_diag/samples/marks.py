"""Marks: what is odd about single samples, in words, for who reads them."""

from collections import Counter

import numpy as np

from tracker_diag.samples.rewards import known, solved_of
from tracker_diag.samples.samples import Samples

LOOP = 3
"""Calls with the same name and arguments as an earlier one from which on an agent goes round in circles."""


def marks(samples: Samples) -> list[list[str]]:
    """N lists of marks; empty where a sample is as it should be."""
    words: list[list[str]] = [[] for _ in range(samples.n)]
    reward, wrong = samples["reward"], solved_of(samples) == 0
    scored = known(reward)
    high = float(np.median(scored)) if len(scored) and np.ptp(scored) else np.inf
    kinds = {
        "wrong and paid above the median": wrong & (reward > high),
        "claims success that was not verified": (samples["claims"] > 0) & wrong,
        "refuses": samples["refuses"] > 0,
        "repeats itself": samples["repeats"] > 0,
        "says nothing": samples["blank"] > 0,
        "cut at a limit": samples["truncated"] > 0,
        "its scorer failed": samples["scorer_error"] > 0,
    }
    for kind, rows in kinds.items():
        for row in np.flatnonzero(rows):
            words[row].append(kind)
    calls = samples.calls
    failed: dict[int, Counter[str]] = {}
    for call in calls.rows[calls["failed"] > 0]:
        failed.setdefault(int(call["sequence"]), Counter())[calls.names[call["tool"]]] += 1
    for sequence, names in failed.items():
        words[sequence].append(f"failed calls: {names.total()}, of {', '.join(names)}")
    for kind, field, least in (
        ("calls with arguments that are no JSON", "malformed", 1), ("the same call again", "repeated", LOOP)
    ):  # fmt: skip
        times = np.bincount(calls["sequence"], calls[field], minlength=samples.n)
        for row in np.flatnonzero(times >= least):
            words[row].append(f"{kind}: {int(times[row])}")
    return words
