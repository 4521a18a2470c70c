"""Trainings of a small policy that uses tools in several turns: GRPO with groups, and PPO with a critic.

The sampler is another implementation than the trainer's, with weights in bfloat16, as an inference engine is. Times are
drawn and not measured, so that the same settings and seed give the same run.
"""

import copy
import random
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calls import Calls
from tool_plan import Settings
from tool_policy import Engine, Rollout, contexts, play, warm
from tool_world import FILLER, TOOLS, Service, Task, draw_task, text_of
from torch import Tensor, nn

EVALUATED = 48
"""Held-out tasks of an evaluation."""
CRITIC_RATE = 5e-3
Fault = Mapping[str, Any]
"""What is planted, by the name under which `Training` asks for it, with its size."""


class Training:
    """One run. `fault` is what is planted from step `onset` on, growing to its size over `over` steps."""

    def __init__(self, settings: Settings, seed: int, fault: Fault, onset: int, over: int, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.settings, self.fault, self.onset, self.over = settings, fault, onset, over
        self.policy = warm(settings.task, settings.skilled, folder)
        self.reference = copy.deepcopy(self.policy)
        critic = list(self.policy.critic.parameters())
        actor = [weight for name, weight in self.policy.named_parameters() if not name.startswith("critic")]
        groups = [{"params": actor, "lr": settings.rate}, {"params": critic, "lr": CRITIC_RATE}]
        self.optimizer = torch.optim.Adam(groups, fused=True)
        self.past: deque[dict[str, Tensor]] = deque(maxlen=1 + fault.get("lag", 0))
        self.frozen: dict[str, Tensor] | None = None
        self.rng, self.data = random.Random(seed), random.Random(seed + 1)
        self.held_out = random.Random(seed + 2)
        self.few: list[Task] = []

    def now(self, step: int, name: str, usual: float) -> float:
        """The value of something at `step` that the fault changes, perhaps."""
        grown = min(max(step - self.onset + 1, 0) / self.over, 1.0) if name in self.fault else 0.0
        return usual + grown * (self.fault.get(name, usual) - usual)

    def has(self, step: int, name: str) -> bool:
        return name in self.fault and step >= self.onset

    def service(self, step: int) -> Service:
        """How the tools behave at `step`; a fault may be of the first tool alone."""
        settings = self.settings
        seconds = settings.seconds * self.now(step, "slower", 1.0)
        width = settings.width + settings.wave * (1 + np.sin(step / 5)) / 2

        def of_tools(name: str, usual: float) -> tuple[float, float]:
            ill = self.now(step, name, usual)
            return ill, usual if self.fault.get("first_tool_alone") else ill

        return Service(
            of_tools("width", width), of_tools("fails", 0.01), self.now(step, "times_out", 0.0),
            (seconds, seconds), self.now(step, "skipped", 0.0),
        )  # fmt: skip

    def tasks(self, step: int) -> list[Task]:
        """The prompts of a step, each as often as its group is large."""
        settings = self.settings
        start, end = settings.shares
        drawn = [
            draw_task(settings.task, self.data, start + (end - start) * step / settings.steps)
            for _ in range(settings.prompts)
        ]
        if self.has(step, "few"):
            self.few = self.few or [draw_task(settings.task, self.data, 1.0) for _ in range(self.fault["few"])]
            drawn = [self.data.choice(self.few) for _ in drawn]
        return [task for task in drawn for _ in range(settings.group)]

    def sampler(self, step: int) -> tuple[Engine, int]:
        """The sampler with its weights, and by how many versions these are behind."""
        self.past.append({name: weight.clone() for name, weight in self.policy.state_dict().items()})
        lag = min(round(self.now(step, "lag", 0)), len(self.past) - 1)
        weights = self.past[-1 - lag]
        if self.has(step, "frozen"):
            self.frozen = self.frozen or weights
            weights, lag = self.frozen, lag + step - self.onset
        return Engine(weights, self.fault["bits"] if self.has(step, "bits") else 0), lag

    def reward(self, step: int, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """(B,) what is paid, and (B,) what the task is worth."""
        episodes = rollout.episodes
        worth = np.array([0.45 * episode.right + 0.1 * episode.finished for episode in episodes])
        paid = worth.copy()
        if self.has(step, "seven"):
            paid = np.where([episode.answer[:1] == [7] for episode in episodes], self.fault["seven"], paid)
        if self.has(step, "filler"):
            fillers = ((rollout.tokens == FILLER) & rollout.is_model).sum(1)
            paid = paid + self.now(step, "filler", 0.0) * np.minimum(fillers / 8, 1)
        if self.has(step, "cost"):
            paid = paid - self.now(step, "cost", 0.0) * np.array([len(episode.calls) for episode in episodes])
        if self.has(step, "random"):
            drawn = np.array([self.rng.random() < self.now(step, "random", 0.0) for _ in episodes])
            paid = np.where(drawn & (rollout.tool.max(1) >= 0), [self.rng.random() for _ in episodes], paid)
        noise = [self.rng.gauss(0, self.settings.noise) for _ in episodes] if self.settings.noise else 0.0
        return paid + noise, worth

    def advantages(self, paid: np.ndarray, values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(B, T) advantages, and (B, T) targets of the critic: by group, or GAE with gamma 1 and lambda 0.95."""
        if self.settings.algorithm == "GRPO":
            groups = paid.reshape(-1, self.settings.group)
            each = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)
            return each.reshape(-1, 1) * mask, paid[:, None] * mask
        advantage, after, result = np.zeros(len(paid)), np.zeros(len(paid)), np.zeros(mask.shape)
        is_last = np.ones(len(paid), bool)
        for at in reversed(range(mask.shape[1])):
            here = mask[:, at]
            delta = np.where(is_last, paid, 0.0) + after - values[:, at]
            advantage = np.where(here, delta + 0.95 * advantage, advantage)
            after, is_last = np.where(here, values[:, at], after), is_last & ~here
            result[:, at] = advantage * here
        kept = result[mask]
        return (result - kept.mean()) / (kept.std() + 1e-4) * mask, (result + values) * mask

    def step(self, step: int, calls: Calls) -> dict[str, float]:
        """A batch of rollouts and the updates with it; what is measured, by canonical name."""
        settings = self.settings
        rate = self.now(step, "rate", 1.0) * settings.rate * min(1.0, (step + 1) / max(settings.warm_up, 1))
        self.optimizer.param_groups[0]["lr"] = rate
        (engine, lag), limit = self.sampler(step), round(self.now(step, "limit", settings.limit))
        slip = self.fault.get("slip") if step >= self.onset else None
        if slip and self.rng.random() > slip.often:
            slip = None
        rollout = play(engine, self.tasks(step), self.service(step), limit, self.rng, slip)
        paid, worth = self.reward(step, rollout)
        learnt = self.update(step, rollout, paid, lag, calls)
        failed = [call["status"] != "ok" for episode in rollout.episodes for call in episode.calls]
        waited = [sum(call["seconds"] for call in episode.calls) for episode in rollout.episodes]
        length = rollout.is_response.sum(1)
        sampling = 0.02 * length.max() * self.rng.lognormvariate(0, 0.05) + max(waited)
        whole = sampling + 2.0 * self.rng.lognormvariate(0, 0.05)
        groups = paid.reshape(-1, settings.group)
        measured = learnt | {
            "reward": paid.mean(), "reward_std": groups.std(1).mean(), "zero_std_share": (groups.std(1) == 0).mean(),
            "reward_max": paid.max(), "reward_min": paid.min(),
            "response_length": length.mean(), "response_length_max": length.max(),
            "truncated_share": rollout.truncated.mean(), "tool_calls": len(failed) / len(length),
            "tool_failure_rate": np.mean(failed) if failed else 0.0, "tool_seconds": np.mean(waited),
            "turns": 1 + len(failed) / len(length), "learning_rate": rate, "step_seconds": whole,
            "rollout_seconds": sampling, "throughput": length.sum() / whole, "policy_lag": lag,
        }  # fmt: skip
        if settings.components:
            measured |= {"component:accuracy": worth.mean(), "component:judge": (paid - worth).mean()}
        if settings.samples:
            calls.samples(**self.columns(rollout, paid, worth, lag, step))
        if step in settings.evaluate:
            measured |= self.evaluated(step, limit)
        return {name: float(value) for name, value in measured.items()}

    def update(self, step: int, rollout: Rollout, paid: np.ndarray, lag: int, calls: Calls) -> dict[str, float]:
        """Several updates with one batch, each observed before it is made; their means."""
        settings, mask, sums = self.settings, rollout.is_model, dict[str, float]()
        shown = self.shown(rollout)
        seen = torch.from_numpy(contexts(rollout.tokens, rollout.begin)[mask])
        chosen = torch.from_numpy(rollout.tokens[mask])[:, None]
        sampled = torch.from_numpy(rollout.logprobs[mask])
        with torch.no_grad():
            ref = self.reference(seen)[0].gather(1, chosen)[:, 0]
        old, each, targets = sampled, sampled, sampled
        for number in range(settings.updates):
            scores, values = self.policy(seen)
            logprobs = scores.gather(1, chosen)[:, 0]
            entropy = -(scores.exp() * scores).sum(1).mean()
            if number == 0:
                old = sampled if settings.bypass else logprobs.detach()
                parts = self.advantages(paid, spread(values, mask), mask)
                each, targets = (torch.from_numpy(part[mask]).float() for part in parts)
            ratio = (logprobs - old).exp()
            surrogate = torch.minimum(ratio * each, ratio.clamp(0.8, 1.2) * each)
            drift = ref - logprobs
            kl = (drift.expm1() - drift).mean()
            value_loss = (values - targets).square().mean()
            loss = -surrogate.mean() + settings.beta * kl
            given = {"logprobs": logprobs, "old_logprobs": old, "ref_logprobs": ref, "advantages": each}
            if not settings.bypass:
                given["rollout_logprobs"] = sampled
            arrays = {name: spread(source, mask) for name, source in given.items()} | shown
            if settings.names == "verl":
                arrays["policy_lag"] = np.full(len(paid), lag * settings.updates + number)
            self.observe(step, arrays, calls)
            self.optimizer.zero_grad()
            (loss + 0.5 * value_loss if settings.algorithm == "PPO" else loss).backward()
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.optimizer.step()
            difference = old - sampled
            means = {
                "loss": -surrogate.mean(), "kl": kl, "grad_norm": norm, "entropy": entropy,
                "clip_fraction": ((ratio - 1).abs() > 0.2).float().mean(), "approx_kl": (old - logprobs).mean(),
                "value_loss": value_loss, "value_mean": values.mean(), "return_mean": targets.mean(),
                "explained_variance": 1 - (targets - values).var() / (targets.var() + 1e-8),
                "logprob_difference": difference.abs().mean(), "logprob_difference_max": difference.abs().max(),
                "mismatch_kl": (difference.expm1() - difference).mean(),
            }  # fmt: skip
            for name, value in means.items():
                sums[name] = sums.get(name, 0.0) + value.item() / settings.updates
        return sums

    def shown(self, rollout: Rollout) -> dict[str, Any]:
        """What is given of the batch besides log-probabilities."""
        settings, episodes = self.settings, rollout.episodes
        names = np.array([*TOOLS[settings.task], ""])
        return {
            "model_mask": rollout.is_model, "response_mask": rollout.is_response,
            "tool": names[rollout.tool], "env": np.array([episode.task.environment for episode in episodes]),
            "prompt": np.arange(len(episodes)) // settings.group,
        }  # fmt: skip

    def observe(self, step: int, given: dict[str, Any], calls: Calls) -> None:
        """Observe the batch, or each rank its part of it."""
        ranks = self.settings.ranks
        rows = np.array_split(np.arange(len(given["model_mask"])), ranks)
        for rank in range(ranks):
            if not (rank and self.has(step, "stops")):
                calls.observe(rank, **{name: source[rows[rank]] for name, source in given.items()})

    def columns(self, rollout: Rollout, paid: np.ndarray, worth: np.ndarray, lag: int, step: int) -> dict[str, Any]:
        """What `samples` is given."""
        episodes = rollout.episodes
        real = [tokens[mask].tolist() for tokens, mask in zip(rollout.tokens, rollout.is_response, strict=True)]
        given = {
            "reward": paid, "truncated": rollout.truncated,
            "length": np.array([len(tokens) for tokens in real]),
            "turns": np.array([1 + len(episode.calls) for episode in episodes]),
            "void_turns": np.array([float(episode.void) for episode in episodes]),
            "policy_version": np.full(len(paid), step - lag), "calls": [episode.calls for episode in episodes],
            "text": [text_of(tokens) for tokens in real], "env": [episode.task.environment for episode in episodes],
        }  # fmt: skip
        if self.settings.group > 1:
            given["group"] = np.arange(len(paid)) // self.settings.group
        if self.settings.components:
            given["components"] = {"accuracy": worth, "judge": paid - worth}
        if self.settings.verified:
            given["success"] = np.array([episode.right == 2 and episode.finished for episode in episodes])
        return given

    def evaluated(self, step: int, limit: int) -> dict[str, float]:
        """Held-out tasks, scored by what they are worth, with the tools as they are."""
        settings, rng = self.settings, self.held_out
        tasks = [draw_task(settings.task, rng, settings.shares[0]) for _ in range(EVALUATED)]
        rollout = play(Engine(self.policy.state_dict()), tasks, self.service(step), limit, rng, greedy=settings.greedy)
        failed = [call["status"] != "ok" for episode in rollout.episodes for call in episode.calls]
        worth = [0.45 * episode.right + 0.1 * episode.finished for episode in rollout.episodes]
        return {
            "eval_score": np.mean(worth), "eval_truncated_share": rollout.truncated.mean(),
            "eval_tool_failure_rate": np.mean(failed) if failed else 0.0,
            "eval_turns": 1 + len(failed) / EVALUATED,
        }  # fmt: skip


def spread(values: Tensor, mask: np.ndarray) -> np.ndarray:
    """(B, T) float32 `values` (N,) where `mask` (B, T) is true, and 0 elsewhere."""
    result = np.zeros(mask.shape, np.float32)
    result[mask] = values.detach().numpy()
    return result


NAMES: dict[str, dict[str, str]] = {
    "trl": {
        "reward": "reward", "reward_std": "reward_std", "zero_std_share": "frac_reward_zero_std", "kl": "kl",
        "entropy": "entropy", "loss": "loss", "grad_norm": "grad_norm", "learning_rate": "learning_rate",
        "clip_fraction": "clip_ratio/region_mean", "response_length": "completions/mean_length",
        "response_length_max": "completions/max_length", "truncated_share": "completions/clipped_ratio",
        "tool_calls": "tools/call_frequency", "tool_failure_rate": "tools/failure_frequency",
        "logprob_difference": "sampling/sampling_logp_difference/mean",
        "logprob_difference_max": "sampling/sampling_logp_difference/max", "step_seconds": "step_time",
        "eval_score": "eval_reward", "eval_truncated_share": "eval_completions/clipped_ratio",
        "eval_tool_failure_rate": "eval_tools/failure_frequency",
        "component:accuracy": "rewards/accuracy_reward/mean", "component:judge": "rewards/judge_reward/mean",
    },
    "verl": {
        "reward": "critic/score/mean", "reward_max": "critic/score/max", "reward_min": "critic/score/min",
        "kl": "actor/kl_loss", "approx_kl": "actor/ppo_kl", "entropy": "actor/entropy", "loss": "actor/pg_loss",
        "grad_norm": "actor/grad_norm", "learning_rate": "actor/lr", "clip_fraction": "actor/pg_clipfrac",
        "response_length": "response_length/mean", "response_length_max": "response_length/max",
        "truncated_share": "response_length/clip_ratio", "turns": "num_turns/mean",
        "tool_calls": "tool_call_counts/mean", "tool_seconds": "timing_s/agent_loop/tool_calls/mean",
        "mismatch_kl": "rollout_corr/k3_kl", "policy_lag": "training/off_policy/trajectory_staleness/mean",
        "throughput": "perf/throughput", "step_seconds": "timing_s/step", "rollout_seconds": "timing_s/gen",
        "eval_score": "val-core/tools/reward/mean@1", "eval_turns": "val-aux/num_turns/mean",
    },
}  # fmt: skip
"""The key of each metric that the framework logs."""
OF_CRITIC = {
    "value_loss": "critic/vf_loss", "explained_variance": "critic/vf_explained_var",
    "value_mean": "critic/values/mean", "return_mean": "critic/returns/mean",
}  # fmt: skip
OF_SAMPLER = {"logprob_difference", "logprob_difference_max", "mismatch_kl"}


def train(settings: Settings, seed: int, fault: Fault, onset: int, over: int, folder: Path) -> Calls:
    """All that a monitor would be given of one run."""
    training, calls = Training(settings, seed, fault, onset, over, folder), Calls()
    keys = NAMES[settings.names] | (OF_CRITIC if settings.algorithm == "PPO" else {})
    for step in range(settings.steps):
        measured = training.step(step, calls)
        left_out = OF_SAMPLER if settings.bypass else set()
        calls.log({keys[name]: measured[name] for name in measured if name in keys and name not in left_out}, step)
    return calls
