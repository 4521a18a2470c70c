"""Does a reward that falls count as fallen? detect/course.py on planted runs and public logs, labelled by their curve.

    python tests/benchmarks/falls.py [--logs FOLDER] [--table]

FOLDER has public logs in folders named by their label, such as collapsed and stable. The untouched half of the planted
runs is left out. `--table` makes the limits of detect/scan.py anew, from level series with an autocorrelation of at
most 0.6: the drift of a stronger one looks like learning and forgetting.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from dataset import read_runs
from labels import REWARDS, idle, values

from tracker_diag.detect.course import Course
from tracker_diag.detect.scan import CUTS, ENDS, noise, widths, without_odd
from tracker_diag.metrics.aliases import key_map
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.open import read_run

ALPHA = 1e-3
"""Part of level series that may exceed the limits at any look of a run."""
STRONGEST = 0.75
SERIES = 8_000
SEEN = 0.02
"""Part of the level series that must reach a cell of the table; other cells are as the nearest one."""


def scores(y: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Of each of `y` (series, n) the largest score of `detect.scan.drops`, and the autocorrelation."""
    n = y.shape[1]
    sigma, rho = noise(y)
    sums = np.cumsum(np.pad(without_odd(y, sigma), ((0, 0), (1, 0))), axis=1)
    largest = np.full(len(y), -np.inf)
    for early in widths(n):
        tops = np.maximum.accumulate((sums[:, early:] - sums[:, :-early]) / early, axis=1)
        for late in (width for width in widths(n) if early + width <= n):
            now = (sums[:, n] - sums[:, n - late]) / late
            largest = np.maximum(largest, (tops[:, n - late - early] - now) / np.sqrt(1 / early + 1 / late))
    return largest / sigma, rho


def limits() -> Float64Array:
    """(ends − 1, cuts + 1) what a score must exceed."""
    rng = np.random.default_rng(0)
    phi = rng.uniform(0, STRONGEST, SERIES)
    y = rng.normal(size=(SERIES, ENDS[-1] + 50))
    for at in range(1, y.shape[1]):
        y[:, at] += phi * y[:, at - 1]
    table = np.full((len(ENDS) - 1, len(CUTS) + 1), np.nan)
    for row, (first, end) in enumerate(pairwise(ENDS)):
        largest = np.full((SERIES, len(CUTS) + 1), -np.inf)
        for n in range(first, end, max(1, first // 20)):
            score, rho = scores(y[:, 50 : 50 + n])
            cell = np.arange(SERIES), np.searchsorted(CUTS, rho, side="right")
            largest[cell] = np.maximum(largest[cell], score)
        for column, all_seen in enumerate(largest.T):
            seen = all_seen[np.isfinite(all_seen)]
            if len(seen) >= SEEN * SERIES:  # beyond the 95 % quantile the tail is taken for exponential
                high = float(np.quantile(seen, 0.95))
                beyond = float((seen[seen > high] - high).mean())
                table[row, column] = high + beyond * np.log(0.05 * len(table) / ALPHA)
        known = np.flatnonzero(np.isfinite(table[row]))
        table[row] = [table[row, known[np.argmin(np.abs(known - column))]] for column in range(len(CUTS) + 1)]
    return table


def planted() -> Iterator[tuple[str, Float64Array]]:
    """Label and reward of the planted runs that may be looked at."""
    for run in read_runs():
        key = next((key for key in REWARDS if key in run.columns), None)
        if run.half != "untouched" and key and (run.collapsed or not (run.fault or idle(run))):
            yield "planted, collapsed" if run.collapsed else "planted, healthy", values(run, key)


def public(folder: Path) -> Iterator[tuple[str, Float64Array]]:
    """Label and reward of the logs in the folders of `folder`."""
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        rows = [row for _, row in sorted(read_run(str(file)).rows.items())]
        keys = key_map(dict.fromkeys(key for row in rows for key in row))
        known = [keys.values(row).get("reward", np.nan) for row in rows]
        yield f"public, {file.relative_to(folder).parts[0]}", np.array(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    out = Console(highlight=False, width=120)
    if given.table:
        out.print(np.round(limits(), 1).tolist())
        return
    runs, ever, now = Counter[str](), Counter[str](), Counter[str]()
    for label, reward in [*planted(), *(public(given.logs) if given.logs else ())]:
        course, fallen = Course(), [False]
        for step, value in enumerate(reward[np.isfinite(reward)].tolist()):
            course.append(step, value)
            fallen.append(bool(course.has_fallen))
        runs[label] += 1
        ever[label] += any(fallen)
        now[label] += fallen[-1]
    for label, count in runs.items():
        out.print(f"{label}: {count} runs; fallen at any row {ever[label]}, at the end {now[label]}")


if __name__ == "__main__":
    main()
