"""Which faults are planted in which runs, what they must be called, and which half of the benchmark they belong to.

The half is by trainer and task, so no fault of the untouched half is seen on the same task while a rule is fixed. A
third part, of the trainers of the untouched half on tasks of its own, widens what rules are tuned on: the *development*
runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Half = Literal["tuned", "development", "untouched"]

HALVES: dict[tuple[str, str], Half] = {
    ("PPO", "CartPole"): "tuned",
    ("A2C", "CartPole"): "tuned",
    ("SAC", "Reach"): "tuned",
    ("GRPO", "numbers"): "tuned",
    ("SFT", "successor"): "tuned",
    ("agent", "look-up"): "tuned",
    ("PPO", "Brake"): "development",
    ("PPO", "Follow"): "development",
    ("A2C", "Brake"): "development",
    ("A2C", "Follow"): "development",
    ("DQN", "Catch"): "development",
    ("DQN", "Balance"): "development",
    ("one-file PPO", "Acrobot"): "development",
    ("one-file PPO", "Balance"): "development",
    **{(trainer, task): "development" for trainer in ("PPO", "A2C") for task in ("Land", "Maze", "Stock", "Guess")},
    **{("DQN", task): "development" for task in ("Maze", "Stock", "Guess")},
    **{("SAC", task): "development" for task in ("Land", "Follow", "Brake")},
    **{("one-file PPO", task): "development" for task in ("Maze", "Stock", "Guess", "Catch")},
    ("GRPO tool", "rounded"): "development",
    ("DPO", "next"): "development",
    ("SFT", "doubled"): "development",
    ("PPO", "Reach"): "untouched",
    ("A2C", "Reach"): "untouched",
    ("DQN", "CartPole"): "untouched",
    ("one-file PPO", "CartPole"): "untouched",
    ("GRPO tool", "numbers"): "untouched",
    ("DPO", "numbers"): "untouched",
}
"""Each trainer with its task."""

HEALTHY: dict[Half, int] = {"tuned": 8, "development": 24, "untouched": 24}
"""Runs without a fault of each trainer and task. 55 of a half cannot tell 3 % of false alarms from 6 %."""
HEALTHY_LEAST = {"SFT": 16}
"""The same of a trainer, at least; these take seconds."""
BROAD = frozenset(
    {("one-file PPO", "Catch"), ("SAC", "Follow"), ("SAC", "Brake")}
    | {(trainer, task) for trainer, task in HALVES if task in {"Land", "Maze", "Stock", "Guess"}}
)
"""Trainers and tasks that came when all others had 24 healthy runs: other tasks tell more than further seeds of one."""
HEALTHY_BROAD = 8
SEEDS = 2
"""Runs with each fault."""

TOO_LARGE = "POL003 POL004 POL005 POL010 POL011 POL012 POL013 POL016 NUM001 EXP001 EXP003"
"""What an update is called that is too large: a tail of the ratios, KL, clipped share, gradient, entropy."""
NO_LESSON = "OUT003 EXP002 EXP007 EXP008 ADV001 ADV007 REW001"
"""What a run is called that has nothing to learn from."""
CRITIC = "CRI001 CRI002 CRI003 CRI004 CRI005"


@dataclass(frozen=True)
class Fault:
    """One fault on one trainer and task."""

    name: str
    trainer: str
    task: str
    right: frozenset[str]
    """Rules any of which names it rightly. One of outcome counts only where no log tells more than the damage."""
    planted: Mapping[str, Any] = field(default_factory=dict)
    onset: float = 0.0
    """From which share of the run on."""

    @property
    def half(self) -> Half:
        return HALVES[self.trainer, self.task]


def fault(name: str, where: str, right: str, onset: float = 0.0, **planted: Any) -> Fault:
    """A line of the table; `where` is trainer/task."""
    trainer, task = where.split("/")
    # Two rules that came later, and say just this.
    right += " POL020" if "rate_from" in planted else ""
    right += " EXP009" if "exploration_final_eps" in planted else ""
    return Fault(name, trainer, task, frozenset(right.split()), planted, onset)


PPO, A2C, SAC = "PPO/CartPole", "A2C/CartPole", "SAC/Reach"
PPO2, A2C2, DQN, ONE = "PPO/Reach", "A2C/Reach", "DQN/CartPole", "one-file PPO/CartPole"
GRPO, TOOL, DPO, SFT, AGENT = "GRPO/numbers", "GRPO tool/numbers", "DPO/numbers", "SFT/successor", "agent/look-up"
HALF = 0.5
TWINS = {
    PPO2: ["Brake", "Follow", "Land"], A2C2: ["Brake", "Follow", "Stock"], DQN: ["Catch", "Balance", "Maze"],
    ONE: ["Acrobot", "Balance", "Guess"],
    TOOL: ["rounded"], DPO: ["next"],
}  # fmt: skip
"""For each task of the untouched half those of the development runs that have the same faults, with the same names."""
ENDLESS = {"DQN/Catch"}
"""Tasks that nothing but their end ends, so that they cannot be kept from ending."""

PLANTED = (
    # The reward.
    fault("reward with the wrong sign", PPO, "REW004 OUT001 OUT003", reward=-1.0),
    fault("reward with the wrong sign", DQN, "REW004 OUT001 OUT003", reward=-1.0),
    fault("reward with the wrong sign", A2C2, "REW004 OUT001 OUT003", reward=-1.0),
    fault("reward with the wrong sign", SAC, "REW004 OUT001 OUT003", reward=-1.0),
    fault("reward with the wrong sign", GRPO, "REW004 OUT001", weights=[-1.0]),
    fault("reward times 10,000", PPO, f"{CRITIC} NUM001 EXP007 OUT003", reward=1e4),
    fault("reward times 10,000", A2C2, f"{CRITIC} NUM001 EXP007 EXP001 OUT003", reward=1e4),
    fault("reward divided by 10,000", SAC, "EXP002 OUT003 REW001", reward=1e-4),
    fault("scorer returns 0", PPO2, "REW001 REW021 OUT001", HALF, reward_zero_from=HALF),
    fault("scorer returns 0", A2C, "REW001 REW021 OUT001", HALF, reward_zero_from=HALF),
    fault("scorer returns 0", GRPO, "REW001 REW021 ADV001 ADV007 EXP007 OUT001", HALF, zero_from=HALF),
    fault("scorer returns 0", TOOL, "REW001 REW021 ADV001 ADV007 EXP007 OUT001", HALF, zero_from=HALF),
    fault("reward outliers", PPO, "REW003 REW006 CRI005 NUM001", HALF, outlier_from=HALF),
    fault("reward outliers", DQN, "REW003 REW006 CRI005 NUM001", HALF, outlier_from=HALF),
    fault("reward explodes", A2C, "NUM003 NUM004 NUM005 REW006 CRI005", HALF, overflow_from=HALF),
    fault("reward explodes", PPO2, "NUM003 NUM004 NUM005 REW006 CRI005", HALF, overflow_from=HALF),
    fault("length is paid", GRPO, "REW010 REW011 ENV006 REW018", reward="long", weights=[0.3, 1.0]),
    fault("format is paid", GRPO, "REW015 REW018 REW020", reward="digits", weights=[0.0, 1.0]),
    fault("a call is paid, not what comes of it", TOOL, "REW010 REW016 ENV005 REW018",
          reward="called", weights=[0.1, 1.0]),
    # The environment, the tool, the evaluation.
    fault("actions are ignored", PPO, NO_LESSON, random_actions=True),
    fault("actions are ignored", SAC, NO_LESSON, random_actions=True),
    fault("actions are scaled down", PPO2, NO_LESSON, action=0.01),
    fault("actions are scaled down", SAC, NO_LESSON, action=0.01),
    fault("observations go blank", PPO, "OUT001 ENV007 ENV014", HALF, blind_from=HALF),
    fault("observations go blank", DQN, "OUT001 ENV007 ENV014", HALF, blind_from=HALF),
    fault("observations are not normalised", PPO, f"{NO_LESSON} {CRITIC} EXP001", observation=1e-4),
    fault("observations are not normalised", A2C2, f"{NO_LESSON} {CRITIC} EXP001", observation=1e-4),
    fault("episode never ends", PPO, "ENV006 ENV007 OUT003 CRI002", never_ends=True),
    fault("episode never ends", DQN, "ENV006 ENV007 OUT003 CRI002", never_ends=True),
    fault("controls are swapped midway", A2C, "OUT001 ENV007 ENV014", HALF, drift_from=HALF),
    fault("controls are swapped midway", PPO2, "OUT001 ENV007 ENV014", HALF, drift_from=HALF),
    fault("environment slows down", PPO, "RES001 RES002 ENV008", HALF, slow_from=HALF),
    fault("environment slows down", DQN, "RES001 RES002 ENV008", HALF, slow_from=HALF),
    fault("evaluation sees other observations", PPO, "EVA001 EVA002 EVA004", evaluate={"observation": 0.0}),
    fault("evaluation sees other observations", PPO2, "EVA001 EVA002 EVA004", evaluate={"observation": 0.0}),
    fault("tool fails", TOOL, "ENV001 ENV008", HALF, tool_fails_from=HALF),
    fault("completions are cut off", GRPO, "ENV006 ENV011", max_completion_length=2),
    fault("completions are cut off", TOOL, "ENV006 ENV011 ENV009", max_completion_length=8),
    # The update.
    fault("learning rate 0.1", PPO, TOO_LARGE, learning_rate=0.1),
    fault("learning rate 0.1", A2C, TOO_LARGE + " OUT003", learning_rate=0.1),
    fault("learning rate 0.1", ONE, TOO_LARGE, rate=0.1),
    fault("learning rate times 100 midway", PPO2, TOO_LARGE, HALF, rate_from=(HALF, 100.0)),
    fault("learning rate times 100 midway", ONE, TOO_LARGE, HALF, rate_from=(HALF, 100.0)),
    fault("learning rate times 100 midway", GRPO, TOO_LARGE + " OUT004", HALF, rate_from=(HALF, 100.0)),
    fault("learning rate times 100 midway", TOOL, TOO_LARGE + " OUT004 POL001", HALF, rate_from=(HALF, 100.0)),
    fault("learning rate times 100 midway", DPO, "NUM001 SFT001 SFT002 SFT004 OUT002 OUT004 OUT006", HALF,
          rate_from=(HALF, 100.0)),
    fault("learning rate times 100 midway", SFT, "NUM001 SFT001 OUT002 OUT006 EXP003", HALF, rate_from=(HALF, 100.0)),
    fault("learning rate 1e-9", PPO, "EXP007 OUT003", learning_rate=1e-9),
    fault("learning rate 1e-9", A2C2, "EXP007 OUT003", learning_rate=1e-9),
    fault("learning rate 1e-9", TOOL, "EXP007 OUT003 POL015", learning_rate=1e-9),
    fault("learning rate 1e-9", DPO, "EXP007 OUT003 SFT001", learning_rate=1e-9),
    fault("parameters are frozen", PPO2, "EXP007 OUT003", freeze=True),
    fault("parameters are frozen", GRPO, "EXP007 OUT003 POL015", freeze=True),
    fault("100 epochs a batch, no clipping", PPO, TOO_LARGE, n_epochs=100, clip_range=1e6),
    fault("100 epochs a batch, no clipping", ONE, TOO_LARGE, epochs=100, clip=1e6),
    fault("no clipping, learning rate times 5", PPO2, TOO_LARGE, clip_range=1e6, learning_rate=5e-3),
    fault("no clipping, learning rate times 5", ONE, TOO_LARGE, clip=1e6, rate=7.5e-3),
    fault("gradients are never zeroed", ONE, TOO_LARGE + " OUT001 OUT003", keep_gradient=True),
    fault("ratio upside down", ONE, TOO_LARGE + " OUT001 OUT003", inverted=True),
    fault("advantage with the wrong sign", ONE, "OUT001 OUT003 ADV006", sign=True),
    fault("observations of another rollout", ONE, "FRE001 FRE002 OUT003 POL010 POL011 POL012", stale=True),
    fault("one batch is used 16 times", TOOL, TOO_LARGE + " FRE001", num_iterations=16, learning_rate=1e-3),
    fault("a weight overflows", GRPO, "NUM001 NUM002 NUM003 NUM004 NUM005 POL003 POL010 EXP003", HALF,
          blow_up_from=HALF),
    # Credit.
    fault("gamma 0", PPO2, f"{NO_LESSON} CRI001 CRI002", gamma=0.0),
    fault("gamma 0", A2C, f"{NO_LESSON} CRI001 CRI002", gamma=0.0),
    fault("value goes on behind the end", PPO, f"{CRITIC} ENV007 OUT003", bootstrap=True),
    fault("value goes on behind the end", ONE, f"{CRITIC} ENV007 OUT003", bootstrap=True),
    fault("value loss times 1,000,000", PPO, f"{CRITIC} EXP007 NUM001 OUT003", vf_coef=5e5),
    fault("value loss times 1,000,000", PPO2, f"{CRITIC} EXP007 NUM001 OUT003", vf_coef=5e5),
    fault("learning rate 0.5", DQN, "CRI001 CRI005 OUT001 OUT003 NUM001", learning_rate=0.5),
    fault("target network follows at once, learning rate 0.3", SAC, "CRI001 CRI005 OUT001 OUT003 EXP001 NUM001 NUM004",
          tau=1.0, learning_rate=0.3),
    # Exploration.
    fault("entropy bonus far too large", A2C, "EXP002 EXP003 OUT003", ent_coef=100.0),
    fault("entropy bonus far too large", ONE, "EXP002 EXP003 OUT003", entropy=10.0),
    fault("entropy bonus far too large", SAC, "EXP002 EXP003 OUT003", ent_coef=20.0),
    fault("exploration never ends", DQN, "EXP002 OUT003", exploration_final_eps=1.0),
    fault("hardly any exploration", GRPO, "ADV001 ADV007 EXP001 EXP007 OUT003", temperature=0.02),
    # Data of supervised training.
    fault("labels are random", SFT, "SFT001 OUT003 EXP008 SFT003", labels="random"),
    fault("labels are random", DPO, "SFT001 OUT003 EXP008 SFT003", labels="random"),
    fault("chosen and rejected are swapped", DPO, "REW004 OUT002 EVA002 SFT003", labels="swapped"),
    fault("chosen and rejected are the same", DPO, "SFT001 OUT003 EXP008", labels="same"),
    fault("ten samples again and again", SFT, "SFT003 OUT005", few=10),
    fault("ten samples again and again", DPO, "SFT003 OUT005", few=10),
    # The demo's agent; rules were tuned on it before there was a benchmark.
    fault("stale sampler, no clipping, tool answers widen", AGENT, TOO_LARGE + " POL001 POL017 POL018 FRE001", 80 / 300,
          arm="collapse"),
    fault("stale sampler, no clipping", AGENT, TOO_LARGE + " POL017 POL018 FRE001", 80 / 300, arm="stale-narrow"),
)  # fmt: skip


DEVELOPMENT = (
    # Besides the twins: a trainer of the tuned half on another task, and a fault at another strength.
    fault("learning rate times 300 midway", "DPO/next", "NUM001 SFT001 SFT002 SFT004 OUT002 OUT004 OUT006", HALF,
          rate_from=(HALF, 300.0)),
    fault("labels are random", "SFT/doubled", "SFT001 OUT003 EXP008 SFT003", labels="random"),
    fault("ten samples again and again", "SFT/doubled", "SFT003 OUT005", few=10),
    fault("learning rate times 100 midway", "SFT/doubled", "NUM001 SFT001 OUT002 OUT006 EXP003", HALF,
          rate_from=(HALF, 100.0)),
    fault("learning rate 1e-9", "SFT/doubled", "EXP007 OUT003 SFT001", learning_rate=1e-9),
)  # fmt: skip


def twins(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The same faults on the tasks of the development runs."""
    return tuple(
        replace(item, task=task)
        for item in faults
        for task in TWINS.get(f"{item.trainer}/{item.task}", ())
        if not (f"{item.trainer}/{task}" in ENDLESS and "never_ends" in item.planted)
    )


FAULTS = (*PLANTED, *twins(PLANTED), *DEVELOPMENT)


@dataclass(frozen=True)
class Planned:
    """One run to be made."""

    trainer: str
    task: str
    seed: int
    fault: Fault | None
    evaluated: bool = False
    """Whether a healthy run has an evaluation too, of the environment that it is trained in."""

    @property
    def planted(self) -> Mapping[str, Any]:
        healthy: Mapping[str, Any] = {"evaluate": {}} if self.evaluated else {}
        return healthy if self.fault is None else self.fault.planted

    @property
    def name(self) -> str:
        return f"{self.trainer}, {self.task}, {self.fault.name if self.fault else 'healthy'}, {self.seed}"


CONTROL = {"PPO", "A2C", "DQN", "SAC"}
"""Trainers of Stable-Baselines3."""
FRESH_HEALTHY, FRESH_FAULTY = 10, 3
"""Runs of each trainer and task, and with each fault, that rules earn their record by."""
FRESH_MANY = {"SFT": 72, "DPO": 72, "DQN": 45}
"""The same of healthy runs where some rules have an input that few trainers log. A rule needs 200 healthy runs."""


def planned() -> list[Planned]:
    """All runs, first each fault once and as many healthy ones, so that a part of them is a benchmark too."""
    runs: list[tuple[float, Planned]] = []
    for item in FAULTS:
        runs += [(seed / SEEDS, Planned(item.trainer, item.task, seed, item)) for seed in range(SEEDS)]
    for (trainer, task), half in HALVES.items():
        many = max(HEALTHY[half], HEALTHY_LEAST.get(trainer, 0))
        many = HEALTHY_BROAD if (trainer, task) in BROAD else many
        runs += [(seed / many, Planned(trainer, task, seed, None)) for seed in range(many)]
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]


def fresh(first_seed: int) -> list[Planned]:
    """Runs that no rule was changed by: the tuned and development tasks from `first_seed` on, healthy and faulty in
    turn. The untouched half earns nothing.
    """
    seen = [(trainer, task) for (trainer, task), half in HALVES.items() if half != "untouched"]
    runs: list[tuple[float, Planned]] = []
    for trainer, task in seen:
        many = FRESH_MANY.get(trainer, FRESH_HEALTHY)
        runs += [
            (seed / many, Planned(trainer, task, first_seed + seed, None, seed % 2 == 0 and trainer in CONTROL))
            for seed in range(many)
        ]
    for seed in range(FRESH_FAULTY):
        runs += [
            (seed / FRESH_FAULTY, Planned(fault.trainer, fault.task, first_seed + seed, fault))
            for fault in FAULTS
            if fault.half != "untouched"
        ]
    return [run for _, run in sorted(runs, key=lambda pair: pair[0])]
