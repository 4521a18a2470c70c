"""Replay's rows per second against exact quantiles of polars and DuckDB, in one process, on files that this makes.

    python tests/benchmarks/replay_rows.py --rows 10_000_000 --folder build/tokens
    python tests/benchmarks/replay_rows.py --rows 1_000_000_000 --folder build/tokens --workers 2

A billion rows take 60 MB of disk: a step is a folder, and all but the first few are links to the files of these.
polars and DuckDB are compared where they are installed, by step and slice with the quantiles that a report has. The
wide run, with several processes, is timed alone.
"""

import argparse
import importlib.util
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


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of a call, of this process and of those that it waited for."""
    start, before = time.perf_counter(), _used()
    call()
    return _used() - before, time.perf_counter() - start


def _used() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("build/tokens"))
    parser.add_argument("--workers", type=int, default=1, help="above 1 replay alone is timed")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if not given.folder.exists():
        write(given.folder, given.rows)
    rows = len([*given.folder.iterdir()]) * WIDTH * SEQUENCES
    contenders: dict[str, Callable[[], object]] = {"replay": lambda: replay(given.folder, workers=given.workers)}
    if given.workers == 1:
        exact = {"polars": _polars, "duckdb": _duckdb}
        contenders |= {name: make(given.folder) for name, make in exact.items() if importlib.util.find_spec(name)}
    screen = Console()
    for turn in range(given.rounds):
        for name, call in contenders.items():
            cpu, wall = _seconds(call)
            screen.print(
                f"{turn} {name}: {rows / cpu / 1e6:.2f}M rows per CPU second, {rows / wall / 1e6:.2f}M a second"
            )
    kilobytes = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    screen.print(f"{rows:,} rows; memory at most {kilobytes[0] // 1024} MB here, {kilobytes[1] // 1024} MB in a worker")


if __name__ == "__main__":
    main()
