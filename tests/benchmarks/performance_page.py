"""docs/performance.md from what the benchmarks measured, first of all the numbers that were to be reached."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
BILLION = DOCS / "billion.json"
"""What replay_rows.py printed of its wide run, with the machine filled in; left out where there was none."""
MILLION = 1 << 20
SETTLED = 80
"""Steps after which a run has all its baselines, so that a step costs what it costs from then on."""
KERNEL = (
    "A C function, tracker_diag/stats/kernel.c, counts and sums in one pass. It is built with the wheel; numpy does",
    "the same where there was no compiler. For a shorter pass numba took 1.8 s to import and 4.8 s to compile. It",
    "needs 189 MB and a cache folder, and each call took about 3 times as long. The C file is 97 KB built, and fits",
    "every Python. It costs nothing at import, starts no thread, and holds no state that a fork could break.",
    "`run.diag.explain()` says which of the two counts.",
)
"""Why it is as it is: measured in one process with numba 0.68.1, 194,464 tokens and three partitions."""
Row = tuple[str, str, str, bool]
"""What, the aim, what was measured, and whether it was reached."""


def numbers(result: dict[str, Any]) -> Iterator[Row]:
    """The table of DESIGN's numbers, line by line."""
    times = result["sketch_against_others"]
    large = [row for row in times if row["tokens"] >= MILLION and row["slices"] == 8]
    for rival, aim in (("np.percentile", 20), ("torch.quantile", 100)):
        faster = [row[rival] / row["counting"] for row in large]
        measured = " to ".join(f"{x:.0f}" for x in sorted({min(faster), max(faster)}))
        what = f"sketch, counting alone, 8 slices, 1M to 16M tokens: times faster than {rival}"
        yield what, f"≥ {aim}", measured, min(faster) >= aim
    slower = max(row["counting"] / row["memcpy"] for row in large)
    yield "the same over memcpy", "≤ 8", f"{slower:.1f}", slower <= 8
    faster = [row["np.percentile"] / row["by numpy"] for row in large]
    measured = " to ".join(f"{x:.1f}" for x in sorted({min(faster), max(faster)}))
    yield "the same without the kernel: times faster than np.percentile", "≥ 5", measured, min(faster) >= 5
    worst = max(row["error"] for row in times)
    yield "quantiles: largest relative error", "≤ 0.40 %", f"{worst:.2%}", worst <= 0.004
    off = result["accuracy"]
    for name, label in (("ess", "ESS"), ("mean", "k1"), ("kl_k3", "k3"), ("chi2", "χ²")):
        yield f"{label} against float64 and more", "≤ 0.1 %", f"{off[name]:.1g}", off[name] <= 1e-3
    yield "k̂ of the sketch against arviz-stats", "≤ 0.05", f"{off['k̂ max']:.3f}", off["k̂ max"] <= 0.05
    step, rules, tracker = result["observe"], result["rules"], result["tracker"]
    ratio = step["observe, default, by numpy"] / step["observe, default"]
    yield "observe, 64 × 4096 tokens, three pairs: times faster than numpy", "≥ 5", f"{ratio:.1f}", ratio >= 5
    rows = result["replayed"]
    ours, rivals = rows["replay"], [rows[name] for name in ("polars", "duckdb") if name in rows]
    yield "replay from warm Parquet: rows per CPU second", "≥ 5.5M", f"{ours:.1f}M", ours >= 5.5
    if rivals:
        measured = f"{ours / max(rivals):.1f}"
        yield "the same over the faster of polars' and DuckDB's exact quantiles", "> 1", measured, ours > max(rivals)
    ours, alone = result["imported"]["tracker_diag"], result["imported"]["numpy"]
    measured = f"{ours:.2f} s, numpy alone {alone:.2f} s"  # it imports numpy where it is used
    yield "import tracker_diag: CPU beyond that of numpy", "≤ 0.3 s", measured, ours - alone <= 0.3
    limits = (
        ("observe, by the clock", 5, step["observe, default"]),
        ("log after observe", 4, step["log, default"]),
        ("all rules of the catalogue, a step", 1, max(rules["step 200"], rules["step 20000"])),
        ("the same, with every metric logged that a rule reads", 1, rules["every metric"]),
        ("MLflow: training thread, a step", 1, tracker["mlflow"]),
        ("W&B, offline: training thread, a step", 1, tracker["wandb"]),
    )
    for what, aim, taken in limits:
        yield what, f"≤ {aim} ms", f"{taken:.2f} ms", taken <= aim
    keys = f"{tracker['keys']} and {tracker['histograms']}"
    yield "keys and histograms a step", "≤ 60 and 6", keys, tracker["keys"] <= 60


def _on_a_gpu(result: dict[str, Any]) -> str:
    """What tests/benchmarks/gpu.py printed, in words."""
    ratios = [plan["ratio"] for plan in result["memory"].values()]
    return f"""\
## On a GPU

`python tests/benchmarks/gpu.py > docs/gpu.json`, on an {result["device"]} with torch {result["torch"]}.

- {result["series"]:,} values of tensors on the GPU differ from those of the CPU by at most \
{result["largest_relative_difference"]:.0e}.
- `observe` of 64 × 4,096 tokens and three pairs makes no call that synchronises. The host takes \
{result["observe_ms"]:.0f} ms to start its kernels, and {result["log_ms"]:.0f} ms for `log`.
- A step of half a second takes {result["step_of_half_a_second_ratio"]:.2f}× as long with these three pairs logged at \
each step. The aim is 1.02×.
- `preflight` estimates the memory of a training step at {min(ratios):.2f} to {max(ratios):.2f} of what {len(ratios)} \
real ones allocate: dense models, a mixture, LoRA, frozen ones in fp8.
"""


def _of_any_size(run: dict[str, Any]) -> str:
    """What tests/benchmarks/replay_rows.py measured on a table of a billion rows, in words."""
    (_, early), *_, (_, late) = run["memory"]
    most = max(megabytes for _, megabytes in run["memory"])
    return f"""\
{run["rows"]:,} rows went through `python tests/benchmarks/replay_rows.py --rows 1_000_000_000 --workers 2` in \
{run["seconds"]:,.0f} s, on: {run["machine"]}. That is {run["rows"] / run["seconds"] / 1e6:.2f} million a second, and \
{run["rows"] / run["cpu_seconds"] / 1e6:.2f} million per CPU second. All processes together had {early:.0f} MB after a \
twentieth of the rows and {late:.0f} MB at the end. The most was {most:.0f} MB. Pages that they share count in each.
"""


def _with_trl(costs: list[dict[str, Any]]) -> str:
    rows = "\n".join(
        f"| {cost['logging_steps']} | {cost['step']:.0f} ms | {cost['hooks']:.2%} | {cost['writer']:.2%} "
        f"| {cost['whole']:+.1%} | {cost['low']:+.1%} to {cost['high']:+.1%} | {cost['generations']} |"
        for cost in costs
    )
    return f"""\
## With TRL

tests/benchmarks/bench_trl.py measures what attaching to TRL costs. With its small model a step takes a fifth
of a second on two cores. MLflow has a database. TRL logs every tenth step by default.

Shares of a step. *Hooks and callback* and *end to end* are by the clock, with a 95 % interval. *Writer* is
processor time of the thread that writes to MLflow, most of it for pictures.

| steps a log | a step without us | hooks and callback | writer | end to end | 95 % | generations |
|---|---|---|---|---|---|---|
{rows}
"""


def page(result: dict[str, Any]) -> str:
    """docs/performance.md."""
    gpu, trl = (json.loads((DOCS / name).read_text()) for name in ("gpu.json", "trl_cost.json"))
    lines = [
        "# Performance",
        "",
        f"Made by `make bench` on: {result['machine']}. One process, one thread; read ratios, not times.",
        "",
        _on_a_gpu(gpu),
        "## The numbers to reach",
        "",
        "| what | aim | measured | reached |",
        "|---|---|---|---|",
    ]
    marks = {True: "yes", False: "**no**"}
    lines += [f"| {what} | {aim} | {measured} | {marks[reached]} |" for what, aim, measured, reached in numbers(result)]
    lines += [
        "",
        "Parts of ranks, micro-batches and steps merge to the same result as one pass, in any order. Counts agree to",
        "the bit, float64 sums to rounding. Property tests prove it: tests/stats and tests/tensors.",
        "What the alarms make of real tensors is in [alerts.md](alerts.md).",
        "",
        "## The kernel",
        "",
        *KERNEL,
        "",
        "## Five quantiles of every slice",
        "",
        "Nanoseconds a token. *Counting* is ours alone; all others include the quantiles. 30 % of the tokens are",
        "masked, slices are uneven, tails heavy.",
        "The error is the largest relative one over slices and p50 to p99.9.",
        "",
        "| tokens | slices | counting | sketch | no kernel | np.percentile | torch.quantile | memcpy | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["sketch_against_others"]:
        names = ("counting", "sketch", "by numpy", "np.percentile", "torch.quantile", "memcpy")
        times = " | ".join(f"{row[name]:.2f}" for name in names)
        lines.append(f"| {row['tokens']:,} | {row['slices']} | {times} | {row['error']:.2%} |")
    lines += [
        "",
        "## One step",
        "",
        f"64 × 4096 tokens, three pairs, after {SETTLED} steps, when the run has its baselines. By default the",
        "dimensions are context, turn and after_tool_k; every dimension adds tool, env, policy_lag, advantage, control",
        "and applied weights.",
        "",
        "| what | ms |",
        "|---|---|",
        *(f"| {name} | {taken:.1f} |" for name, taken in result["observe"].items()),
        "",
        "## Replay",
        "",
        "Million rows per CPU second of 8.4 million rows in warm Parquet: eight steps, two pairs, two tools. polars",
        "and DuckDB give exact quantiles by step and slice, in one thread; replay gives the diagnosis.",
        "",
        "| what | million rows per CPU second |",
        "|---|---|",
        *(f"| {name} | {rate:.1f} |" for name, rate in result["replayed"].items()),
        "",
        *([_of_any_size(json.loads(BILLION.read_text()))] if BILLION.exists() else []),
        _with_trl(trl),
    ]
    return "\n".join(lines)
