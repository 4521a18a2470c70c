"""The demo's trainer: GRPO on the small agent, with six arms that differ in what goes wrong.

For the first 80 steps all arms are flat; from there to step 300 each ramps what it ramps.
"""

import copy
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tracker_diag.demo.policy import Rollout, play, score, warm_policy
from tracker_diag.demo.world import draw_task
from tracker_diag.guards.decision import Decision
from tracker_diag.tensors.batch import Tensors

PROMPTS, GROUP = 16, 8
FLAT_STEPS, RAMP_END = 80, 300
CLIP = 0.2
UNGUARDED = Decision()


@dataclass(frozen=True)
class Arm:
    """What one arm of the experiment does along the ramp (0 until step 80, 1 at step 300)."""

    says: str
    share: float = 0.15
    """Share of prompts that need the tool, at the end of the ramp; 0.15 before it."""
    width: float = 0.05
    """Width of the tool's output at the end of the ramp; 0.05 before it."""
    lag: tuple[int, int] = (4, 4)
    """How many steps old the sampling policy is, before and at the end of the ramp."""
    learning_rate: tuple[float, float] = (3e-4, 3e-4)
    clips: bool = True
    refresh_reference: int | None = None
    """The reference policy is replaced by the current one every so many steps."""
    kl: float = 0.0
    """Weight of the KL to the reference policy in the loss, where no guard says another."""


ARMS = {
    "healthy": Arm("nothing changes"),
    "constrained": Arm("more and more tool calls, but the tool's output stays narrow", share=0.7),
    "widen": Arm("more tool calls, and the tool's output widens", share=0.7, width=1.0),
    "drift-aware": Arm("as widen, but on-policy and with a reference refreshed every 20 steps",
                       share=0.7, width=1.0, lag=(0, 0), refresh_reference=20),
    "collapse": Arm("as widen, while rollouts go stale, the learning rate rises and nothing clips",
                    share=0.7, width=1.0, lag=(0, 32), learning_rate=(3e-4, 1.5e-3), clips=False),
    "stale-narrow": Arm("as collapse, but the tool does not change at all",
                        lag=(0, 32), learning_rate=(3e-4, 1.5e-3), clips=False),
}  # fmt: skip


@dataclass(frozen=True)
class TrainingStep:
    """What a trainer has in its hands at one step: per-token tensors (B, T) and the usual metrics.

    The tensors are taken before the update, so `logprobs` is the policy that is about to be trained.
    """

    step: int
    rollout: Rollout
    logprobs: Tensor
    ref_logprobs: Tensor
    metrics: dict[str, float]

    @property
    def tensors(self) -> Tensors:
        """What `observe` takes."""
        return {
            "logprobs": self.logprobs,
            "old_logprobs": self.rollout.sampler_logprobs,
            "ref_logprobs": self.ref_logprobs,
            "response_mask": self.rollout.is_response,
            "model_mask": self.rollout.is_model,
        }


class Training:
    """One run of GRPO on one core; the same arm, seed and machine give the same run bit for bit.

    A copy by `copy.deepcopy` continues as the run itself would.
    """

    def __init__(self, arm: Arm, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.arm = arm
        self.policy = warm_policy()
        self._sampler, self._reference = warm_policy(), copy.deepcopy(self.policy)
        self._optimizer = torch.optim.Adam(self.policy.parameters(), lr=arm.learning_rate[0])
        self._past: deque[dict[str, Tensor]] = deque(maxlen=max(arm.lag) + 1)
        self._generator = torch.Generator().manual_seed(seed)
        self._rng = random.Random(seed)

    def step(self, step: int, decision: Decision = UNGUARDED) -> TrainingStep:
        """A batch of rollouts and an update with it, done as guards have decided after the step before."""
        arm = self.arm
        ramp = min(max(step - FLAT_STEPS, 0) / (RAMP_END - FLAT_STEPS), 1.0)

        def at(start: float, end: float) -> float:
            return start + (end - start) * ramp

        if decision.rollback_to:
            self.load(Path(decision.rollback_to.path))
        self._past.append(copy.deepcopy(self.policy.state_dict()))
        lag = min(round(at(*arm.lag)), len(self._past) - 1)
        self._sampler.load_state_dict(self._past[-1 - lag])
        if decision.refresh_reference or (arm.refresh_reference and step % arm.refresh_reference == 0):
            self._reference.load_state_dict(self.policy.state_dict())
        for group in self._optimizer.param_groups:
            group["lr"] = at(*arm.learning_rate) * decision.lr_factor

        share = at(0.15, arm.share) * min(decision.tool_weights.values(), default=1.0)
        prompts = [draw_task(self._rng, share) for _ in range(PROMPTS)]
        tasks = [task for task in prompts for _ in range(GROUP)]
        rollout = play(self._sampler, tasks, at(0.05, arm.width), self._rng, self._generator)
        with torch.no_grad():
            logprobs, entropy = score(self.policy, rollout.tokens)
            ref_logprobs, _ = score(self._reference, rollout.tokens)

        mask = rollout.is_model
        metrics = {
            "reward": rollout.reward.mean().item(),
            "kl": _k3(logprobs, ref_logprobs)[mask].mean().item(),
            "entropy": entropy[mask].mean().item(),
            "response_length": rollout.is_response.sum(1).float().mean().item(),
        }
        if decision.stop is None and not decision.skip_batch:
            metrics |= self._update(rollout, ref_logprobs, decision.kl_coef or arm.kl)
        return TrainingStep(step, rollout, logprobs, ref_logprobs, metrics)

    def save(self, file: Path) -> None:
        """Policy and optimizer, for a later `load`."""
        torch.save({"policy": self.policy.state_dict(), "optimizer": self._optimizer.state_dict()}, file)

    def load(self, file: Path) -> None:
        """Continue with what `save` wrote; the policies since then sample no more rollouts."""
        state = torch.load(file)
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._past.clear()

    def _update(self, rollout: Rollout, ref_logprobs: Tensor, kl_coef: float) -> dict[str, float]:
        """Two epochs over two random halves of the batch; mean loss, gradient norm and clip fraction."""
        grouped = rollout.reward.view(-1, GROUP)
        advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
        sums = torch.zeros(3)
        for _ in range(2):
            for half in torch.randperm(len(advantages), generator=self._generator).chunk(2):
                mask = rollout.is_model[half]
                logprobs, _ = score(self.policy, rollout.tokens[half])
                ratio = (logprobs - rollout.sampler_logprobs[half])[mask].exp()
                advantage = advantages[half, None].expand_as(mask)[mask]
                surrogate = ratio * advantage
                if self.arm.clips:
                    surrogate = torch.minimum(surrogate, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                loss = -surrogate.mean()
                if kl_coef:
                    loss = loss + kl_coef * _k3(logprobs, ref_logprobs[half])[mask].mean()
                self._optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
                self._optimizer.step()
                outside = ((ratio - 1).abs() > CLIP).float().mean()
                sums += torch.stack([loss.detach(), norm, outside]) / 4
        mean_loss, grad_norm, clip_fraction = sums.tolist()
        metrics = {"loss": mean_loss, "grad_norm": grad_norm}
        return metrics | {"clip_fraction": clip_fraction} if self.arm.clips else metrics


def train(arm: Arm, seed: int, steps: int) -> Iterator[TrainingStep]:
    """All `steps` of a run that no guard watches."""
    training = Training(arm, seed)
    return (training.step(step) for step in range(steps))


def _k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL to the reference by token, in nats (Schulman 2020)."""
    drift = ref_logprobs - logprobs
    return drift.expm1() - drift
