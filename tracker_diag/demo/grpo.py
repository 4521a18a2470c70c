"""The demo's trainer: GRPO on the small agent, with six arms that differ in what goes wrong.

For the first 80 steps all arms are flat; from there to step 300 each ramps what it ramps.
"""

import copy
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tracker_diag.demo.policy import Policy, Rollout, play, score, warm_policy
from tracker_diag.demo.world import draw_task
from tracker_diag.tensors.batch import Tensors

PROMPTS, GROUP = 16, 8
FLAT_STEPS, RAMP_END = 80, 300
CLIP = 0.2


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


def train(arm: Arm, seed: int, steps: int) -> Iterator[TrainingStep]:
    """Run GRPO on one core; the same arm, seed and machine give the same run bit for bit."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    policy, sampler = warm_policy(), warm_policy()
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=arm.learning_rate[0])
    past: deque[dict[str, Tensor]] = deque(maxlen=max(arm.lag) + 1)

    for step in range(steps):
        ramp = min(max(step - FLAT_STEPS, 0) / (RAMP_END - FLAT_STEPS), 1.0)

        def at(start: float, end: float, ramp: float = ramp) -> float:
            return start + (end - start) * ramp

        past.append(copy.deepcopy(policy.state_dict()))
        lag = min(round(at(*arm.lag)), len(past) - 1)
        sampler.load_state_dict(past[-1 - lag])
        if arm.refresh_reference and step % arm.refresh_reference == 0:
            reference.load_state_dict(policy.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = at(*arm.learning_rate)

        share, width = at(0.15, arm.share), at(0.05, arm.width)
        prompts = [draw_task(rng, share) for _ in range(PROMPTS)]
        tasks = [task for task in prompts for _ in range(GROUP)]
        rollout = play(sampler, tasks, width, rng, generator)
        with torch.no_grad():
            logprobs, entropy = score(policy, rollout.tokens)
            ref_logprobs, _ = score(reference, rollout.tokens)
        loss, grad_norm, clip_fraction = _update(policy, optimizer, rollout, arm.clips, generator)

        mask = rollout.is_model
        drift = (ref_logprobs - logprobs)[mask]
        metrics = {
            "reward": rollout.reward.mean().item(),
            "loss": loss,
            "kl": (drift.expm1() - drift).mean().item(),  # k3 (Schulman 2020) against the reference
            "entropy": entropy[mask].mean().item(),
            "grad_norm": grad_norm,
            "response_length": rollout.is_response.sum(1).float().mean().item(),
        }
        if arm.clips:
            metrics["clip_fraction"] = clip_fraction
        yield TrainingStep(step, rollout, logprobs, ref_logprobs, metrics)


def _update(
    policy: Policy, optimizer: torch.optim.Optimizer, rollout: Rollout, clips: bool, generator: torch.Generator
) -> tuple[float, float, float]:
    """Two epochs over two random halves of the batch; mean loss, gradient norm and clip fraction."""
    grouped = rollout.reward.view(-1, GROUP)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)
    sums = torch.zeros(3)
    for _ in range(2):
        for half in torch.randperm(len(advantages), generator=generator).chunk(2):
            mask = rollout.is_model[half]
            logprobs, _ = score(policy, rollout.tokens[half])
            ratio = (logprobs - rollout.sampler_logprobs[half])[mask].exp()
            advantage = advantages[half, None].expand_as(mask)[mask]
            surrogate = ratio * advantage
            if clips:
                surrogate = torch.minimum(surrogate, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            loss = -surrogate.mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            outside = ((ratio - 1).abs() > CLIP).float().mean()
            sums += torch.stack([loss.detach(), norm, outside]) / 4
    mean_loss, grad_norm, clip_fraction = sums.tolist()
    return mean_loss, grad_norm, clip_fraction
