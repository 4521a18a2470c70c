"""The policy pair from SkyRL's policy workers: each looks at what its loss is made of, and sends after each update."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from tracker_diag.attach.kit import clip_range, unless_changed
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import HookError, after, replace

RECORDER = Recorder()
"""That of this process."""

TAKES = ("log_probs", "old_log_probs", "advantages", "loss_mask", "rollout_logprobs")
"""What every policy loss of SkyRL takes."""

LOST = "the policy pair of this worker is not seen"

_UTILS = "skyrl.backends.skyrl_train.utils.ppo_utils"
_WORKER = "skyrl.backends.skyrl_train.workers.worker"


def look() -> None:
    """See the losses of a policy worker, if this process gets one; nothing of SkyRL is imported by this."""
    RECORDER.place({_UTILS: _guarded(losses), _WORKER: _guarded(updates)})


def _guarded(put: Callable[[Any], None]) -> Callable[[Any], None]:
    from tracker_diag_skyrl import TESTED

    def on_import(module: Any) -> None:
        with unless_changed("SkyRL", TESTED, LOST):
            put(module)

    return on_import


def losses(module: Any) -> None:
    """See the tensors of whatever policy loss is looked up by its name, a user's own too."""
    registry = module.PolicyLossRegistry
    original = registry.get
    if "name" not in inspect.signature(original).parameters:
        raise HookError("PolicyLossRegistry.get: takes no name, as the tested versions do")

    def looked_up(name: Any) -> Any:
        loss = original(name)
        with RECORDER.guard("integration_errors"):
            return _watched(loss)
        return loss

    replace(registry, "get", original, looked_up)


def _watched(loss: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(loss)
    if lacking := [name for name in TAKES if name not in signature.parameters]:
        raise HookError(f"{loss.__name__}{signature}: takes no {', '.join(lacking)}, as SkyRL's own losses do")

    @wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = loss(*args, **kwargs)
        with RECORDER.guard("integration_errors"):
            _observe(signature.bind(*args, **kwargs).arguments)
        return result

    return call


def _observe(given: Mapping[str, Any]) -> None:
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
        if given["self"].mesh_rank.is_collection_dp_rank():
            RECORDER.send()
        else:
            RECORDER.drop()

    after(module.PolicyWorkerBase, "optim_step", ("self",), done, RECORDER)
