"""The policy pair from OpenRLHF's actors: each looks at what its loss is made of, and sends a few kB once an update."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.kit import clip_range
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after

RECORDER = Recorder()


def install() -> None:
    """See the losses of the actor, if this process gets one; nothing of OpenRLHF is imported by this."""
    from tracker_diag_openrlhf import TESTED

    RECORDER.place("OpenRLHF", TESTED, {"openrlhf.trainer.ray.ppo_actor": put})


def put(module: Any) -> None:
    """Put the hooks on `openrlhf.trainer.ray.ppo_actor`."""
    kind = module.ActorPPOTrainer
    takes = ("log_probs", "old_log_probs", "advantages", "action_mask")
    after(kind, "training_step", ("self", "step"), _on_micro_batch, RECORDER)
    after(kind, "ppo_train", ("self",), _on_update, RECORDER)
    after(module.PolicyLoss, "forward", takes, _on_loss, RECORDER)  # last: nothing is kept that nobody sends


def _on_loss(_: Any, given: Mapping[str, Any]) -> None:
    low, high = (getattr(given["self"], f"clip_eps_{side}", None) for side in ("low", "high"))
    RECORDER.observe(
        logprobs=given["log_probs"].detach(),
        old_logprobs=given["old_log_probs"].detach(),
        model_mask=given["action_mask"].bool(),
        advantages=given["advantages"].detach(),
        clip=clip_range(low, high),
    )


def _on_micro_batch(_: Any, given: Mapping[str, Any]) -> None:
    """The optimiser steps after as many micro-batches as gradients are accumulated over, or as the buffer says."""
    trainer, step = given["self"], given["step"]
    if trainer.args.train.dynamic_batch_enable:
        stepped = trainer.replay_buffer.dynamic_optimizer_step[step]
    else:
        stepped = (step + 1) % trainer.strategy.accumulated_gradient == 0
    if stepped:
        RECORDER.updated()


def _on_update(_: Any, given: Mapping[str, Any]) -> None:
    """Send; of the ranks that share their sequences, by ring attention or tensors in parts, one does."""
    strategy = given["self"].strategy
    RECORDER.send(only=RECORDER.rank % (strategy.ring_attn_size * strategy.ds_tensor_parallel_size) == 0)
