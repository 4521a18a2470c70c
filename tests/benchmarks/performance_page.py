"""docs/performance.md from what the benchmark measured, first of all the numbers that were to be reached."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPU = Path(__file__).parents[2] / "docs" / "gpu.json"
"""What `gpu.py` printed on a machine that has one."""

MILLION = 1 << 20
Row = tuple[str, str, str, bool | None]
"""What, the aim, what was measured, and whether it was reached; None: not measured."""


WHY = {
    "np.percentile": "the margin is that of a processor on which numpy's partition is slower; on a busy machine less",
    "torch.quantile": "as for np.percentile; at 1M tokens the queries of eight slices are a tenth of our time",
    "ddsketch": "a Python loop, which the processor that the aim was measured on ran at half the speed of this one",
    "×2 over 2000 steps": "e-SR's floor of 0.10 and level of 10,000; a lower floor reaches it, and alarms falsely",
    "W&B": "the client makes its histograms and rows on the calling thread",
    "all rules": "two cores that were busy with something else",
    "every step logged": (
        "the statistics of thirteen slices take 5 ms of Python and numpy, whatever a step takes; only steps below half"
        " a second feel it"
    ),
}
"""Why a number is not reached, by a part of its name, as far as it is known."""


def numbers(result: dict[str, Any]) -> Iterator[Row]:
    """The table of DESIGN §5, line by line."""
    large = [row for row in result["sketch_against_others"] if row["tokens"] >= MILLION]
    eight = [row for row in large if row["slices"] == 8]
    for rival, aim in (("np.percentile", 10), ("torch.quantile", 30), ("ddsketch", 300)):
        times = [row[rival] / row["sketch"] for row in eight if rival in row]
        measured = " to ".join(f"{x:.0f}" for x in sorted({min(times), max(times)}))
        yield f"sketch, 8 slices, 1M to 16M tokens: times faster than {rival}", f"≥ {aim}", measured, min(times) >= aim
    yield "sketch: extra memory at 16M tokens", "≤ 8 MB", f"{result['memory']:.1f} MB", result["memory"] <= 8
    worst = max(row["error"] for row in result["sketch_against_others"])
    yield "quantiles: largest relative error", "≤ 0.40 %", f"{worst:.2%}", worst <= 0.004
    found = result["accuracy"]
    for name, label in (("ess", "ESS"), ("mean", "k1"), ("kl_k3", "k3"), ("chi2", "χ²")):
        yield f"{label} against float64 and more", "≤ 0.1 %", f"{found[name]:.1g}", found[name] <= 1e-3
    yield (
        "k̂ of the sketch against arviz-stats, median",
        "≤ 0.005",
        f"{found['k̂ median']:.3f}",
        found["k̂ median"] <= 0.005,
    )
    yield "the same, largest", "≤ 0.05", f"{found['k̂ max']:.3f}", found["k̂ max"] <= 0.05
    step = result["observe"]
    yield (
        "observe, 64 × 4096 tokens, three pairs",
        "≤ 10 ms",
        f"{step['observe, default']:.1f} ms",
        step["observe, default"] <= 10,
    )
    yield "log after it", "≤ 4 ms", f"{step['log, default']:.1f} ms", step["log, default"] <= 4
    if padded := result.get("padded"):  # of a page that was measured before there was any
        of = f"{padded['tokens'] / 1e6:.1f}M tokens, {padded['model tokens'] / padded['tokens']:.0%} of them no padding"
        yield f"observe, two pairs, {of}", "≤ 150 ms", f"{padded['ms']:.0f} ms", padded["ms"] <= 150
        for name, when in (("bytes", ""), ("bytes, first", ", first call")):
            yield f"the same: extra memory a token{when}", "≤ 12 bytes", f"{padded[name]:.1f} bytes", padded[name] <= 12
    yield "GPU: time against reading the inputs once", "≤ 2", "–", None
    rules = result["rules"]
    slowest, everything = max(rules["step 200"], rules["step 20000"]), rules["every metric"]
    yield "all rules of the catalogue, a step", "≤ 1 ms", f"{slowest:.2f} ms", slowest <= 1
    yield "the same, with every metric logged that a rule reads", "≤ 1 ms", f"{everything:.2f} ms", everything <= 1
    growth = rules["step 20000"] / rules["step 200"]
    yield "the same at step 20,000 over step 200", "flat", f"× {growth:.2f}", growth <= 1.5
    if samples := result.get("samples"):  # of a page that was measured before there were any
        without, text = samples["numbers"], samples["and texts"]
        ratio = text / samples["numpy sorts the ids"]
        yield "`samples` of 512 sequences, without texts", "≤ 5 ms", f"{without:.1f} ms", without <= 5
        measured = f"{text:.0f} ms, {ratio:.1f}x what numpy takes to sort their ids"
        yield "the same with texts of 2k tokens", "≤ 30 ms", measured, text <= 30
    tracker = result["tracker"]
    yield (
        "keys and histograms a step",
        "≤ 60 and 6",
        f"{tracker['keys']} and {tracker['histograms']}",
        tracker["keys"] <= 60,
    )
    for name, label in (("mlflow", "MLflow"), ("wandb", "W&B, offline")):
        yield f"{label}: training thread, a step", "≤ 1 ms", f"{tracker[name]:.2f} ms", tracker[name] <= 1
    for one in result["trl"]:
        what = f"TRL on the CPU, {_logged(one)} logged: hooks and callback, share of a step"
        yield what, "≤ 2 %", f"{one['hooks']:.1%}", one["hooks"] <= 0.02
    for row in result["alerts"]:
        if row["aim"] is not None:
            value = "never" if row["value"] is None else f"{row['value']:.3g}"
            yield (
                f"{row['run']} runs, {row['case']}: {row['what']}, {row['unit']}",
                f"≤ {row['aim']:.3g}",
                value,
                row["met"],
            )
    calm = [run for run in result["evidence"] if run["arm"] in ("healthy", "constrained")]
    alarmed = sum(bool(run["findings"]) for run in calm)
    yield f"healthy real runs that alarmed, of {len(calm)}", "0", str(alarmed), alarmed == 0
    yield from _leads(result["evidence"])


def _logged(one: dict[str, Any]) -> str:
    return "every step" if one["logging_steps"] == 1 else f"every {one['logging_steps']} steps"


def _leads(runs: list[dict[str, Any]]) -> Iterator[Row]:
    for signal in ("reference/all/p95", "policy/all/p95", "kl", "clip_fraction", "reward"):
        for arm in ("widen", "collapse"):
            found = [(_first(run), run["leads"][signal]) for run in runs if run["arm"] == arm]
            leads = [None if other is None else other - first for first, other in found]
            said = ", ".join("never" if lead is None else f"{lead:+d}" for lead in leads)
            yield f"{arm}: steps before {signal}, by seed", "> 0", said, all(lead is None or lead > 0 for lead in leads)


def _reasons(result: dict[str, Any]) -> Iterator[str]:
    missed = [what for what, _, _, reached in numbers(result) if reached is False]
    for part, reason in WHY.items():
        if any(part in what for what in missed):
            yield f"- {part}: {reason}."


def _first(run: dict[str, Any]) -> int:
    return int(min(finding["fired"] for finding in run["findings"]))


def _on_a_gpu(result: dict[str, Any]) -> list[str]:
    """What tests/benchmarks/gpu.py printed, in words."""
    ratios = [plan["ratio"] for plan in result["memory"].values()]
    equal = f"{result['series']:,} values of tensors on the GPU differ from those of the CPU by at most"
    calls = (
        f"The host takes {result['observe_ms']:.0f} ms to start its kernels, and {result['log_ms']:.0f} ms for `log`."
    )
    longer = (
        f"A step of half a second takes {result['step_of_half_a_second_ratio']:.2f}× as long with these three pairs"
    )
    memory = f"`preflight` estimates the memory of a training step at {min(ratios):.2f} to {max(ratios):.2f} of what"
    parts = (
        f"{equal} {result['largest_relative_difference']:.0e}.",
        f"`observe` of 64 × 4,096 tokens and three pairs makes no call that synchronises. {calls}",
        f"{longer} logged at each step. The aim is 1.02×.",
        f"{memory} {len(ratios)} real ones allocate: dense models and a mixture, in two precisions.",
    )
    head = f"`python tests/benchmarks/gpu.py > docs/gpu.json`, on an {result['device']} with torch {result['torch']}."
    return ["## On a GPU", "", head, "", *(f"- {part}" for part in parts), ""]


def page(result: dict[str, Any]) -> str:
    """docs/performance.md."""
    lines = [
        "# Performance",
        "",
        f"Made by `make bench` on: {result['machine']}. One process, one thread; read ratios, not times.",
        "",
        *_on_a_gpu(json.loads(GPU.read_text())),
        "## The numbers to reach",
        "",
        "| what | aim | measured | reached |",
        "|---|---|---|---|",
    ]
    marks = {True: "yes", False: "**no**", None: "not measured"}
    lines += [f"| {what} | {aim} | {measured} | {marks[reached]} |" for what, aim, measured, reached in numbers(result)]
    lines += [
        "",
        *(["Why not, as far as it is known:", "", *why, ""] if (why := list(_reasons(result))) else []),
        "Parts of ranks, micro-batches and steps merge to the same result as one pass, in any order. Counts agree to",
        "the bit, float64 sums to rounding. Property tests prove it: tests/stats, tests/tensors/test_windows.py and",
        "tests/tensors/test_ranks.py.",
        "",
        "## Five quantiles of every slice",
        "",
        "Nanoseconds a token, queries included; 30 % of the tokens are masked, slices are uneven, tails heavy.",
        "The error is the largest relative one over slices and p50 to p99.9, of ours and of KLL (k = 200). ddsketch",
        "was timed on 20,000 tokens.",
        "",
        "| tokens | slices | sketch | np.percentile | torch.quantile | KLL | ddsketch | memcpy | error | KLL error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["sketch_against_others"]:
        others = [
            f"{row[name]:.1f}" if name in row else "–"
            for name in ("np.percentile", "torch.quantile", "KLL", "ddsketch")
        ]
        lines.append(
            f"| {row['tokens']:,} | {row['slices']} | {row['sketch']:.2f} | {' | '.join(others)} | "
            f"{row['memcpy']:.2f} | {row['error']:.2%} | {row['KLL error']:.0%} |"
        )
    step, merge = result["observe"], result["merge"]
    lines += [
        "",
        f"Merging nine slices takes {merge['sketch']:.0f} µs, with KLL {merge['KLL']:.0f} µs.",
        "",
        "## One step",
        "",
        "64 × 4096 tokens, three pairs. By default the dimensions are context, turn and after_tool_k; every dimension",
        "adds tool, env, policy_lag, advantage, control and applied weights.",
        "",
        "| what | ms |",
        "|---|---|",
        *(f"| {name} | {taken:.1f} |" for name, taken in step.items()),
        "",
        "tests/benchmarks/bench_trl.py measures what attaching to TRL costs. With its small model a step takes a fifth",
        "of a second on two cores. MLflow has a database. TRL logs every tenth step by default.",
        "",
        "Shares of a step. *Hooks and callback* and *end to end* are by the clock, with a 95 % interval. *Writer* is",
        "processor time of the thread that writes to MLflow, most of it for pictures.",
        "",
        "| logged | a step without us | hooks and callback | writer | end to end | 95 % | generations |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {_logged(one)} | {one['step']:.0f} ms | {one['hooks']:.2%} | {one['writer']:.2%} | {one['whole']:+.1%} "
            f"| {one['low']:+.1%} to {one['high']:+.1%} | {one['generations']} |"
            for one in result["trl"]
        ),
        "",
        "## The detectors alone, simulated",
        "",
        "What becomes of it at the Monitor's door, with real tensors and all rules: [alerts.md](alerts.md).",
        "",
        "Detectors on log p95 of post-tool tokens, and on its ratio to text-only; an alert is a step at which both",
        "hold. Noise has a standard deviation of 0.10. Delays of runs that were missed count as infinite.",
        "",
        "| runs | noise and case | what | measured | 90th percentile | missed | aim | runs × steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["alerts"]:
        value, p90 = ("never" if x is None else f"{x:.3g}" for x in (row["value"], row.get("p90", float("nan"))))
        missed = f"{row['missed']:.1%}" if "missed" in row else ""
        aim = "" if row["aim"] is None else f"≤ {row['aim']:.3g}"
        lines.append(
            f"| {row['run']} | {row['case']} | {row['what']}, {row['unit']} | {value} | {p90.replace('nan', '')} | "
            f"{missed} | {aim} | {row['runs']} × {row['steps']:,} |"
        )
    return "\n".join([*lines, ""])
