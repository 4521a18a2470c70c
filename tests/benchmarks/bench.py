"""What is timed: `make bench` prints the table, writes build/bench.json and docs/performance.md.

All figures come from one process, one after the other, round by round, so that their ratios hold though
the machine is noisy; absolute times do not.
"""

import json
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from tracker_diag import Monitor
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.signals import Observed
from tracker_diag.stats.histogram import quantiles, sketch
from tracker_diag.testing import CapturingBackend

ROOT = Path(__file__).parents[2]
LEVELS = [0.5, 0.9, 0.95, 0.99, 0.999]
ROUNDS = 5


def rounds(contenders: dict[str, Callable[[], Any]], times: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each, in turn A B C, A B C, …, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(times + 1):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(taken) for name, taken in seconds.items()}


def tokens(n: int, slices: int) -> tuple[Any, Any]:
    """`n` log-ratios with a heavy tail and the slice of each, uneven ones; 30 % are masked out."""
    rng = np.random.default_rng(0)
    r = np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)).astype(np.float32)
    row = np.minimum(rng.geometric(0.35, n) - 1, slices - 1)
    row[rng.random(n) > 0.7] = slices
    return r, row.astype(np.int32)


def sketch_against_quantiles() -> list[dict[str, Any]]:
    """Five quantiles of each slice: the sketch with its queries, and what it stands against."""
    found = []
    for n in (1 << 16, 1 << 20, 1 << 24):
        for slices in (2, 8):
            r, row = tokens(n, slices)
            tensor, tensor_row, target = torch.from_numpy(r), torch.from_numpy(row), np.empty_like(r)

            def ours(r: Any = r, row: Any = row, slices: int = slices) -> list[list[float]]:
                counts = sketch(r, row, slices).counts
                return [quantiles(counts[i].sum(axis=0), LEVELS) for i in range(slices)]

            def numpy(r: Any = r, row: Any = row, slices: int = slices) -> list[Any]:
                return [np.percentile(np.abs(r[row == i]), [100 * q for q in LEVELS]) for i in range(slices)]

            def torch_quantile(t: Any = tensor, row: Any = tensor_row, slices: int = slices) -> list[Any]:
                return [torch.quantile(t[row == i].abs(), torch.tensor(LEVELS)) for i in range(slices)]

            error = max(
                abs(a / float(b) - 1)
                for i, mine in enumerate(ours())
                for a, b in zip(mine, np.quantile(np.abs(r[row == i]), LEVELS, method="lower"), strict=True)
            )
            contenders: dict[str, Callable[[], Any]] = {"sketch": ours, "np.percentile": numpy}
            if n <= 1 << 20:
                contenders["torch.quantile"] = torch_quantile
            contenders["memcpy"] = lambda r=r, target=target: np.copyto(target, r)
            seconds = rounds(contenders, 3 if n > 1 << 20 else ROUNDS)
            found.append({"tokens": n, "slices": slices, "error": error} | {k: s / n * 1e9 for k, s in seconds.items()})
    return found


def observe() -> dict[str, float]:
    """Milliseconds of one step of 64 × 4096 tokens with all three pairs, end to end without a tracker."""
    torch.manual_seed(0)
    shape = (64, 4096)
    new = torch.randn(shape) * 0.5 - 1
    given = {name: new - 0.05 * torch.randn(shape) for name in ("old_logprobs", "rollout_logprobs", "ref_logprobs")}
    given |= {"logprobs": new, "model_mask": torch.rand(shape) < 0.7}
    monitor, step = Monitor([CapturingBackend()]), iter(range(10_000))
    seconds = rounds(
        {
            "observe": lambda: monitor.observe(**given),
            "log": lambda: monitor.log({"reward": 0.5}, next(step), last=True),
        },
        9,
    )
    return {name: taken * 1e3 for name, taken in seconds.items()}


def rules() -> dict[str, float]:
    """Milliseconds of all rules of the catalogue for one step, early in a run and late."""
    stats = ("p50", "p95", "p99", "ess", "ess_sequence", "max_weight_share", "pareto_k", "k3", "count")
    pairs, slices = ("policy", "mismatch", "reference"), ("text_only", "post_tool", "all")
    names = [f"{pair}/{name}/{stat}" for pair in pairs for name in slices for stat in stats]
    series = {name: Scalar(name, 0.5, 1000) for name in [*names, "reward", "kl", "loss", "entropy"]}
    engine, found = Engine(catalog()), {}
    for late, until in (("step 200", 200), ("step 20000", 20_000)):
        while (step := next(_counter)) < until - 100:
            engine.evaluate(Observed(step, series))
        taken = []
        for _ in range(100):
            start = time.perf_counter()
            engine.evaluate(Observed(next(_counter), series))
            taken.append(time.perf_counter() - start)
        found[late] = median(taken) * 1e3
    return found


_counter = iter(range(10**9))


def memory() -> float:
    """Extra megabytes that a sketch of 16M tokens takes at its peak, beside its input."""
    r, row = tokens(1 << 24, 8)
    sketch(r[:1000], row[:1000], 8)
    tracemalloc.start()
    sketch(r, row, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20


def page(result: dict[str, Any]) -> str:
    """docs/performance.md."""
    lines = [
        "# Performance",
        "",
        f"Made by `make bench` on: {result['machine']}. One process, one thread; read ratios, not times.",
        "Nothing here was measured on a GPU: tensors on one are copied to the host.",
        "",
        "## Five quantiles of every slice",
        "",
        "Nanoseconds per token with queries, and how much faster the sketch is; its largest relative error.",
        "",
        "| tokens | slices | sketch | np.percentile | torch.quantile | memcpy | × np | × torch | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["sketch"]:
        torch_time = row.get("torch.quantile")
        lines.append(
            f"| {row['tokens']:,} | {row['slices']} | {row['sketch']:.2f} | {row['np.percentile']:.1f} | "
            + (f"{torch_time:.1f}" if torch_time else "–")
            + f" | {row['memcpy']:.2f} | {row['np.percentile'] / row['sketch']:.1f} | "
            + (f"{torch_time / row['sketch']:.1f}" if torch_time else "–")
            + f" | {row['error']:.2%} |"
        )
    observe_ms, rule_ms = result["observe"], result["rules"]
    lines += [
        "",
        "The aim is 10 × np.percentile and 30 × torch.quantile from a million tokens on;",
        "where the table says less, it is not reached yet.",
        "",
        "## One step",
        "",
        "| what | ms |",
        "|---|---|",
        f"| `observe` of 64 × 4096 tokens, three pairs | {observe_ms['observe']:.1f} |",
        f"| `log`: windows, statistics, rules, records | {observe_ms['log']:.1f} |",
        f"| all rules of the catalogue, at step 200 | {rule_ms['step 200']:.2f} |",
        f"| all rules of the catalogue, at step 20,000 | {rule_ms['step 20000']:.2f} |",
        "",
        f"Extra memory of a sketch of 16M tokens: {result['memory']:.1f} MB.",
        "",
    ]
    return "\n".join(lines)


def machine() -> str:
    """The processor as the system names it, and the versions that matter."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.machine()
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}"
    return f"{cpu}, {os.cpu_count()} cores, {versions}"


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    result = {
        "machine": machine(),
        "memory": memory(),
        "sketch": sketch_against_quantiles(),
        "observe": observe(),
        "rules": rules(),
    }
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "docs" / "performance.md").write_text(page(result))
    table = Table("tokens", "slices", "sketch ns", "× np.percentile", "× torch.quantile", "error", title="sketch")
    for row in result["sketch"]:
        versus = row.get("torch.quantile")
        table.add_row(
            f"{row['tokens']:,}",
            str(row["slices"]),
            f"{row['sketch']:.2f}",
            f"{row['np.percentile'] / row['sketch']:.1f}",
            f"{versus / row['sketch']:.1f}" if versus else "–",
            f"{row['error']:.2%}",
        )
    console = Console()
    console.print(table)
    console.print({name: result[name] for name in ("observe", "rules", "memory")})


if __name__ == "__main__":
    main()
