"""Replay's rows per second against exact quantiles of polars and DuckDB, in one process, on files that this makes.

    python tests/benchmarks/replay_rows.py --rows 50_000_000 --folder build/tokens
    python tests/benchmarks/replay_rows.py --rows 1_000_000_000 --folder build/tokens --workers 2

A billion rows take 60 MB of disk: a step is a folder, and all but the first few are links to the files of these.
polars and DuckDB are compared where they are installed, by step and slice with the quantiles that a report has. All
have one thread. The wide run, with several processes, is timed alone, once. It says on the way how much memory all
processes have.
"""

import argparse
import importlib.util
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from tracker_diag.runs.replay.replay import replay

WIDTH, SEQUENCES = 2048, 512
LEVELS = (0.5, 0.95, 0.99, 0.999)
AT_ONCE = 4
"""Different steps that the table has; further ones are links to them."""


def write(folder: Path, rows: int) -> None:
    """A table of steps of a million tokens, three log-probabilities, two tools, and masks with tool results."""
    n = WIDTH * SEQUENCES
    files = [folder / f"step={step}" / "tokens.parquet" for step in range(max(1, rows // n))]
    for step, file in enumerate(files):
        file.parent.mkdir(parents=True)
        if step < AT_ONCE:
            pq.write_table(_step(np.random.default_rng(step), n), file, row_group_size=n)
        else:
            file.hardlink_to(files[step % AT_ONCE])


def _step(rng: np.random.Generator, n: int) -> pa.Table:
    position = np.tile(np.arange(WIDTH, dtype=np.int32), n // WIDTH)
    new = (-rng.exponential(0.5, n)).astype(np.float32)
    old = np.minimum(new + (0.02 * rng.standard_normal(n)).astype(np.float32), 0)
    rollout = np.minimum(old + (0.02 * rng.standard_t(4, n)).astype(np.float32), 0)
    turn = position // 256
    tool = pa.array(np.where(turn > 1, turn % 2, 0).astype(np.int8), mask=position < 256)
    return pa.table(
        {
            "sequence": np.repeat(np.arange(n // WIDTH, dtype=np.int32), WIDTH),
            "position": position,
            "is_model": (position % 256) >= 32,
            "logprob": new,
            "old_logprob": old,
            "rollout_logprob": rollout,
            "tool": pa.DictionaryArray.from_arrays(tool, ["search", "code"]),
        }
    )


def _polars(folder: Path) -> Callable[[], object]:
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars as pl

    def quantiles() -> object:
        rows = pl.scan_parquet(folder, hive_partitioning=True).filter(pl.col("is_model"))
        pairs = {"policy": ("logprob", "old_logprob"), "mismatch": ("old_logprob", "rollout_logprob")}
        sizes = {name: (pl.col(new) - pl.col(old)).abs() for name, (new, old) in pairs.items()}
        levels = [size.quantile(q).alias(f"{name} {q}") for name, size in sizes.items() for q in LEVELS]
        return rows.group_by("step", pl.col("tool").is_not_null().alias("after")).agg(levels).collect()

    return quantiles


def _duckdb(folder: Path) -> Callable[[], object]:
    import duckdb

    pairs = {"policy": "logprob - old_logprob", "mismatch": "old_logprob - rollout_logprob"}
    levels = ", ".join(f"quantile_cont(abs({pair}), {list(LEVELS)}) AS {name}" for name, pair in pairs.items())
    query = f"SELECT step, tool IS NOT NULL AS after, {levels} FROM rows WHERE is_model GROUP BY ALL"  # noqa: S608
    rows = f"CREATE OR REPLACE VIEW rows AS FROM read_parquet('{folder}/*/*.parquet', hive_partitioning = true)"
    return lambda: duckdb.sql(f"SET threads = 1; {rows}; {query}").fetchall()


def exact_quantiles(folder: Path) -> dict[str, Callable[[], object]]:
    """What replay is held against, of the libraries that are installed."""
    exact = {"polars": _polars, "duckdb": _duckdb}
    return {name: make(folder) for name, make in exact.items() if importlib.util.find_spec(name)}


class _Progress:
    """Says every twentieth part of the rows how fast they come, and how much memory all processes have."""

    def __init__(self, rows: int) -> None:
        self._rows, self._done, self._said, self._start = rows, 0, 0, time.perf_counter()
        self.memory: list[tuple[int, int]] = []
        """Rows that were done, and megabytes then."""

    def __call__(self, rows: int) -> None:
        self._done += rows
        if self._done - self._said >= self._rows / 20:
            self._said, seconds = self._done, time.perf_counter() - self._start
            self.memory.append((self._done, _memory() >> 20))
            line = f"{self._done:,} rows in {seconds:.0f} s, {self._done / seconds / 1e6:.2f}M a second"
            Console().print(f"{line}; {self.memory[-1][1]} MB in all processes")


def _memory() -> int:
    """Bytes that this process and its children have in memory, pages that they share counted in each."""
    pages, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[folder.name] = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            pages[folder.name] = int((folder / "statm").read_text().split()[1])
        except OSError:  # it has ended meanwhile
            continue
    mine = str(os.getpid())
    return os.sysconf("SC_PAGE_SIZE") * sum(n for pid, n in pages.items() if mine in (pid, parents[pid]))


def seconds_of(call: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of a call, of this process and of those that it waited for."""
    start, before = time.perf_counter(), _used()
    call()
    return _used() - before, time.perf_counter() - start


def _used() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def compare(folder: Path, rows: int, rounds: int) -> None:
    """Replay in this process, and exact quantiles, in turn."""
    contenders: dict[str, Callable[[], object]] = {"replay": lambda: replay(folder), **exact_quantiles(folder)}
    for call in contenders.values():  # imports, and files into memory
        call()
    for turn in range(rounds):
        for name, call in contenders.items():
            cpu, wall = (rows / seconds / 1e6 for seconds in seconds_of(call))
            Console().print(f"{turn} {name}: {cpu:.2f}M rows per CPU second, {wall:.2f}M a second")


def go_wide(folder: Path, rows: int, workers: int) -> None:
    """Replay in several processes; what docs/performance.md says of it is printed as JSON."""
    progress = _Progress(rows)
    cpu, wall = seconds_of(lambda: replay(folder, workers=workers, progress=lambda _: progress))
    measured = {"rows": rows, "seconds": wall, "cpu_seconds": cpu, "memory": progress.memory}
    Console().print_json(json.dumps({"machine": "", **measured}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, default=Path("build/tokens"))
    parser.add_argument("--workers", type=int, default=1, help="above 1 replay alone is timed")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if not given.folder.exists():
        write(given.folder, given.rows)
    rows = len([*given.folder.iterdir()]) * WIDTH * SEQUENCES
    if given.workers > 1:
        go_wide(given.folder, rows, given.workers)
    else:
        compare(given.folder, rows, given.rounds)


if __name__ == "__main__":
    main()
