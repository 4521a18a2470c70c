"""The policy pair from SkyRL's policy workers: each looks at what its loss is made of, and sends after each update."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.kit import clip_range
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after, after_each

RECORDER = Recorder()

TAKES = ("log_probs", "old_log_probs", "advantages", "loss_mask", "rollout_logprobs")
"""What every policy loss of SkyRL takes."""


def install() -> None:
    """See the losses of a policy worker that is made in this process; the hook of Ray's worker processes.

    SkyRL is not imported by this.
    """
    from tracker_diag_skyrl import TESTED

    root = "skyrl.backends.skyrl_train"
    RECORDER.place("SkyRL", TESTED, {f"{root}.utils.ppo_utils": losses, f"{root}.workers.worker": updates})


def losses(module: Any) -> None:
    """See the tensors of whatever policy loss is looked up by its name, a user's own too."""
    after_each(module.PolicyLossRegistry, "get", TAKES, _observe, RECORDER)


def _observe(_: Any, given: Mapping[str, Any]) -> None:
    old, rollout = given["old_log_probs"], given.get("rollout_logprobs")
    old = rollout if old is None else old  # of losses that train on those of the rollout
    low, high = (getattr(given.get("config"), f"eps_clip_{side}", None) for side in ("low", "high"))
    if old is not None and given.get("loss_mask") is not None:
        RECORDER.observe(
            logprobs=given["log_probs"].detach(),
            old_logprobs=old.detach(),
            model_mask=given["loss_mask"].bool(),
            advantages=given["advantages"].detach(),
            clip=clip_range(low, high),
        )


def updates(module: Any) -> None:
    """Send after each step of the optimiser; of the ranks that share their sequences one does."""

    def done(_: Any, given: Mapping[str, Any]) -> None:
        RECORDER.updated()
        RECORDER.send(only=given["self"].mesh_rank.is_collection_dp_rank())

    after(module.PolicyWorkerBase, "optim_step", ("self",), done, RECORDER)
