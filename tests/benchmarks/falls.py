"""Two tests of whether a reward has lost its gain, side by side: detect/course.py, and a scan over pairs of windows.

    python tests/benchmarks/falls.py [--logs FOLDER] [--series 6000]

The scan compares the last values with earlier ones, in windows of 3, 6, 12 and more. Its limits come from a table that
is made here, over the number of values and the autocorrelation of the residuals. One level series in 1,000 exceeds them
at any look. The fall must also be half of what was gained. FOLDER has public logs in folders named by their label, such
as collapsed and stable. The untouched half of the planted runs is left out.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from dataset import read
from labels import REWARDS, idle, values

from tracker_diag.detect.course import Course
from tracker_diag.metrics.aliases import key_map
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.open import read_run

ALPHA = 1e-3
"""Part of level series that may exceed the limits."""
MOST = 255
"""Means of blocks that a course keeps at most."""
ENDS = (10, 14, 20, 30, 45, 70, 110, 180, 256)
"""The number of values is cut here."""
CUTS = (-0.3, -0.1, 0.1, 0.3, 0.5, 0.65, 0.8)
"""The autocorrelation of the residuals is cut here."""
STRONGEST = 0.6
"""Autocorrelation of the level series, at most: the drift of a stronger one looks like learning and forgetting."""


def scan(y: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Of each of `y` (series, n): z of the largest fall, autocorrelation, levels before and after; all (series,)."""
    count, n = y.shape
    sums = np.concatenate([np.zeros((count, 1)), np.cumsum(y, axis=1)], axis=1)
    sigma, rho = noise(y)
    z, before, after = np.full(count, -np.inf), np.zeros(count), np.zeros(count)
    widths = [3 * 2**k for k in range(8) if 3 * 2**k <= n // 2]
    for early in widths:
        levels = (sums[:, early:] - sums[:, :-early]) / early
        for late in (width for width in widths if early + width <= n):
            top, now = levels[:, : n - late - early + 1].max(axis=1), (sums[:, n] - sums[:, n - late]) / late
            score = (top - now) / (sigma * np.sqrt(1 / early + 1 / late))
            larger = score > z
            z, before, after = (np.where(larger, *pair) for pair in ((score, z), (top, before), (now, after)))
    return z, rho, before, after


def noise(y: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Standard deviation and first autocorrelation of what is left of `y` without its level, a mean of a sixth."""
    side = max(2, y.shape[1] // 12)
    sums = np.cumsum(np.pad(y, ((0, 0), (side + 1, side)), mode="edge"), axis=1)
    rest = y - (sums[:, 2 * side + 1 :] - sums[:, : -2 * side - 1]) / (2 * side + 1)
    usual = np.quantile(np.abs(rest), 0.9, axis=1, keepdims=True)  # a fall itself is among the largest
    rest = np.clip(rest, -usual, usual)
    squares = (rest**2).sum(axis=1) + 1e-300
    return np.sqrt(squares / y.shape[1]), (rest[:, 1:] * rest[:, :-1]).sum(axis=1) / squares


def limits(series: int) -> Float64Array:
    """(ends − 1, cuts + 1) what z must exceed; NaN where level series never are."""
    rng = np.random.default_rng(0)
    phi = rng.uniform(0, STRONGEST, series)
    y = rng.normal(size=(series, MOST + 50))
    for at in range(1, y.shape[1]):
        y[:, at] += phi * y[:, at - 1]
    y = y[:, 50:]
    table = np.full((len(ENDS) - 1, len(CUTS) + 1), np.nan)
    for row, (first, end) in enumerate(pairwise(ENDS)):
        largest = np.full((series, len(CUTS) + 1), -np.inf)
        for n in sorted({int(first * 1.06**k) for k in range(20)} & {*range(first, end)}):
            z, rho, *_ = scan(y[:, :n])
            cell = np.searchsorted(CUTS, rho, side="right")
            largest[np.arange(series), cell] = np.maximum(largest[np.arange(series), cell], z)
        for column, all_seen in enumerate(largest.T):
            seen = all_seen[np.isfinite(all_seen)]
            if len(seen) >= 300:  # beyond the 95 % quantile the tail is taken for exponential
                high = float(np.quantile(seen, 0.95))
                beyond = float((seen[seen > high] - high).mean())
                table[row, column] = high + beyond * np.log(0.05 * len(table) / ALPHA)
    return table


def has_fallen(y: Float64Array, table: Float64Array) -> bool:
    """Whether `y` (n,) has lost more than half of its gain by the scan."""
    if np.ptp(y) == 0:
        return False
    (z,), (rho,), (top,), (now,) = scan(y[None])
    row = table[int(np.searchsorted(ENDS, len(y), side="right")) - 1]
    known = np.flatnonzero(np.isfinite(row))
    limit = row[known[np.argmin(np.abs(known - np.searchsorted(CUTS, rho, side="right")))]]
    best = int(np.argmax(y))
    return bool(z > limit and top - now > 0.5 * (top - min(y[: best + 1].min(), top)))


def in_blocks(y: Float64Array) -> Float64Array:
    """At most `MOST` means of `y`, as a course takes them."""
    while len(y) > MOST:
        y = y[: len(y) // 2 * 2].reshape(-1, 2).mean(axis=1)
    return y


def planted() -> Iterator[tuple[str, Float64Array]]:
    """Label and reward of the planted runs that may be looked at."""
    for run in read():
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--series", type=int, default=6000, help="level series behind the table")
    given = parser.parse_args()
    table = limits(given.series)
    out = Console(highlight=False)
    out.print(np.round(table, 1))
    counts: dict[str, Float64Array] = {}
    for label, reward in [*planted(), *(public(given.logs) if given.logs else ())]:
        y = in_blocks(reward[np.isfinite(reward)])
        if len(y) < ENDS[0] or np.ptp(y) == 0:
            continue
        course, fallen = Course(), []
        for step, value in enumerate(y.tolist()):
            course.append(step, value)
            fallen.append(bool(course.has_fallen))
        looks = sorted({n for part in range(4, 21) if (n := len(y) * part // 20) >= ENDS[0]})
        scanned = [has_fallen(y[:n], table) for n in looks]
        by_course = [fallen[n - 1] for n in looks]
        now = np.array([1, any(by_course), by_course[-1], any(scanned), scanned[-1]], np.float64)
        counts[label] = counts.get(label, np.zeros(5)) + now
    for label, (runs, ever, end, *scanned) in counts.items():
        out.print(
            f"{label}: {runs:g} runs; course ever {ever:g}, at the end {end:g}; scan {scanned[0]:g}, {scanned[1]:g}"
        )


if __name__ == "__main__":
    main()
