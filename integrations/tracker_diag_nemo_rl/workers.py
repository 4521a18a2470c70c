"""The policy pair from NeMo-RL's policy workers: each looks at what its loss is made of, and sends after each update.

The methods of a worker are of no use for it: Ray copies them into the process as they were where the class was made.
"""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.kit import clip_range
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after

RECORDER = Recorder()


def install() -> None:
    """See the losses of a policy worker that is made in this process; the hook of Ray's worker processes.

    NeMo-RL is not imported by this.
    """
    from tracker_diag_nemo_rl import TESTED

    RECORDER.place("nemo-rl", TESTED, {"nemo_rl.algorithms.loss.loss_functions": put})


def put(module: Any) -> None:
    """Put the hook on the clipped loss, of which those of PPO, GRPO, GSPO and CISPO are settings."""
    after(module.ClippedPGLossFn, "__call__", ("self", "next_token_logprobs", "data"), _on_loss, RECORDER)
    RECORDER.hear_optimizers(send=True)


def _on_loss(_: Any, given: Mapping[str, Any]) -> None:
    loss, new, data = given["self"], given["next_token_logprobs"], given["data"]
    if loss.force_on_policy_ratio or not new.requires_grad:  # a ratio of 1 by construction; an evaluation
        return
    RECORDER.observe(
        logprobs=new.detach(),
        old_logprobs=data["prev_logprobs"][:, 1:],
        model_mask=(data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)).bool(),
        advantages=data["advantages"][:, 1:],
        clip=clip_range(loss.ratio_clip_min, loss.ratio_clip_max),
    )
