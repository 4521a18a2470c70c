"""The policy pair from verl's workers: each looks at what its loss is made of, and sends a few kB once an update.

It hooks nothing before verl itself imports the modules. So a process without an actor does not change.
"""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.kit import clip_range
from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after, after_each
from tracker_diag_verl import TESTED

TAKES = ("old_log_prob", "log_prob", "advantages", "response_mask")
"""What every policy loss of verl takes."""

RECORDER = Recorder()


def install() -> None:
    """From now on see the losses of an actor that this process may get."""
    places = {
        "verl.trainer.ppo.core_algos": losses,  # before others import the function from there
        "verl.workers.engine.base": engine,
        "verl.workers.engine_workers": engine_worker,
        "verl.workers.actor.dp_actor": actor,  # of 0.7
    }
    RECORDER.place("verl", TESTED, places)


def _clip(config: Any) -> tuple[float, float]:
    """That of an actor's settings, as verl's losses take it from there."""
    both = getattr(config, "clip_ratio", None)
    return clip_range(*(getattr(config, f"clip_ratio_{side}", None) or both for side in ("low", "high")))


def losses(module: Any) -> None:
    """See the tensors of whatever policy loss is looked up by its name, a user's own too."""
    after_each(module, "get_policy_loss_fn", TAKES, _observe, RECORDER)


def _observe(_: Any, given: Mapping[str, Any]) -> None:
    RECORDER.observe(
        logprobs=given["log_prob"].detach(),
        old_logprobs=given["old_log_prob"].detach(),
        model_mask=given["response_mask"].bool(),
        advantages=given["advantages"].detach(),
        clip=_clip(given.get("config")),
    )


def engine(module: Any) -> None:
    """Know a mini-batch's end, in the engines of 0.7 and later."""
    after(module.BaseEngine, "train_batch", ("self", "data", "loss_function"), stepped, RECORDER)


def engine_worker(module: Any) -> None:
    """Send when an update is done; of ranks that share their tokens one does."""

    def done(_: Any, given: Mapping[str, Any]) -> None:
        RECORDER.send(only=given["self"].engine.is_mp_src_rank_with_outputs())

    after(module.TrainingWorker, "train_mini_batch", ("self", "data"), done, RECORDER)


def actor(module: Any) -> None:
    """The same in the actor that 0.7 has besides."""
    kind = module.DataParallelPPOActor

    def done(_: Any, given: Mapping[str, Any]) -> None:
        itself = given["self"] if "self" in given else given["args"][0]  # a decorator hides what it takes
        RECORDER.send(only=RECORDER.rank % itself.ulysses_sequence_parallel_size == 0)

    after(kind, "_optimizer_step", ("self",), stepped, RECORDER)
    after(kind, "update_policy", (), done, RECORDER)


def stepped(*_: Any) -> None:
    """The optimiser has made a step."""
    RECORDER.updated()
