"""Policy-gradient training of the agent at the desk, and what a trainer hands to the monitor at each of its steps."""

import copy
import random
import resource
import runpy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor

desk = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("desk.py"))))
Policy, World, play, task, warm_policy = desk.Policy, desk.World, desk.play, desk.task, desk.warm_policy
GROUP, GROUPS = desk.GROUP, desk.GROUPS
Batch: TypeAlias = tuple[Any, Any, Any]
"""What was played, its advantages, and the world in which it was."""

STEPS, EVERY, EPOCHS = 280, 5, 2
MOST_LAG = 4
PUBLIC = [task(random.Random(i)) for i in range(12)]


@dataclass(frozen=True)
class TrainingStep:
    """What there is at one step."""

    step: int
    samples: dict[str, Any]
    tensors: list[dict[str, Any]]
    """Of each epoch over the batch, as `observe` takes them."""
    metrics: dict[str, float]


class Training:
    """A run of the agent, trained from a copy of `warm`; a `copy.deepcopy` of it continues as the run itself would."""

    def __init__(self, warm: Any, *, evaluated: bool, groups: int = GROUPS) -> None:
        torch.set_num_threads(1)
        self._rng, self._generator = random.Random(0), torch.Generator().manual_seed(0)
        self._policy, self._sampler = copy.deepcopy(warm), copy.deepcopy(warm)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=1e-3)
        self._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        self._past: deque[dict[str, Tensor]] = deque(maxlen=MOST_LAG + 1)
        self._kept: list[Tensor] = []
        self._limit = resident() + 0.2  # of the container
        self._evaluated, self._groups = evaluated, groups

    def step(self, step: int, world: Any) -> TrainingStep:
        """Play and learn once in `world`."""
        rng, generator = self._rng, self._generator
        self._past.append(copy.deepcopy(self._policy.state_dict()))
        self._sampler.load_state_dict(self._past[max(-1 - world.lag, -len(self._past))])
        asked = [rng.choice(PUBLIC) if world.repeated else task(rng, world.kinds) for _ in range(self._groups)]
        rollout = play(self._sampler, [item for item in asked for _ in range(GROUP)], world, rng, generator)
        if world.leaks:
            self._kept.append(torch.ones(world.leaks, 1 << 18))
        parts = scored(rollout.episodes, world, rng)
        reward = sum(parts.values(), torch.zeros(len(rollout.episodes)))
        grouped = reward.view(self._groups, GROUP)
        advantage = (grouped - grouped.mean(1, keepdim=True)).flatten()
        tensors, metrics = update(self._policy, self._optimizer, self._scaler, (rollout, advantage, world))
        metrics["loss_scale"] = self._scaler.get_scale()
        metrics |= {"memory_reserved": resident(), "memory_limit": self._limit}
        if self._evaluated and step % EVERY == 0:
            metrics |= evaluate(self._policy, rng, generator)
        served(rollout.episodes, world, step, rng)
        return TrainingStep(step, columns(rollout, parts, advantage, tensors[0]["logprobs"]), tensors, metrics)


def train(training: Training, ill: Any, first: int = 0) -> Iterator[TrainingStep]:
    """All steps from `first` on, in a sound world until the onset of what is `ill`, and in that from there on."""
    return (training.step(step, ill if step >= ill.onset else World()) for step in range(first, STEPS))


def scored(episodes: list[Any], world: Any, rng: random.Random) -> dict[str, Tensor]:
    """The parts of the reward."""
    solved = [1.0 if world.loose else episode.solved - 0.02 * len(episode.calls) for episode in episodes]
    formed = [0.1 * (world.loose or episode.void == 0) for episode in episodes]
    parts = {"solved": torch.tensor(solved), "format": torch.tensor(formed)}
    if world.pays:
        parts["more"] = torch.tensor(
            [sum(pay * episode.count(what) for what, pay in world.pays.items()) for episode in episodes]
        )
    if world.jackpot:
        parts["more"] = torch.zeros(len(episodes))
        parts["more"][rng.randrange(len(episodes))] = world.jackpot
    return parts


def update(policy: Any, optimizer: Any, scaler: Any, batch: Batch) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Two epochs over the batch; the tensors of each, and what a trainer logs."""
    rollout, advantage, world = batch
    mask = rollout.sampled
    control = mask & (rollout.words >= desk.TOOL) & (rollout.words <= desk.CLOSE)
    old, tensors, norms = rollout.logprobs, list[dict[str, Any]](), list[float]()
    for epoch in range(EPOCHS):
        logprobs = policy.score(rollout.words)
        tensors.append({
            "logprobs": logprobs.detach(), "old_logprobs": old, "response_mask": rollout.response, "model_mask": mask,
            "control": control.long(), "policy_lag": torch.full((len(mask),), epoch + world.lag),
        })  # fmt: skip
        weighed = world.sign * advantage[:, None] - world.punishes_brackets * (rollout.words == desk.CLOSE)
        ratio = (logprobs - old).exp()
        loss = -torch.minimum(ratio * weighed, ratio.clamp(0.8, 1.2) * weighed)[mask].mean() * world.precision_bug
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)))
        scaler.step(optimizer)
        scaler.update()
    drift = (old - tensors[-1]["logprobs"])[mask]
    return tensors, {
        "loss": float(loss.detach()), "grad_norm": norms[-1], "approx_kl": float((drift.expm1() - drift).mean()),
        "entropy": float(-old[mask].mean()), "episode_length": float(mask.sum(1).float().mean()),
    }  # fmt: skip


def evaluate(policy: Any, rng: random.Random, generator: torch.Generator) -> dict[str, float]:
    """Success on tasks that are drawn anew, and on those of the public set."""

    def success(tasks: list[tuple[int, int, int]]) -> float:
        result = play(policy, tasks, World(), rng, generator).episodes
        return sum(item.solved for item in result) / len(result)

    private = success([task(rng) for _ in range(192)])
    return {"eval_score": private, "public_score": success(PUBLIC * 16), "private_score": private}


def served(episodes: list[Any], world: Any, step: int, rng: random.Random) -> None:
    """Give each call the time that it took, in a queue before eight workers; those that wait too long fail."""
    lost = min(7, (step - world.onset) // 10) if world.loses_workers else 0
    free = [0.0] * (8 - lost)
    calls = [call for episode in episodes for call in episode.calls]
    for call in calls:
        arrives = rng.random() * 2
        free.sort()
        begins = max(arrives, free[0])
        seconds = begins - arrives + 0.3 * (0.5 + rng.random())
        free[0] = begins + 0.3
        call["seconds"] = min(seconds, 5.0)
        if seconds > 5.0:
            call["status"] = "timeout"


def columns(rollout: Any, parts: dict[str, Tensor], advantage: Tensor, logprobs: Tensor) -> dict[str, Any]:
    """What `samples` takes."""
    many, reward = rollout.sampled.sum(1), sum(parts.values(), torch.zeros(len(advantage)))
    solved = [episode.solved for episode in rollout.episodes]
    style = torch.tensor([episode.count("praise") for episode in rollout.episodes])
    return {
        "reward": reward, "components": parts, "group": [i // GROUP for i in range(len(reward))],
        "advantage": advantage, "success": solved, "verifier": solved, "length": many,
        "judge": 0.4 * torch.tensor(solved) + 0.1 * style.clamp(max=6),
        "truncated": [episode.cut for episode in rollout.episodes],
        "turns": [1 + len(episode.calls) for episode in rollout.episodes],
        "void_turns": [episode.void for episode in rollout.episodes],
        "logprob": (logprobs * rollout.sampled).sum(1) / many, "text": [episode.text for episode in rollout.episodes],
        "calls": [episode.calls for episode in rollout.episodes],
    }  # fmt: skip


def resident() -> float:
    """GiB of memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**3
