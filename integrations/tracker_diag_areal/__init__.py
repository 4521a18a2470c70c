"""tracker_diag in AReaL: `attach(trainer)` before `trainer.train()`, in the process of each rank.

    with PPOTrainer(config, train_dataset=...) as trainer:
        tracker_diag_areal.attach(trainer)
        trainer.train(workflow=...)

Log-probabilities are read where the loss is computed, before M2PO and rejection sampling take tokens out. They are
sliced by the policy version that sampled each token. Rank 0 writes and alerts. The other data-parallel ranks send the
counts of their shares of the batch, a step later. If ranks have the same sequences, as with tensor or context
parallelism, the first one is read.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.shares import Share, together
from tracker_diag.errors import require
from tracker_diag.hooks import after, before
from tracker_diag.tensors.store import ThroughStore

__all__ = ["SEES", "TESTED", "attach"]

TESTED = "1.0"

SEES: dict[str, str] = {
    "policy": "current against proximal log-probabilities, of all minibatches of a step. The ratios of the first "
    "are 1 by construction",
    "mismatch": "with actor.use_decoupled_loss: proximal log-probabilities against those of the rollout engine",
    "reference": "with a reference model",
    "post_tool": "multi-turn workflows: tokens that loss_mask leaves out",
    "policy_lag": "by token: the trainer's version less that which sampled the token",
    "advantage": "the sign of each token's advantage",
    "metrics": "all that StatsLogger.commit is given but its counts, with its global step",
    "state": "next to the recover checkpoint, and loaded when the trainer recovers",
    "not": "any ratio in single-controller mode, as other processes compute the loss; or with pipeline parallelism, "
    "as ranks compute it that log nothing; with prox_logp_method=loglinear the policy and mismatch pairs, as their "
    "proximal policy is then an interpolation; which of several tools answered",
}

SINGLE_CONTROLLER = (
    "in single-controller mode the loss is computed in other processes: no signal. Tails, ESS and KL by slice will not "
    "be seen, only what the trainer logs. To see them, launch with one trainer process a rank (SPMD)."
)

PIPELINE = (
    "with pipeline parallelism the loss is computed by ranks that log nothing: no signal. Tails, ESS and KL by slice "
    "will not be seen, only what the trainer logs. To see them, leave the actor in one stage (p1 of its backend)."
)

OTHERS = "tokens of other ranks than the first are not seen"

_log = logging.getLogger("tracker_diag")


def attach(trainer: Any, *, monitor: Monitor | None = None) -> Monitor:
    """Watch one call of `trainer.train()`; call this before it.

    The diagnostics go to the run of W&B that the trainer's `StatsLogger` has started, next to its own rows. They are
    closed before that run is ended.

    Args:
        trainer: a `PPOTrainer`, or anything with its `config` and `stats_logger`.
        monitor: one with settings, rules, ranks or trackers of your own, for this process. By default rank 0 has one.
            It knows the trainer's settings, algorithm and clip range, and sees the tokens of all ranks.

    Returns:
        The monitor of this process; on other ranks than 0 it writes nowhere.
    """
    require("areal", "areal")
    if (there := kit.watching(trainer, monitor)) is not None:
        return there
    rank, own = int(os.environ.get("RANK", "0")), monitor is not None
    ranks = None if own else _ranks(trainer)
    share = Share(ranks) if ranks and rank else None
    if rank and not own and share is None:  # another rank hands over the same sequences
        return Monitor(catalog=False)
    if monitor is None:
        monitor = share.monitor if share else _default(trainer, ranks)
    kit.watch_once(trainer, monitor, "AReaL")
    watched, saved = monitor, Saved(monitor, rank)

    def on_commit(given: Mapping[str, Any]) -> None:
        if share:
            share.stepped(given["global_step"])
            return
        rows = [given["data"]] if isinstance(given["data"], Mapping) else given["data"]
        metrics = {key: value for row in rows for key, value in row.items() if not key.endswith("__count")}
        watched.log(metrics, given["global_step"])
        saved.logged()

    def on_close(_: Mapping[str, Any]) -> None:
        watched.close()
        hooks.close()

    hooks = kit.Hooks("AReaL", TESTED)
    with hooks.part("nothing that it logs is heard") as on:
        on.callback(before(trainer.stats_logger, "commit", ("global_step", "data"), on_commit, monitor))
        on.callback(before(trainer.stats_logger, "close", (), on_close, monitor))
    with hooks.part("ratios of tokens are not seen") as on:
        if _single_controller():
            _log.warning(SINGLE_CONTROLLER)
        else:
            actor = require("areal.trainer.ppo.actor", "areal")
            parameters = ("logprobs", "input_data", "current_version", "use_decoupled_loss")
            on.callback(after(actor, "grpo_loss_fn", parameters, lambda _, given: observe(given, watched), monitor))
    if share is None:
        with hooks.part(UNSAVED) as on:
            _save_state(trainer, monitor, saved, on)
    return monitor


def _default(trainer: Any, ranks: ThroughStore | None) -> Monitor:
    monitor = kit.monitor_knowing(lambda: _monitor(trainer.config, ranks), "AReaL", TESTED)
    theirs = getattr(getattr(trainer, "stats_logger", None), "summary_writer", None)
    kit.add_active(monitor, theirs, sees=SEES)
    return monitor


def _ranks(trainer: Any) -> ThroughStore | None:
    """How this rank comes together with the others; None where it has no share of its own, or is alone."""
    with kit.unless_changed("AReaL", TESTED, OTHERS):
        actor = trainer.actor
        if _single_controller() or not actor.is_data_parallel_head():
            return None
        if trainer.actor_alloc.parallel.pp_size > 1:
            _log.warning(PIPELINE)
        else:
            return together(actor.data_parallel_rank, actor.data_parallel_world_size)
    return None


def _single_controller() -> bool:
    return bool(require("areal.utils.environ", "areal").is_single_controller())


def _save_state(trainer: Any, monitor: Monitor, saved: Saved, on: ExitStack) -> None:
    """Next to what AReaL writes for a recovery; the trainer recovers when it is made, so that is over by now."""
    handler, info = trainer.recover_handler, trainer.recover_info
    own = handler.config
    folder = handler.recover_info_path(own.experiment_name, own.trial_name, own.fileroot)

    def on_dump(_: Any, given: Mapping[str, Any]) -> None:
        if handler.last_step_info is given["step_info"]:  # else it was not due
            saved.put(folder, row=handler.last_step_info.global_step)

    on.callback(after(handler, "dump", ("step_info",), on_dump, monitor))
    total = min(filter(None, (trainer.config.total_train_steps, handler.ft_spec.total_train_steps)))
    monitor.expect(total - (0 if info is None else info.last_step_info.global_step + 1))
    if info is not None:
        saved.find(folder)


def observe(given: Mapping[str, Any], monitor: Monitor) -> None:
    """Hand over what `grpo_loss_fn` was given: a microbatch, packed (N,) with cu_seqlens or padded (B, T).

    AReaL turns masks and log-probabilities one place to the left, so that they are where the token was predicted;
    `versions` is still where the token is.
    """
    import torch

    data, new = given["input_data"], given["logprobs"].detach()
    tensors: dict[str, Any] = {
        "logprobs": new,
        "old_logprobs": data.get("prox_logp"),
        "ref_logprobs": data.get("ref_logp"),
    }
    if given.get("use_decoupled_loss") and tensors["old_logprobs"] is not None:
        tensors["rollout_logprobs"] = data["logprobs"]
    if tensors["old_logprobs"] is None and tensors["ref_logprobs"] is None:
        return
    if new.ndim == 1:
        places = torch.arange(len(new), device=new.device)
        tensors["sequence_ids"] = torch.searchsorted(data["cu_seqlens"].to(places.dtype), places, right=True)
    version = given.get("current_version")
    if version is not None and "versions" in data:
        tensors["policy_lag"] = version - torch.roll(data["versions"].long(), shifts=-1, dims=-1)
    monitor.observe(model_mask=data["loss_mask"].bool(), advantages=data.get("advantages"), **tensors)


def _monitor(given: Any, ranks: ThroughStore | None) -> Monitor:
    settings = asdict(given)
    settings.pop("stats_logger", None)  # it has the tracker's key
    config = kit.dotted(settings)
    clip = kit.clip_range(config.get("actor.eps_clip"), config.get("actor.eps_clip_higher"))
    gspo = config.get("actor.importance_sampling_level") == "sequence"
    return Monitor(config=config, algorithm="gspo" if gspo else "grpo", clip=clip, ranks=ranks)
