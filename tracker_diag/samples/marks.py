"""Marks: what is odd about single samples, in words, for whoever reads them."""

from collections import defaultdict

import numpy as np

from tracker_diag.samples.rewards import solved_of
from tracker_diag.samples.samples import Samples

LOOP = 3
"""Calls with the same name and arguments as an earlier one from which on an agent goes round in circles."""


def marks(samples: Samples) -> list[list[str]]:
    """N lists of marks; empty where a sample is as it should be."""
    found: list[list[str]] = [[] for _ in range(samples.n)]
    reward, solved = samples["reward"], solved_of(samples)
    scored = reward[np.isfinite(reward)]
    high = float(np.median(scored)) if len(scored) and np.ptp(scored) else np.inf
    wrong, paid = solved == 0, reward > high
    for what, of in (
        ("wrong and paid above the median", wrong & paid),
        ("claims success that was not verified", (samples["claims"] > 0) & wrong),
        ("refuses", samples["refuses"] > 0),
        ("repeats itself", samples["repeats"] > 0),
        ("says nothing", samples["blank"] > 0),
        ("cut at a limit", samples["truncated"] > 0),
        ("its scorer failed", samples["scorer_error"] > 0),
    ):
        for i in np.flatnonzero(of):
            found[i].append(what)
    for sequence, said in _calls(samples).items():
        found[sequence] += said
    return found


def _calls(samples: Samples) -> dict[int, list[str]]:
    """What is odd about the calls of each sequence that made some."""
    calls = samples.calls
    failed: dict[int, list[str]] = defaultdict(list)
    for i in np.flatnonzero(calls.failed).tolist():
        failed[int(calls.sequence[i])].append(calls.names[calls.tool[i]])
    found: dict[int, list[str]] = defaultdict(list)
    for sequence, names in failed.items():
        found[sequence].append(f"failed calls: {len(names)}, of {', '.join(dict.fromkeys(names))}")
    for what, of, least in (
        ("calls with arguments that are no JSON", calls.malformed, 1), ("the same call again", calls.repeated, LOOP)
    ):  # fmt: skip
        times = np.bincount(calls.sequence, of, minlength=samples.n)
        for i in np.flatnonzero(times >= least).tolist():
            found[i].append(f"{what}: {int(times[i])}")
    return found
