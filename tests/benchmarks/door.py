"""What the alarms make of real tensors: `make alerts` writes docs/alerts.json, from which docs/alerts.md is made.

Every run goes through `Monitor.observe` and `Monitor.log` with all the catalogue's rules. The log-ratios are drawn for
each token, normal unless said, with a standard deviation that itself moves by 10 % from step to step, as AR(.8), in
each slice on its own. A failure begins at step 120, or where its kind says. A run is found if a rule fires at warn or
above from there on. It is named rightly if one of the rules that the failure may be called by is the first, on the
right slice or cell. A failing run ends with the first rule that fires: what comes after it is not counted.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

import tracker_diag as td
from tracker_diag.rules.alerts import Notice

FIRST_SEED = 50_000
"""None from here on was looked at while detectors and rules were made."""

ONSET = 120
STEPS = 300
TOOLS = ("search", "python", "browser", "shell")
ENVIRONMENTS = ("math", "web", "code", "chat", "files")
PROMPT = 2

Batch = dict[str, Any]


@dataclass
class World:
    """A run's batches: `size` sequences of `width` tokens, of which `tools` have a tool's answer in their middle."""

    size: int = 64
    width: int = 44
    tools: float = 0.5
    noise: float = 0.1
    """Standard deviation of the logarithm of the scale, from step to step, AR(.8)."""
    scale: float = 0.05
    pairs: tuple[str, ...] = ("policy",)
    names: bool = False
    """Whether tools and environments are given."""
    degrees: int | None = None
    """Of freedom of a t distribution; normal where there are none."""
    tail: int | None = None
    """Tokens after a tool in each sequence that has one; all that fit by default."""
    ragged: bool = False
    """Whether sequences have between half and all of the width. A mean log-ratio of −σ²/2 then shows in their sums."""


@dataclass(frozen=True)
class Scenario:
    """A kind of run."""

    name: str
    world: World = field(default_factory=World)
    factors: Callable[..., np.ndarray] | None = None
    """(size, width) by what each token's scale is multiplied: of step, after (size, width), tool, env (size,), rng."""
    common: Callable[[int], float] = lambda step: 1.0
    """By what all tokens' scales are multiplied."""
    rules: tuple[str, ...] = ()
    """What it may be called; nothing for a healthy run."""
    slice: str = ""
    steps: int = STEPS
    begins: int = ONSET
    """The step of the failure."""
    change: Callable[[World, int], World] | None = None
    """What the world is at a step."""


class Loud(td.Tracker):
    """The findings at warn or above that have fired, and are not part of another; and the alerts that people got."""

    name = "loud"
    takes = (td.Finding, Notice)
    local = True

    def __init__(self) -> None:
        self.findings: list[td.Finding] = []
        self.rules: set[str] = set()
        """Rules that would have been loud, had all a record."""
        self.notices = 0

    def write(self, step: int, entries: Sequence[Any], at: float) -> None:
        for entry in entries:
            if isinstance(entry, Notice):
                self.notices += 1
            elif entry.state == "firing" and entry.full_severity != "info" and entry.inhibited_by is None:
                self.rules.add(entry.rule.id)
                if entry.severity != "info":
                    self.findings.append(entry)


def play(scenario: Scenario, seed: int) -> dict[str, Any]:
    """One run of `scenario`: what fired first, where and when."""
    os.environ["TRACKER_DIAG_QUIET"] = "1"
    rng = np.random.default_rng([seed, *scenario.name.encode()])
    loud = Loud()
    monitor = td.Monitor([loud], source="alerts")
    drift = np.zeros(2)
    for step in range(scenario.steps):
        world = scenario.change(scenario.world, step) if scenario.change else scenario.world
        drift = 0.8 * drift + world.noise * math.sqrt(1 - 0.8**2) * rng.normal(size=2)
        monitor.observe(**batch(scenario, world, step, np.exp(drift), rng))
        learnt = 0.7 - 0.3 * math.exp(-step / 200)
        monitor.log({"reward": learnt + 0.02 * rng.normal()}, step)
        if loud.findings and scenario.rules:  # a healthy run continues, to count alerts
            break
    monitor.close()
    fired = sorted(loud.findings, key=lambda finding: (finding.onset, finding.rule.id))
    return {
        "first": [fired[0].rule.id, fired[0].slice, fired[0].fired, fired[0].onset] if fired else None,
        "loud": sorted(loud.rules),
        "blind": sorted(monitor.summary().blind),
        "notices": loud.notices,
    }


def batch(scenario: Scenario, world: World, step: int, drift: np.ndarray, rng: np.random.Generator) -> Batch:
    """The tensors of one step."""
    shape = size, width = world.size, world.width
    with_tool = np.arange(size) < round(world.tools * size)
    model = np.ones(shape, bool)
    model[:, :PROMPT] = False
    answer = max(width // 8, 2)
    middle = width // 2 if world.tail is None else width - answer - world.tail
    model[with_tool, middle : middle + answer] = False
    response = np.ones(shape, bool)
    response[:, :PROMPT] = False
    if world.ragged:
        response &= np.arange(width) < rng.integers(width // 2, width + 1, size)[:, None]
        model &= response
    after = with_tool[:, None] & (np.arange(width) >= middle + answer)
    tool = rng.integers(0, len(TOOLS), size)
    env = rng.integers(0, len(ENVIRONMENTS), size)
    scale = world.scale * scenario.common(step) * np.where(after, drift[1], drift[0])
    if scenario.factors:
        scale = scale * scenario.factors(step, after, tool, env, rng)
    new = -1.5 - rng.gamma(2, 0.5, shape)
    given: Batch = {"logprobs": new, "response_mask": response, "model_mask": model}

    def noise() -> np.ndarray:
        drawn = rng.normal(size=shape) if world.degrees is None else rng.standard_t(world.degrees, shape)
        return scale * drawn - (scale**2 / 2 if world.ragged else 0.0)

    old = new - noise() if "policy" in world.pairs else None
    if old is not None:
        given["old_logprobs"] = old
    if "mismatch" in world.pairs and old is not None:
        given["rollout_logprobs"] = old - np.abs(noise()) * rng.choice([-1, 1], shape)
    if "reference" in world.pairs:
        given["ref_logprobs"] = new - noise() * min(1.0, 0.2 + step / 100)
    if world.names:
        given["tool"] = np.where(after, np.array(TOOLS)[tool][:, None], "")
        given["env"] = np.array(ENVIRONMENTS)[env]
    return given


def at_once(factor: float, *, where: str) -> Callable[..., np.ndarray]:
    """`factor` from the onset on, after tools or before them."""
    return over(1, factor, where=where)


def over(steps: int, factor: float, *, where: str) -> Callable[..., np.ndarray]:
    """Rising to `factor` over `steps` steps from the onset, and on at that pace; at once it stays."""

    def factors(step: int, after: np.ndarray, *_: Any) -> np.ndarray:
        ramp = max(0.0, step - ONSET + 1) / steps
        now = factor ** (min(ramp, 1.0) if steps == 1 else ramp)
        return np.where(after if where == "post_tool" else ~after, now, 1.0)

    return factors


def decay_then(factor: float) -> Callable[..., np.ndarray]:
    """The tail falls from 2.5 to 1 over the first 100 steps, and is multiplied by `factor` at step 200."""

    def factors(step: int, after: np.ndarray, *_: Any) -> np.ndarray:
        learnt = 1 + 1.5 * math.exp(-step / 40)
        return np.where(after, learnt * (factor if step >= ONSET + 80 else 1.0), learnt)

    return factors


def few(share: float, factor: float) -> Callable[..., np.ndarray]:
    """`share` of the tokens after tools are `factor` times as far off, from the onset on."""

    def factors(step: int, after: np.ndarray, _: Any, __: Any, rng: np.random.Generator) -> np.ndarray:
        return np.where(after & (step >= ONSET) & (rng.random(after.shape) < share), factor, 1.0)

    return factors


def bursts(share: float, factor: float) -> Callable[..., np.ndarray]:
    """In `share` of the steps from the onset on, all tokens after tools are `factor` times as far off."""

    def factors(step: int, after: np.ndarray, _: Any, __: Any, rng: np.random.Generator) -> np.ndarray:
        hit = rng.random() < share and step >= ONSET
        return np.where(after & hit, factor, 1.0)

    return factors


def one_of(names: tuple[str, ...], factor: float) -> Callable[..., np.ndarray]:
    """From the onset on tokens after the first tool, or all of the first environment, are `factor` times as far off."""

    def factors(step: int, after: np.ndarray, tool: np.ndarray, env: np.ndarray, _: Any) -> np.ndarray:
        part = after & (tool == 0)[:, None] if names is TOOLS else np.broadcast_to((env == 0)[:, None], after.shape)
        return np.where(part & (step >= ONSET), factor, 1.0)

    return factors


def often(common: Sequence[float]) -> Callable[[int], float]:
    """Several updates of one batch: all scales follow these factors, again and again; the first has a ratio of 1."""
    return lambda step: common[step % len(common)]


TWO, FOUR = often((0.0, 1.0)), often((0.0, 1.0, 1.6, 2.2))


def warm_up(step: int) -> float:
    """All ratios grow from 0 over 100 steps, as the learning rate does."""
    return min(1.0, (step + 1) / 100)


def every_fifth(step: int, after: np.ndarray, *_: Any) -> np.ndarray:
    """One kind of batch that has always come has tails 2.5 times as long after tools."""
    return np.where(after & (step % 5 == 0), 2.5, 1.0)


def drift(steps: int) -> Callable[[int], float]:
    return lambda step: 3.0 ** (step / steps)


def later(begins: int, factor: float) -> Callable[..., np.ndarray]:
    """`factor` after tools from step `begins` on."""
    return lambda step, after, *_: np.where(after & (step >= begins), factor, 1.0)


POST, TEXT = ("POL001",), ("POL016",)
NAMED = World(names=True)
FAILURES = (
    Scenario("after tools ×2 over 100 steps", factors=over(100, 2, where="post_tool"), rules=POST, slice="post_tool"),
    Scenario("after tools ×2 at once", factors=at_once(2, where="post_tool"), rules=POST, slice="post_tool"),
    Scenario("after tools ×4 at once", factors=at_once(4, where="post_tool"), rules=POST, slice="post_tool"),
    Scenario(
        "falls 2.5 → 1, then ×2 after tools",
        factors=decay_then(2),
        rules=POST,
        slice="post_tool",
        steps=380,
        begins=ONSET + 80,
    ),
    Scenario("3 % of the tokens after tools ×6", factors=few(0.03, 6), rules=("POL018",), slice="post_tool"),
    Scenario("bursts: 10 % of the steps ×4", factors=bursts(0.1, 4), rules=("POL017",), slice="post_tool"),
    Scenario(
        "bursts: one step of eight ×3, the sampler's too",
        World(pairs=("policy", "mismatch")),
        bursts(1 / 8, 3),
        rules=("POL017",),
        slice="post_tool",
    ),
    Scenario("before tools ×3 at once", factors=at_once(3, where="text_only"), rules=TEXT, slice="text_only"),
    Scenario("one of four tools ×2", NAMED, one_of(TOOLS, 2), rules=("POL019",), slice="tool:search"),
    Scenario("one of four tools ×4", NAMED, one_of(TOOLS, 4), rules=("POL019",), slice="tool:search"),
    Scenario("one of five environments ×2", NAMED, one_of(ENVIRONMENTS, 2), rules=("POL019",), slice="env:math"),
    Scenario("one of five environments ×4", NAMED, one_of(ENVIRONMENTS, 4), rules=("POL019",), slice="env:math"),
    *(
        Scenario(
            f"{name} updates a batch, ×{factor} after tools",
            World(size=32),
            later(ONSET, factor),
            common,
            POST,
            "post_tool",
            360,
        )
        for name, common in (("two", TWO), ("four", FOUR))
        for factor in (2, 4, 8)
    ),
    Scenario(
        "warm-up of 100 steps, then ×2 after tools", World(size=32), later(150, 2), warm_up, POST, "post_tool", 350, 150
    ),
    Scenario(
        "20 tokens after tools a step, ×4",
        World(size=8, tail=5),
        later(ONSET, 4),
        rules=POST,
        slice="post_tool",
        steps=420,
    ),
    Scenario(
        "tools in one step of ten, ×4",
        World(size=32),
        later(ONSET, 4),
        rules=POST,
        slice="post_tool",
        steps=420,
        change=lambda world, step: replace(world, tools=0.5 * (step % 10 == 0)),
    ),
)


def _walk(step: int) -> float:
    return math.exp(0.15 * math.sin(step / 37) + 0.05 * math.sin(step / 11))


def _changed(name: str, value: Callable[[int], Any]) -> Callable[[World, int], World]:
    return lambda world, step: replace(world, **{name: value(step)})


BF16 = World(size=8, scale=0.055, noise=0.02, pairs=("policy", "mismatch"))


def _bf16(width: int) -> Scenario:
    size = max(2, min(64, 65536 // width))
    return Scenario(f"noise of bf16, {width:,} tokens", replace(BF16, width=width, size=size), steps=120)


HEALTHY = (
    Scenario("nothing happens", steps=1000),
    Scenario("all ratios fall", common=lambda step: 1 + 1.5 * math.exp(-step / 60), steps=1000),
    Scenario("both slices wander together", common=_walk, steps=1000),
    Scenario("tool share 0 → 60 %", change=_changed("tools", lambda step: min(0.6, step / 500)), steps=600),
    Scenario("answers grow longer", change=_changed("width", lambda step: 30 + step // 10), steps=600),
    Scenario("first tool at step 100", change=_changed("tools", lambda step: 0.5 * (step >= 100)), steps=600),
    Scenario("the batch halves", change=_changed("size", lambda step: 64 if step < 150 else 32), steps=600),
    Scenario("heavy tails, t(4)", World(degrees=4, scale=0.04), steps=1000),
    *(_bf16(width) for width in (64, 1024, 8192, 32768)),
    Scenario("two updates a batch", World(size=32), common=TWO, steps=600),
    Scenario("four updates a batch", World(size=32), common=FOUR, steps=600),
    Scenario("warm-up of 100 steps", World(size=32), common=warm_up),
    Scenario("waves of ×1.8", World(size=32), common=lambda step: math.exp(0.3 * math.sin(step / 37)), steps=1000),
    Scenario("one step of five ×2.5, always", World(size=32), every_fifth, steps=600),
    Scenario("20 tokens after tools a step", World(size=8, tail=5), steps=1000),
    Scenario(
        "tools in one step of ten",
        World(size=32),
        steps=1000,
        change=lambda world, step: replace(world, tools=0.5 * (step % 10 == 0)),
    ),
    *(
        Scenario(
            f"{steps:,} steps of drift to ×3, below the limit",
            World(size=12, scale=0.006),
            common=drift(steps),
            steps=steps,
        )
        for steps in (1500, 5000)
    ),
    *(
        Scenario(
            f"ragged lengths up to {width:,} tokens",
            World(max(4, 65536 // width), width, scale=0.055, noise=0.02, ragged=True),
            steps=60,
        )
        for width in (4096, 16384, 32768)
    ),
    Scenario("tools and environments are named", NAMED, steps=600),
    Scenario("all three pairs", World(pairs=("policy", "mismatch", "reference")), steps=600),
)


def row(scenario: Scenario, results: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one kind of run."""
    firsts = [result["first"] for result in results]
    begun = scenario.begins
    if not scenario.rules:
        alarmed = [first for first in firsts if first]
        return {"name": scenario.name, "runs": len(results), "alarmed": len(alarmed), "by": sorted(
            {f"{rule} {name}" for rule, name, *_ in alarmed}),
            "notices": max(result["notices"] for result in results)}  # fmt: skip
    outcome = [first for first in firsts if first and first[2] >= begun]
    names = [(rule, scenario.slice) for rule in scenario.rules]
    right = [first for first in outcome if (first[0], first[1]) in names]
    delays = sorted(first[2] - begun + 1 for first in outcome)
    return {
        "name": scenario.name,
        "runs": len(results),
        "early": sum(bool(first) and first[2] < begun for first in firsts),
        "found": len(outcome),
        "named": len(right),
        "delay": median(delays) if delays else None,
        "late": delays[math.ceil(0.9 * len(delays)) - 1] if delays else None,
        "else": sorted({f"{rule} {name}" for rule, name, *_ in outcome if (rule, name) not in names}),
    }


def simulate(runs: int, only: str, kept: Path) -> list[dict[str, Any]]:
    """A row for each kind of run; runs that `kept` has, a line of JSON each, are not made again, and new ones go there.

    Seeds are the outer loop: whenever it is stopped, there are as many runs of each kind.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    done = {(name, seed): result for name, seed, result in map(json.loads, kept.read_text().splitlines())}
    scenarios = [item for item in (*FAILURES, *HEALTHY) if only in item.name]
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    left = [(item.name, seed) for seed in seeds for item in scenarios if (item.name, seed) not in done]
    with ProcessPoolExecutor() as pool, kept.open("a") as out:
        for part, result in zip(left, pool.map(_play, left), strict=True):
            done[part] = result
            out.write(json.dumps([*part, result], ensure_ascii=False) + "\n")
            out.flush()
    return [row(item, [done[item.name, seed] for seed in seeds]) for item in scenarios]


def _play(which: tuple[str, int]) -> dict[str, Any]:
    """`play`, for another process: scenarios hold functions, and are not sent."""
    name, seed = which
    (scenario,) = (item for item in (*FAILURES, *HEALTHY) if item.name == name)
    return play(scenario, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--only", default="", help="of the kinds of run, those whose name has this")
    parser.add_argument("--kept", type=Path, required=True, help="the runs so far; with other rules begin a new file")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = simulate(arguments.runs, arguments.only, arguments.kept)
    lines = [json.dumps(item, ensure_ascii=False) for item in rows]
    sys.stdout.write("\n".join(lines) + "\n")
    if arguments.out:
        arguments.out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
