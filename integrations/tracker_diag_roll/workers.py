"""The policy pair from ROLL's actors: each looks at what its loss is made of, and sends a few kB once an update."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.workers import Recorder
from tracker_diag.hooks import after

RECORDER = Recorder()


def install() -> None:
    """See the losses of an actor that is made in this process; the hook of Ray's worker processes.

    ROLL is not imported by this.
    """
    from tracker_diag_roll import TESTED

    RECORDER.place("ROLL", TESTED, {"roll.pipeline.base_worker": put})


def put(module: Any) -> None:
    """Put the hooks on `roll.pipeline.base_worker`, whose actor all others are subclasses of."""
    kind = module.ActorWorker
    after(kind, "train_step", ("self", "data"), _on_update, RECORDER)
    after(kind, "get_old_log_probs_with_cache", ("self", "data", "log_probs"), _on_loss, RECORDER)
    RECORDER.hear_optimizers()  # last: nothing is kept that nobody sends


def _on_loss(old: Any, given: Mapping[str, Any]) -> None:
    """Every loss of ROLL asks for its old log-probabilities, before what it corrects takes tokens out."""
    from tracker_diag_roll import clip_of

    data, new = given["data"], given["log_probs"]
    batch = data.batch
    tensors = {
        "old_logprobs": old.detach(),
        "model_mask": batch["response_mask"][:, 1:].bool(),
        "advantages": batch["advantages"],
        "clip": clip_of(vars(given["self"].pipeline_config)),
    }
    if old.data_ptr() != new.data_ptr():
        RECORDER.observe(logprobs=new.detach(), **tensors)
    elif "infer_logprobs" in batch and len(rollout := batch["infer_logprobs"]):
        # These are the old ones, ROLL makes no others: a ratio of 1 is none, but it compares them with the engine's.
        RECORDER.observe(rollout_logprobs=rollout, **tensors)


def _on_update(_: Any, given: Mapping[str, Any]) -> None:
    """Send; of the ranks that share their sequences, by tensors or contexts in parts, one does."""
    place = given["self"].rank_info
    RECORDER.send(only=place.tp_rank == place.cp_rank == 0)
