"""What is timed: `make bench` prints the table of DESIGN's numbers, writes build/bench.json and docs/performance.md.

All figures come from one process, one after the other, round by round, so that their ratios hold though
the machine is noisy; absolute times do not.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from performance_page import SETTLED, numbers, page
from replay_rows import SEQUENCES, WIDTH, exact_quantiles, seconds_of, write
from rich.console import Console
from rich.table import Table

from tracker_diag import Monitor
from tracker_diag.metrics.registry import TRAINING
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.observed import Observed
from tracker_diag.runs.replay.replay import replay
from tracker_diag.stats import kernel
from tracker_diag.stats.histogram import quantiles, sketch
from tracker_diag.stats.pareto import pareto_k_of
from tracker_diag.stats.weights import WeightSums
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.tracker import End

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


def by_numpy(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as it is where no kernel was compiled."""

    def without() -> Any:
        compiled, kernel.KERNEL = kernel.KERNEL, None
        try:
            return call()
        finally:
            kernel.KERNEL = compiled

    return without


def tokens(n: int, slices: int) -> tuple[Any, Any]:
    """`n` log-ratios with a heavy tail and the slice of each, uneven ones; 30 % are masked out."""
    rng = np.random.default_rng(0)
    r = np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)).astype(np.float32)
    row = np.minimum(rng.geometric(0.35, n) - 1, slices - 1)
    row[rng.random(n) > 0.7] = slices
    return r, row.astype(np.int32)


def contenders(r: Any, row: Any, slices: int) -> dict[str, Callable[[], Any]]:
    """Five quantiles of each slice of `r` (N,), by ours and by what it is compared with; and our counting alone."""
    target = np.empty_like(r)
    tensor, tensor_row, levels = torch.from_numpy(r), torch.from_numpy(row), torch.tensor(LEVELS)

    def ours() -> list[list[float]]:
        (results,) = sketch(r, [row], [slices])
        counts = results.counts.sum(axis=1)  # read once, as each read makes the array anew
        return [quantiles(of_slice, LEVELS) for of_slice in counts]

    return {
        "counting": lambda: sketch(r, [row], [slices]),
        "sketch": ours,
        "by numpy": by_numpy(ours),
        "np.percentile": lambda: [np.percentile(np.abs(r[row == i]), [100 * q for q in LEVELS]) for i in range(slices)],
        "torch.quantile": lambda: [torch.quantile(tensor[tensor_row == i].abs(), levels) for i in range(slices)],
        "memcpy": lambda: np.copyto(target, r),
    }


def sketch_against_others() -> list[dict[str, Any]]:
    """Nanoseconds a token of five quantiles of each slice, by ours and by what it is compared with."""
    results = []
    for n in (1 << 16, 1 << 20, 1 << 24):
        for slices in (2, 8):
            r, row = tokens(n, slices)
            calls = contenders(r, row, slices)
            seconds = rounds(calls, 3 if n > 1 << 20 else ROUNDS)
            exact = [np.quantile(np.abs(r[row == i]), LEVELS, method="lower") for i in range(slices)]
            error = float(np.max(np.abs(np.array(calls["sketch"]()) / np.array(exact) - 1)))
            each = {name: taken / n * 1e9 for name, taken in seconds.items()}
            results.append({"tokens": n, "slices": slices, "error": error} | each)
    return results


def accuracy() -> dict[str, float]:
    """Largest relative error of the weights' statistics against float64, and k̂ of the sketch against arviz-stats."""
    results: dict[str, float] = {}
    for n in (1000, 100_000, 1_000_000):
        for scale in (0.01, 0.1, 1.0):
            r = (scale * np.random.default_rng(n).standard_t(3, n)).clip(-20, 20).astype(np.float32)
            sums, exact = WeightSums.summed(r), r.astype(np.longdouble)
            w = np.exp(exact)
            brute = {
                "ess": w.sum() ** 2 / (w**2).sum() / n,
                "chi2": np.mean(w**2) / np.mean(w) ** 2 - 1,
                "mean": exact.mean(),
                "kl_k3": np.mean(np.expm1(exact) - exact),
            }
            for name, true in brute.items():
                results[name] = max(results.get(name, 0), abs(float(getattr(sums, name) / true) - 1))
    from runpy import run_path

    stats = ROOT / "tests" / "stats"
    draws = run_path(str(stats / "pareto_reference.py"))["draws"]
    off = []
    for name, expected in json.loads((stats / "pareto_reference.json").read_text()).items():
        kind, n = name.split(", ")
        (counted,) = sketch(draws(kind, int(n)).astype(np.float32), [np.zeros(int(n), np.int32)], [1])
        off.append(abs(pareto_k_of(counted.counts[0]) - expected))
    return results | {"k̂ max": max(off)}


def observe() -> dict[str, float]:
    """Milliseconds of one step of 64 × 4096 tokens with all three pairs, end to end without a tracker.

    Of a run that has its baselines; each as the kernel does it and as numpy does, in turn.
    """
    torch.manual_seed(0)
    shape = (64, 4096)
    new = torch.randn(shape) * 0.5 - 1
    model = torch.ones(shape, dtype=torch.bool)
    model[:, :500] = False  # prompts
    for i in range(64):  # two tool results each
        model[i, 1000 + 10 * i : 1200 + 10 * i] = model[i, 2500 : 2700 + 5 * i] = False
    given = {name: new - 0.05 * torch.randn(shape) for name in ("old_logprobs", "rollout_logprobs", "ref_logprobs")}
    given |= {"logprobs": new, "model_mask": model}
    labels = {
        "tool": torch.randint(0, 4, shape),
        "env": ["math", "web"] * 32,
        "policy_lag": torch.randint(0, 3, (64,)),
        "advantages": torch.randn(64),
        "control": torch.rand(shape) < 0.05,
        "applied_weights": torch.ones(shape),
    }
    monitors = {name: Monitor([CapturingTracker()]) for name in ("default", "every dimension")}
    more: dict[str, dict[str, Any]] = {"default": {}, "every dimension": labels}
    steps = {name: iter(range(10_000)) for name in monitors}
    contenders: dict[str, Callable[[], Any]] = {}
    for name, monitor in monitors.items():
        observe = lambda m=monitor, n=name: m.observe(**given, **more[n])
        log = lambda m=monitor, n=name: m.log({"reward": 0.5}, next(steps[n]))
        for _ in range(SETTLED):
            observe()
            log()
        contenders |= {f"observe, {name}": observe, f"log, {name}": log}
        contenders |= {f"observe, {name}, by numpy": by_numpy(observe), f"log, {name}, by numpy": by_numpy(log)}
    return {name: taken * 1e3 for name, taken in rounds(contenders, 9).items()}


def rules() -> dict[str, float]:
    """Milliseconds of all rules of the catalogue for one step: early in a run and late, and with every metric."""
    stats = ("p50", "p95", "p99", "ess", "ess_sequence", "max_weight_share", "pareto_k", "k3", "count")
    pairs, slices = ("policy", "mismatch", "reference"), ("text_only", "post_tool", "all")
    usual = [f"{pair}/{name}/{stat}" for pair in pairs for name in slices for stat in stats]
    usual += ["reward", "kl", "loss", "entropy"]
    engine = Engine(catalog())
    return {
        "step 200": _a_step(engine, usual, 0, 200),
        "step 20000": _a_step(engine, usual, 300, 20_000),
        "every metric": _a_step(Engine(catalog()), [*usual, *(metric.name for metric in TRAINING)], 0, 200),
    }


def _a_step(engine: Engine, names: list[str], step: int, until: int) -> float:
    """Milliseconds of `engine` for one step that has the series `names`, after those from `step` to `until`."""
    series = {name: Scalar(name, 0.5, 1000, 0.05) for name in names}
    for at in range(step, until):
        engine.evaluate(Observed(at, series))
    taken = []
    for at in range(until, until + 100):
        start = time.perf_counter()
        engine.evaluate(Observed(at, series))
        taken.append(time.perf_counter() - start)
    return median(taken) * 1e3


def tracker() -> dict[str, float]:
    """Milliseconds that the training thread spends on a step's records in MLflow and W&B, median of 200 steps."""
    import mlflow
    import wandb

    from tracker_diag.health import FOLDER
    from tracker_diag.trackers.delivery.outbox import Outbox
    from tracker_diag.trackers.mlflow.write import MlflowTracker
    from tracker_diag.trackers.wandb.write import WandbTracker

    rng = np.random.default_rng(0)
    seen = CapturingTracker()
    monitor = Monitor([seen])
    new = rng.uniform(-3, -0.1, (64, 64))
    model = np.ones((64, 64), bool)
    model[:, 20:30] = False
    others = {
        name: new - rng.normal(0, 0.05, new.shape) for name in ("old_logprobs", "rollout_logprobs", "ref_logprobs")
    }
    for step in range(10):
        monitor.observe(logprobs=new, model_mask=model, **others)
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    records = seen.records[9]
    with tempfile.TemporaryDirectory() as folder:
        client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
        experiment = client.create_experiment("bench", f"file://{folder}/artifacts")
        settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True)
        run = wandb.init(project="bench", dir=folder, settings=settings)
        backends = [MlflowTracker(client, client.create_run(experiment).info.run_id), WandbTracker(run)]
        os.environ[FOLDER] = folder
        results: dict[str, float] = {}
        for backend in map(Outbox, backends):
            taken = []
            for step in range(200):
                start = time.perf_counter()
                backend.write(step, records, time.time())
                taken.append(time.perf_counter() - start)
                time.sleep(0.005)
            results[backend.name] = median(taken) * 1e3
            backend.write(200, [End(monitor.summary(), ())], time.time())
            backend.close()
        run.finish()
    return results | {"keys": sum(isinstance(record, Scalar) for record in records) + 1, "histograms": 6}


def replayed() -> dict[str, float]:
    """Million rows per CPU second from warm Parquet, of replay with the kernel, without it, and of exact quantiles."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    steps = 8
    with tempfile.TemporaryDirectory() as folder:
        write(tokens := Path(folder) / "tokens", rows := steps * WIDTH * SEQUENCES)
        ours = lambda: replay(tokens)
        contenders = {"replay": ours, "by numpy": by_numpy(ours), **exact_quantiles(tokens)}
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(4):
            for name, call in contenders.items():
                taken[name].append(seconds_of(call)[0])
        return {name: rows / median(seconds[1:]) / 1e6 for name, seconds in taken.items()}


def imported() -> dict[str, float]:
    """CPU seconds of a fresh process that imports numpy, and of one that imports the package."""
    results: dict[str, float] = {}
    for name in ("numpy", "tracker_diag"):
        call = lambda name=name: subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
        results[name] = median(seconds_of(call)[0] for _ in range(ROUNDS))
    return results


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
    if kernel.kernel() is None:
        raise SystemExit("no kernel was compiled: install with a C compiler, `make bench` does so")
    result: dict[str, Any] = {"machine": machine()}
    for measure in (sketch_against_others, accuracy, observe, replayed, rules, tracker, imported):
        result[measure.__name__] = measure()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    (build / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "docs" / "performance.md").write_text(page(result))
    table = Table("what", "aim", "measured", "", title="The numbers to reach")
    for what, aim, measured, reached in numbers(result):
        table.add_row(what, aim, measured, {True: "yes", False: "NO", None: "not measured"}[reached])
    Console().print(table)


if __name__ == "__main__":
    main()
