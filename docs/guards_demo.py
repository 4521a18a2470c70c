"""What guards do to the training of the demo's agent: one run for each guard, from where the first of them would act.

Up to the first incident at warn or above all guards leave a run as it is; from there each has a copy of it.
"""

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from tracker_diag import Guard, Monitor
from tracker_diag.demo.grpo import ARMS, GROUP, UNGUARDED, Arm, Training
from tracker_diag.demo.policy import Policy, play, score, warm_policy
from tracker_diag.demo.world import draw_task
from tracker_diag.testing import CapturingTracker

STEPS, LAST = 300, 40
"""Steps of a run, and how many of its last ones tails, ESS and reward are the mean of."""

SAVED_EVERY = 10
EPISODES = 512
PROBES = {"text": (0.0, 0.05), "narrow": (1.0, 0.05), "wide": (1.0, 1.0)}
"""Share of prompts that need the tool, and width of its output."""

Run = dict[str, Any]


def acting(do: str, **settings: Any) -> Guard:
    """A guard that acts, on every incident at warn or above, with its usual limits."""
    return Guard.model_validate({"do": do, "act": True, **settings})


GUARDS: Mapping[str, tuple[Guard, ...]] = {
    "none": (),
    "stop_training": (acting("stop_training"),),
    "stop_update": (acting("stop_update"),),
    "rollback": (acting("rollback"),),
    "scale_lr": (acting("scale_lr"),),
    "kl_cap": (acting("kl_cap", bounds=(0.01, 1.0), target=0.05),),
    "cap_tool_share": (acting("cap_tool_share"),),
    "skip_batch": (acting("skip_batch"),),
    "refresh_reference": (acting("refresh_reference"),),
}


@dataclass(frozen=True)
class Case:
    """One way in which a training goes, and the guards that it is tried with."""

    arm: Arm
    guards: Sequence[str]


KL = 0.04
"""Weight of the KL to the reference, where there is one: that of DeepSeekMath, section 4.2 (Shao et al. 2024)."""

CASES = {
    # Without a KL in the loss a new reference changes nothing in training.
    "collapse": Case(ARMS["collapse"], tuple(name for name in GUARDS if name != "refresh_reference")),
    "collapse, constrained tool": Case(replace(ARMS["collapse"], width=0.05), ("none",)),
    "KL in the loss": Case(replace(ARMS["collapse"], kl=KL), ("none", "refresh_reference")),
    "KL in the loss, refreshed": Case(replace(ARMS["collapse"], kl=KL, refresh_reference=20), ("none",)),
}


class Play:
    """A training and what is seen of it. A copy by `with_guards` continues from where it is."""

    def __init__(self, training: Training, folder: Path, guards: Sequence[Guard]) -> None:
        self.training, self.folder = training, folder
        self.seen = CapturingTracker()
        self.monitor = Monitor([self.seen], guards=guards, source="study")
        self.rows: list[Mapping[str, float]] = []
        self.updates, self.stopped = 0, False
        self.acted: list[tuple[int, str]] = []
        """At which steps guards that act began to."""
        self._decision = UNGUARDED

    def step(self, step: int) -> None:
        """One step, and the guards' word on the next one."""
        done = self.training.step(step, self._decision)
        self.monitor.observe(**done.tensors)
        self.monitor.log(done.metrics, step)
        self.rows.append({**done.metrics, **self.seen.scalars(step)})
        self.updates += "loss" in done.metrics
        if step % SAVED_EVERY == SAVED_EVERY - 1:
            file = self.folder / f"{step}.pt"
            self.training.save(file)
            self.monitor.checkpoint(file, step)
        self.ask(step)

    def ask(self, step: int) -> None:
        """What is to be done at the next step."""
        held = {order.do for order in self._decision.orders if not order.dry}
        self._decision = self.monitor.decide()
        self.acted += [(step, order.do) for order in self._decision.orders if not order.dry and order.do not in held]
        self.stopped = self._decision.stop == "training"

    def with_guards(self, folder: Path, guards: Sequence[Guard]) -> "Play":
        """The same run, which `guards` watch from here on."""
        folder.mkdir()
        other = Play(copy.deepcopy(self.training), folder, guards)
        other.monitor.load_state_dict(self.monitor.state_dict())
        other.rows, other.updates = [*self.rows], self.updates
        return other


def runs(case: str, wanted: Sequence[str], seed: int) -> Iterator[tuple[str, Run]]:
    """A run of `case` for each of the guards `wanted`; where no incident begins, they are all the same run."""
    with TemporaryDirectory() as folder:
        common = Play(Training(CASES[case].arm, seed), Path(folder), (Guard(do="save_state"),))
        step = 0
        while step < STEPS and not common.monitor.events:
            common.step(step)
            step += 1
        if step == STEPS:
            yield from ((name, figures(common)) for name in wanted)
        else:
            for name in wanted:
                yield name, _finished(common.with_guards(Path(folder) / name, GUARDS[name]), step)
        common.monitor.close()


def _finished(play: Play, step: int) -> Run:
    play.ask(step - 1)
    while step < STEPS and not play.stopped:
        play.step(step)
        step += 1
    play.monitor.close()
    if play.monitor.failures:
        raise RuntimeError(f"the diagnostics failed: {play.monitor.failures}")
    return figures(play)


def figures(play: Play) -> Run:
    """What is compared: what the agent can do at the end, and what was logged on the way there."""
    probes = {name: probed(play.training.policy, *probe) for name, probe in PROBES.items()}
    # 0.7 is the share of prompts that need the tool at the end of the ramp.
    probes = {"reward": 0.3 * probes["text"] + 0.7 * probes["wide"], **probes}
    logged = {name: _mean(play.rows[-LAST:], key) for name, key in LOGGED.items()}
    kept = {name: None if value is None else float(f"{value:.4g}") for name, value in (probes | logged).items()}
    return {**kept, "drift": float(f"{drift(play.training.policy):.4g}"), "updates": play.updates, "acted": play.acted}


LOGGED = {
    "logged": "reward",
    "p95": "diag/policy/post_tool/p95",
    "ess": "diag/policy/post_tool/ess",
    "reference p95": "diag/reference/post_tool/p95",
}


def _mean(rows: Sequence[Mapping[str, float]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return fmean(values) if values else None


class _Greedy(Policy):
    """The likeliest token is always drawn."""

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logits, state = super().forward(tokens, hidden)
        return 1e4 * logits, state


def probed(policy: Policy, share: float, width: float) -> float:
    """Mean reward in [0, 1] of greedy episodes. They differ between policies only in what the policy says."""
    greedy = _Greedy()
    greedy.load_state_dict(policy.state_dict())
    rng = random.Random(10_000)
    tasks = [draw_task(rng, share) for _ in range(EPISODES)]
    return play(greedy, tasks, width, rng, torch.Generator().manual_seed(0)).reward.mean().item()


def drift(policy: Policy) -> float:
    """p95 |log-ratio| after tool results against the policy of the start, on episodes of that one: a ruler for all."""
    start, rng = warm_policy(), random.Random(10_000)
    tasks = [draw_task(rng, 1.0) for _ in range(GROUP * 16)]
    rollout = play(start, tasks, 0.05, rng, torch.Generator().manual_seed(0))
    answered = (rollout.is_response & ~rollout.is_model).cumsum(1) > 0
    with torch.no_grad():
        ratio = score(policy, rollout.tokens)[0] - score(start, rollout.tokens)[0]
    return ratio.abs()[rollout.is_model & answered].quantile(0.95).item()
