"""Which tool agents are trained: faults with a random beginning and size, and healthy runs, among them their twins."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

PLACES = tuple((algorithm, task) for task in ("look-up", "arithmetic") for algorithm in ("GRPO", "PPO"))
HEALTHY = 80
"""Healthy runs of each place; each faulty one has its twin among them."""
FAULTY = 4
"""Runs with each fault in each place."""

UPDATE = "POL003 POL004 POL005 POL010 POL011 POL012 POL013 POL016 NUM001 EXP001 EXP003"
"""What an update is called that is too large, as in plan.py."""
STALE = "FRE001 FRE005 FRE007 POL003 POL004 POL007 POL010 POL011 POL016 POL017 POL018"


@dataclass(frozen=True)
class Settings:
    """How a run is trained; nothing in it is a fault."""

    algorithm: Literal["GRPO", "PPO"] = "GRPO"
    task: str = "look-up"
    steps: int = 100
    prompts: int = 6
    group: int = 8
    updates: int = 2
    rate: float = 6e-4
    warm_up: int = 0
    beta: float = 0.01
    noise: float = 0.0
    """Standard deviation of what is added to each reward."""
    shares: tuple[float, float] = (0.7, 0.7)
    """Of the prompts that need a tool, at the start and at the end."""
    width: float = 0.05
    wave: float = 0.0
    """How far the width of tool results swings above `width`, every 30 steps or so."""
    skilled: bool = False
    """Whether the first policy solves most tasks already."""
    seconds: float = 0.5
    limit: int = 34
    """Tokens of a response."""
    bypass: bool = False
    """Whether the sampler's log-probabilities are taken for the old ones, and not computed anew."""
    evaluate: tuple[int, ...] = ()
    """Steps with an evaluation."""
    greedy: bool = True
    names: Literal["trl", "verl"] = "trl"
    components: bool = False
    samples: bool = False
    verified: bool = False
    """Whether `samples` says which sequences have solved their task."""
    ranks: int = 1


@dataclass(frozen=True)
class Slip:
    """The sampler reads its context with an error: where tool results are in it, or before any."""

    size: float
    where: Literal["post_tool", "text_only", "first_tool"] = "post_tool"
    share: float = 1.0
    """Of the sequences."""
    often: float = 1.0
    """Share of the steps."""

    def reached(self, tool: int) -> bool:
        """Whether it is of a place where `tool` answered last, -1 for none."""
        return {"post_tool": tool >= 0, "text_only": tool < 0, "first_tool": tool == 0}[self.where]


@dataclass(frozen=True)
class Kind:
    """A fault, from mild to gross."""

    name: str
    right: str
    """Rules that name it rightly."""
    planted: Callable[[random.Random], Mapping[str, Any]]
    fits: Callable[[Settings], bool] = lambda settings: True
    """Which healthy runs may be its twin."""
    onset: tuple[float, float] = (0.35, 0.7)
    """From which share of the run on, at random between these."""


def between(rng: random.Random, low: float, high: float) -> float:
    """A size, evenly on the scale of its logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def learns(settings: Settings) -> bool:
    """Whether the policy has the time to learn what is paid wrongly, and an evaluation shows it."""
    return settings.rate > 4e-4 and bool(settings.evaluate)


def finds(settings: Settings) -> bool:
    """Whether it has the time to find what nobody has shown it."""
    return learns(settings) and settings.rate * settings.steps > 0.06


EARLY = (0.2, 0.45)


def slips(**fixed: Any) -> Callable[[random.Random], Mapping[str, Any]]:
    return lambda rng: {"slip": Slip(between(rng, 0.1, 0.6), **fixed)}


KINDS = (
    # Tools.
    Kind("tools fail", "ENV001 ENV008",
         lambda rng: {"fails": between(rng, 0.2, 0.9), "times_out": rng.choice([0, 0.5])}),
    Kind("one tool fails", "ENV001 ENV008 ENV013",
         lambda rng: {"fails": between(rng, 0.3, 0.95), "first_tool_alone": 1}),
    Kind("tools are slow", "ENV008 RES001 RES002", lambda rng: {"slower": between(rng, 2, 40)}),
    Kind("tools answer in another form", "POL001 POL002 ENV014", lambda rng: {"width": between(rng, 0.3, 1.0)}),
    Kind("one tool answers in another form", "POL001 POL002 POL019 ENV013 ENV014",
         lambda rng: {"width": between(rng, 0.4, 1.0), "first_tool_alone": 1}),
    Kind("tool calls are left out", "ENV009 ENV002 EXP006 ENV003", lambda rng: {"skipped": between(rng, 0.4, 1.0)}),
    Kind("a call costs more than it brings", "ENV009 ENV002 REW010 REW016 REW019",
         lambda rng: {"cost": between(rng, 0.9, 1.8)}, learns, EARLY),
    Kind("answers are cut off", "ENV006 ENV011", lambda rng: {"limit": rng.choice([8, 10, 12])}),
    # The sampler.
    Kind("sampler is versions behind", STALE, lambda rng: {"lag": round(between(rng, 4, 24))}),
    Kind("sampler gets no weights any more", STALE, lambda rng: {"frozen": 1}),
    Kind("sampler's weights are rounded", "POL003 POL004 POL007 POL016", lambda rng: {"bits": rng.choice([4, 5, 6])}),
    Kind("sampler errs after tools", "POL001 POL007", slips(where="post_tool")),
    Kind("sampler errs after one tool", "POL001 POL007 POL019", slips(where="first_tool")),
    Kind("sampler errs before tools", "POL016 POL007 POL003", slips(where="text_only")),
    Kind("sampler errs in few sequences", "POL018 POL001 POL005 POL004",
         lambda rng: {"slip": Slip(between(rng, 1.0, 3.0), share=0.06)},
         lambda settings: settings.prompts * settings.group >= 64),
    Kind("sampler errs in some steps", "POL017 POL001", lambda rng: {"slip": Slip(between(rng, 0.3, 1.5), often=0.12)},
         lambda settings: settings.prompts * settings.group >= 64 and settings.steps >= 80, EARLY),
    # The reward and the evaluation.
    Kind("answers that begin with 7 are paid", "REW010 REW005 REW014 REW017 EVA002 OUT002",
         lambda rng: {"seven": between(rng, 1.2, 2.5)}, finds, EARLY),
    Kind("length is paid", "REW010 REW011 REW014 ENV006 REW018 EVA002", lambda rng: {"filler": between(rng, 0.8, 2.5)},
         finds, EARLY),
    Kind("few tasks again and again", "EVA002 OUT002 OUT005", lambda rng: {"few": rng.choice([1, 2, 3])},
         lambda settings: learns(settings) and settings.rate > 6e-4 and settings.noise > 0, EARLY),
    Kind("rewards after tools are random", "POL002 REW005 OUT001 OUT002 EXP003 EVA002",
         lambda rng: {"random": between(rng, 0.5, 1.0)}, learns, EARLY),
    # The update, and the ranks.
    Kind("learning rate is too high", f"{UPDATE} POL001 POL002 POL020 OUT004",
         lambda rng: {"rate": between(rng, 8, 50)}),
    Kind("a rank stops", "RES007", lambda rng: {"stops": 1}, lambda settings: settings.ranks > 1),
)  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One run to be made."""

    algorithm: str
    task: str
    seed: int
    fault: str | None = None
    """The name of its kind; it goes to other processes, and a kind has functions."""

    @property
    def kind(self) -> Kind | None:
        return next((kind for kind in KINDS if kind.name == self.fault), None)

    @property
    def trainer(self) -> str:
        return f"{self.algorithm} with tools"

    @property
    def name(self) -> str:
        return f"{self.trainer}, {self.task}, {self.fault or 'healthy'}, {self.seed}"

    @property
    def settings(self) -> Settings:
        return settings_of(self.algorithm, self.task, self.seed)


def settings_of(algorithm: Any, task: str, seed: int) -> Settings:
    """Settings of a run, the same for a faulty one and its healthy twin."""
    rng = random.Random(f"{algorithm} {task} {seed}")
    steps = rng.choice([60, 80, 100])
    prompts, group = rng.choice(
        [(4, 8), (8, 4), (5, 6), (3, 10), (8, 8)] if algorithm == "GRPO" else [(32, 1), (40, 1), (64, 1)]
    )
    skilled = rng.random() < 0.2
    every = rng.choice([5, 8, 0])
    evaluations = range(0, steps, every) if every else sorted(rng.sample(range(steps), steps // 6))
    share = rng.uniform(0.5, 0.9)
    return Settings(
        algorithm, task, steps, prompts, group,
        updates=rng.choice([1, 1, 2, 2, 3]),
        rate=between(rng, 2e-4, 1.2e-3) * (0.4 if rng.random() < 0.15 else 1),
        warm_up=rng.choice([0, 0, 0, 15]),
        beta=rng.choice([0.0, 0.01, 0.05]),
        noise=rng.choice([0.0, 0.0, 0.1, 0.3]),
        shares=rng.choice([(share, share), (share, share), (0.4, 0.9)]),
        width=rng.choice([0.0, 0.05, 0.15]),
        wave=rng.choice([0.0, 0.0, 0.15]),
        skilled=skilled,
        seconds=between(rng, 0.1, 3),
        bypass=rng.random() < 0.2,
        evaluate=tuple(evaluations) if rng.random() < 0.95 else (),
        greedy=rng.random() < 0.5,
        names="verl" if algorithm == "PPO" or rng.random() < 0.4 else "trl",
        components=rng.random() < 0.3,
        samples=rng.random() < 0.9,
        verified=rng.random() < 0.5,
        ranks=2 if rng.random() < 0.15 else 1,
    )  # fmt: skip


def planned(first_seed: int) -> list[Planned]:
    """All runs, faulty ones and their twins first and of each kind in turn, then further healthy ones."""
    runs: dict[str, Planned] = {}
    for again in range(FAULTY):
        for number, kind in enumerate(KINDS):
            for algorithm, task in PLACES:
                start = 7 * number + 31 * again
                seeds = (first_seed + (start + more) % HEALTHY for more in range(HEALTHY))
                seed = next(seed for seed in seeds if kind.fits(settings_of(algorithm, task, seed)))
                for run in (Planned(algorithm, task, seed, kind.name), Planned(algorithm, task, seed)):
                    runs.setdefault(run.name, run)
    for seed in range(first_seed, first_seed + HEALTHY):
        for algorithm, task in PLACES:
            run = Planned(algorithm, task, seed)
            runs.setdefault(run.name, run)
    return list(runs.values())
