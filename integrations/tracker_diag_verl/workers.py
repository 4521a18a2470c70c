"""The policy pair from verl's workers: each looks at what its loss is made of, and sends a few kB once an update.

Puts nothing on before verl itself imports the modules, so that a process without an actor is left as it is.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from tracker_diag.attach.kit import clip_range, unless_changed
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import HookError, after, replace
from tracker_diag_verl import TESTED

LOST = "the policy pair of this worker is not seen"

TAKES = ("old_log_prob", "log_prob", "advantages", "response_mask")
"""What every policy loss of verl takes."""


RECORDER = Recorder()
"""That of this process."""


def look() -> None:
    """From now on see the losses of an actor that this process may get."""
    watch = _Worker(RECORDER)
    places = {
        "verl.trainer.ppo.core_algos": watch.losses,  # before others import the function from there
        "verl.workers.engine.base": watch.engine,
        "verl.workers.engine_workers": watch.engine_worker,
        "verl.workers.actor.dp_actor": watch.actor,  # of 0.7
    }
    RECORDER.place({module: _guarded(put) for module, put in places.items()})


def _guarded(put: Callable[[Any], None]) -> Callable[[Any], None]:
    def on_import(module: Any) -> None:
        with unless_changed("verl", TESTED, LOST):
            put(module)

    return on_import


def _clip(config: Any) -> tuple[float, float]:
    """That of an actor's settings, as verl's losses take it from there."""
    both = getattr(config, "clip_ratio", None)
    return clip_range(*(getattr(config, f"clip_ratio_{side}", None) or both for side in ("low", "high")))


class _Worker:
    """The hooks of one process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def losses(self, module: Any) -> None:
        """See the tensors of whatever policy loss is looked up by its name, a user's own too."""
        original = module.get_policy_loss_fn
        if "name" not in inspect.signature(original).parameters:
            raise HookError("get_policy_loss_fn: takes no name, as the tested versions do")
        watched: dict[Callable[..., Any], Callable[..., Any]] = {}

        def looked_up(name: Any) -> Any:
            loss = original(name)
            if loss not in watched:
                with self._recorder.guard("integration_errors"):
                    watched[loss] = self._watched(loss)
            return watched.get(loss, loss)

        replace(module, "get_policy_loss_fn", original, looked_up)

    def _watched(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(loss)
        if lacking := [name for name in TAKES if name not in signature.parameters]:
            raise HookError(f"{loss.__name__}{signature}: takes no {', '.join(lacking)}, as verl's own losses do")

        @wraps(loss)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = loss(*args, **kwargs)
            with self._recorder.guard("integration_errors"):
                given = signature.bind(*args, **kwargs).arguments
                self._recorder.observe(
                    logprobs=given["log_prob"].detach(),
                    old_logprobs=given["old_log_prob"].detach(),
                    model_mask=given["response_mask"].bool(),
                    advantages=given["advantages"].detach(),
                    clip=_clip(given.get("config")),
                )
            return result

        return call

    def engine(self, module: Any) -> None:
        """Know a mini-batch's end, in the engines of 0.7 and later."""
        after(module.BaseEngine, "train_batch", ("self", "data", "loss_function"), self._on_step, self._recorder)

    def engine_worker(self, module: Any) -> None:
        """Send when an update is done."""

        def done(_: Any, given: Mapping[str, Any]) -> None:
            if given["self"].engine.is_mp_src_rank_with_outputs():
                self._recorder.send()
            else:  # of ranks that share their tokens one sends
                self._recorder.drop()

        after(module.TrainingWorker, "train_mini_batch", ("self", "data"), done, self._recorder)

    def actor(self, module: Any) -> None:
        """The same in the actor that 0.7 has besides."""
        kind = module.DataParallelPPOActor

        def done(_: Any, given: Mapping[str, Any]) -> None:
            itself = given["self"] if "self" in given else given["args"][0]  # a decorator hides what it takes
            if self._recorder.rank % itself.ulysses_sequence_parallel_size == 0:
                self._recorder.send()
            else:
                self._recorder.drop()

        after(kind, "_optimizer_step", ("self",), self._on_step, self._recorder)
        after(kind, "update_policy", (), done, self._recorder)

    def _on_step(self, _: Any, given: Mapping[str, Any]) -> None:
        self._recorder.updated()
