"""The policy pair from NeMo-RL's policy workers: each looks at what its loss is made of, and sends when it has trained.

Puts nothing on before NeMo-RL itself imports the modules, so that a process without a policy is left as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

import wrapt

from tracker_diag.attach.kit import clip_range, unless_changed
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after

RECORDER = Recorder()
"""That of this process."""

LOST = "the policy pair of this worker is not seen"

_LOSSES = "nemo_rl.algorithms.loss.loss_functions"
_WORKERS = {
    "dtensor_policy_worker": "DTensorPolicyWorkerImpl",
    "dtensor_policy_worker_v2": "DTensorPolicyWorkerV2Impl",
    "megatron_policy_worker": "MegatronPolicyWorkerImpl",
}


def look() -> None:
    """See the losses of a policy worker, if this process gets one; nothing of NeMo-RL is imported by this."""
    if RECORDER.placed:
        return
    RECORDER.placed = True
    wrapt.register_post_import_hook(_guarded(losses), _LOSSES)
    for module, kind in _WORKERS.items():
        put = _guarded(lambda found, kind=kind: updates(getattr(found, kind)))
        wrapt.register_post_import_hook(put, f"nemo_rl.models.policy.workers.{module}")


def _guarded(put: Callable[[Any], None]) -> Callable[[Any], None]:
    from tracker_diag_nemo_rl import TESTED

    def on_import(module: Any) -> None:
        with unless_changed("nemo-rl", TESTED, LOST):
            put(module)

    return on_import


def losses(module: Any) -> None:
    """See the tensors of the clipped loss, of which those of PPO, GRPO, GSPO and CISPO are settings."""
    takes = ("self", "next_token_logprobs", "data")
    after(module.ClippedPGLossFn, "__call__", takes, _on_loss, RECORDER)


def updates(kind: Any) -> None:
    """Send when a batch has been trained on, in one call, or with Megatron in several."""

    def done(_: Any, given: Mapping[str, Any]) -> None:
        place = given["self"]._local_coords()  # noqa: SLF001  # nothing public says it
        # Of ranks that share their sequences one sends, and of a pipeline the one that makes losses.
        if place["tensor_parallel"] == place["context_parallel"] == 0 and not given.get("eval_mode"):
            RECORDER.send()
        else:
            RECORDER.drop()

    after(kind, "train", ("self", "eval_mode"), done, RECORDER)
    if hasattr(kind, "finish_train_step"):
        after(kind, "finish_train_step", ("self",), done, RECORDER)
    RECORDER.hear_optimizers()


def _on_loss(_: Any, given: Mapping[str, Any]) -> None:
    loss, data = given["self"], given["data"]
    if loss.force_on_policy_ratio:  # a ratio of 1 by construction is none
        return
    RECORDER.observe(
        logprobs=given["next_token_logprobs"].detach(),
        old_logprobs=data["prev_logprobs"][:, 1:],
        model_mask=(data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)).bool(),
        advantages=data["advantages"][:, 1:],
        clip=clip_range(loss.ratio_clip_min, loss.ratio_clip_max),
    )
