"""Simulated failures: healthy runs in which something goes wrong, by the link of the loop that breaks.

What happens is in failures_of_the_task.py and failures_of_training.py; onset, ramp and size are drawn for each run.
An onset of 0 means that it is ill from the start.
"""

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np


def _module(name):
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name(f"{name}.py"))))


simulated, task, training = (_module(name) for name in ("simulated", "failures_of_the_task", "failures_of_training"))


class Case:
    """A run that is about to fail, and what is drawn of how it does."""

    def __init__(self, run, rng):
        self.run, self.rng, self.n = run, rng, len(run)
        self.series = run.series
        self.draw = simulated.Draw(rng, self.n)
        self.onset = int(rng.integers(100, 221))
        self.between = rng.uniform

    def since(self, low, high):
        """(n,) 0 before the onset, then rising to 1 over `low` to `high` rows."""
        return np.clip((np.arange(self.n) - self.onset) / self.between(low, high), 0, 1)

    def share(self, name, level, a):
        """The share `name` goes to `level`."""
        self.series[name] = self.draw.share((1 - a) * self.series[name] + a * level, 0.05)

    def times(self, name, factor, a):
        """`name` goes to `factor` times what it would have been."""
        self.series[name] = self.series[name] * factor**a

    def plus(self, name, change, a):
        self.series[name] = self.series[name] + change * a

    def scores(self, change, a):
        """The evaluation follows with what noise it has."""
        self.series["eval_score"] = np.clip(self.series["eval_score"] + change * a, 0, 1)

    def evaluated(self, level, spread, rows):
        """(n,) a score that comes every so many rows."""
        return simulated.every(level + spread * self.rng.normal(size=self.n), rows)

    def falls(self, part, a):
        """What the policy could do is lost in part: reward, success and evaluation fall together."""
        s, least = self.series, self.series["reward_min"]
        s["reward"] = least + (s["reward"] - least) * (1 - part * a)
        for name in ("success_rate", "eval_score"):
            s[name] = s[name] * (1 - part * a)

    @property
    def scale(self):
        """How much reward a solved task is worth."""
        return self.series["reward_max"][0] - self.series["reward_min"][0]

    def reward(self, change, a):
        """The reward moves by `change` of what a solved task is worth."""
        self.plus("reward", change * self.scale, a)


@dataclass(frozen=True)
class Failure:
    link: str
    """The link of the loop that breaks; `supervised` for what fails in fine-tuning and on preferences."""
    algorithms: tuple[str, ...]
    happens: Callable
    named: frozenset[str]
    """The rules that name it rightly: the pathology itself, or one that it is a case of."""
    first: frozenset[str]
    """Those that are right as the first break."""
    base: dict
    """What kind of healthy run it happens in."""


def failure(link, algorithms, happens, named, *, first=None, base=None):
    return Failure(link, algorithms, happens, frozenset(named.split()), frozenset((first or named).split()), base or {})


RL, GROUPS, ALL = ("ppo", "grpo", "gspo"), ("grpo", "gspo"), ("ppo", "grpo", "gspo", "dpo", "sft")
STALLED = {"stalled": True}
FROM_ZERO = {"from_zero": True}
"""What outgrows what a ratio reports, so that rewards have to be positive."""

FAILURES = {
    "tools fail": failure("environment", RL, task.tools_fail, "ENV001"),
    "malformed calls": failure("environment", RL, task.malformed_calls, "ENV003"),
    "responses cut": failure("environment", RL, task.truncation, "ENV006"),
    "tools slow under load": failure("environment", RL, task.tools_slow_under_load, "ENV008"),
    "failed calls rewarded": failure("environment", RL, task.failures_rewarded, "ENV005", base=FROM_ZERO),
    "protocol changed": failure("evaluation", RL, task.protocol_changed, "EVA001"),
    "memorised": failure("evaluation", RL, task.memorised, "EVA002", base=STALLED | FROM_ZERO),
    "evaluation elsewhere": failure("evaluation", RL, task.other_environment, "EVA004"),
    "judge glitch": failure("evaluation", RL, task.judge_glitch, "EVA005", base=STALLED),
    "length hacking": failure("reward", RL, task.length_hacking, "REW010 REW011", base=STALLED | FROM_ZERO),
    "repetition": failure("reward", RL, task.repetition, "REW012 REW010"),
    "refusals": failure("reward", RL, task.refusals, "REW013 REW010"),
    "format hacking": failure("reward", RL, task.format_hacking, "REW015", base=STALLED | FROM_ZERO),
    "tool hacking": failure("reward", RL, task.tool_hacking, "REW016 REW010", base=STALLED | FROM_ZERO),
    "claimed success": failure("reward", RL, task.claimed_success, "REW017"),
    "judge bias": failure("reward", RL, task.judge_bias, "REW014"),
    "short answers": failure("reward", RL, task.short_answers, "REW019"),
    "sparse reward": failure("reward", RL, task.sparse, "REW001"),
    "reward outliers": failure("reward", RL, task.outliers, "REW006"),
    "groups without spread": failure(
        "advantage", GROUPS, training.groups_without_spread, "ADV001 ADV003", base=STALLED
    ),
    "echo trap": failure("advantage", GROUPS, training.echo_trap, "ADV003 ADV001", base=STALLED),
    "advantages grow": failure("advantage", RL, training.advantages_grow, "ADV002"),
    "dominated by few": failure("advantage", RL, training.dominated_by_few, "ADV004"),
    "zero updates": failure("advantage", GROUPS, training.zero_updates, "ADV001 ADV007"),
    "aggressive update": failure("policy_update", RL, training.aggressive_update, "POL012"),
    "KL bursts": failure("policy_update", RL, training.kl_bursts, "POL010"),
    "silent exit": failure("policy_update", RL, training.silent_exit, "POL013", first="POL013 POL010"),
    "mismatch": failure("policy_update", RL, training.mismatch, "POL007"),
    "pinned to the reference": failure("policy_update", RL, training.pinned, "POL015", base=STALLED),
    "critic worse than mean": failure("critic", ("ppo",), training.worse_than_mean, "CRI002"),
    "value explosion": failure("critic", ("ppo",), training.value_explosion, "CRI005"),
    "value scale": failure("critic", ("ppo",), training.value_scale, "CRI003"),
    "critic never learns": failure("critic", ("ppo",), training.critic_never_learns, "CRI001"),
    "entropy collapse": failure("exploration", RL, training.entropy_collapse, "EXP001", base=STALLED),
    "entropy eruption": failure("exploration", RL, training.entropy_eruption, "EXP003"),
    "random walk": failure("exploration", RL, training.random_walk, "EXP002", base=STALLED),
    "one tool left": failure("exploration", RL, training.one_tool, "EXP006", base=STALLED),
    "frozen policy": failure("exploration", RL, training.frozen, "EXP007", base=STALLED),
    "stale rollouts": failure("freshness", RL, training.stale, "FRE001"),
    "mixed versions": failure("freshness", RL, training.mixed_versions, "FRE004"),
    "non-finite": failure("numerics", (*RL, "sft"), training.non_finite, "NUM004"),
    "gradient explodes": failure("numerics", ALL, training.gradient_explodes, "NUM001"),
    "overflow": failure("numerics", RL, training.overflow, "NUM003"),
    "extreme log-probs": failure("numerics", RL, training.extreme_logprobs, "NUM002"),
    "throughput halves": failure("resources", ALL, training.throughput, "RES001"),
    "memory creeps": failure("resources", ALL, training.memory, "RES004"),
    "straggler": failure("resources", RL, training.straggler, "RES005"),
    "overfitting": failure("supervised", ("sft",), training.overfitting, "SFT003"),
    "stuck at random": failure("supervised", ("dpo",), training.stuck_at_random, "SFT001"),
    "margin collapse": failure("supervised", ("dpo",), training.margin_collapse, "SFT002"),
    "labels swapped": failure("supervised", ("dpo",), training.labels_swapped, "REW004"),
}


def failed(name, seed):
    """A run of failure `name`, and the row from which on it is ill."""
    source = FAILURES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    run = simulated.whole(str(rng.choice(source.algorithms)), rng, np.arange(simulated.ROWS), **source.base)
    case = Case(run, rng)
    source.happens(case)
    return run, case.onset
