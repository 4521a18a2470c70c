"""tracker_diag in ROLL: one line in the script that starts the training, before the pipeline is made.

    tracker_diag_roll.attach(config)
    pipeline = AgenticPipeline(pipeline_config=config)

Log-probabilities are read on the driver, where ROLL corrects the trainer against the inference engine. The mask is the
one before filters. The tracker that `track_with` names logs as ever.

The ratios of the policy are made in the workers; without enable_old_logprobs_recompute, so are those of the correction.
For these to be seen, Ray has to start each process with `install`, which the environment of the script says:

    RAY_JOB_CONFIG_JSON_ENV_VAR='{"runtime_env": {"worker_process_setup_hook": "tracker_diag_roll.install"}}'
"""

import atexit
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, add_active, clip_range, dotted, monitor_knowing, observe_before_update
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.workers import Workers
from tracker_diag.errors import require
from tracker_diag.hooks import after
from tracker_diag_roll.workers import install

__all__ = ["SEES", "TESTED", "attach", "install"]

TESTED = "8eb27cc (August 2026): its losses were run by a command, its trainer was read"

SEES: dict[str, str] = {
    "policy": "from the workers of all ranks, where their losses are made, if each process has `install`: with "
    "enable_old_logprobs_recompute, of several updates a step all but the first, whose ratios are 1 by construction; "
    "without it, of several ppo_epochs all but the first; else that is no signal",
    "mismatch": "old_log_probs less infer_logprobs, with an engine that returns log-probabilities; without "
    "enable_old_logprobs_recompute from the workers, if each process has `install`",
    "reference": "with enable_reference; it tells how far the batch's first policy is from it",
    "post_tool": "gaps in response_mask: what the environment says between turns, before filters of the correction",
    "advantage": "the sign of each token's advantage",
    "env": "in agentic pipelines: the tag of each trajectory's environment; in others its domain",
    "metrics": "all that the tracker is given, with its step",
    "state": "in the pipeline's checkpoint of the step, found again with resume_from_checkpoint",
    "not": "the policy pair without `install`, of which the rules see actor/approxkl and actor/ppo_ratio_clipfrac; its "
    "context where filters by token or segment take tokens out; the environments of what comes from the workers; which "
    "tool answered",
}

NO_RECOMPUTE = (
    "enable_old_logprobs_recompute is off: ROLL compares log-probabilities in its workers, and trainer against "
    "inference engine is seen only if Ray starts these with tracker_diag_roll.install. Else set "
    "enable_old_logprobs_recompute: true."
)

NO_TRACKER = "track_with names no tracker: ROLL logs nothing, and nothing is evaluated. Set track_with, stdout say."

CORRECTIONS = "roll.utils.train_infer_corrections"
PIPELINES = (
    "roll.pipeline.agentic.agentic_pipeline",
    "roll.pipeline.rlvr.rlvr_pipeline",
    "roll.pipeline.rlvr.rlvr_vlm_pipeline",
)
"""Where the correction of a batch is looked up; those that are loaded later take it from its own module."""

_log = logging.getLogger("tracker_diag")


def attach(config: Any, *, monitor: Monitor | None = None) -> Monitor:
    """Watch the pipeline that is made next.

    Args:
        config: the pipeline's.
        monitor: one with settings, rules or trackers of your own. By default it knows the run's settings, and writes to
            the W&B, MLflow or Trackio run that ROLL starts.
    """
    require("roll", "roll")
    given = monitor
    monitor = monitor or monitor_knowing(lambda: _monitor(config), "ROLL", TESTED)
    monitor.framework = "ROLL"
    watch = _Watch(monitor, bool(getattr(config, "enable_reference", False)))
    hooks, saved = Hooks("ROLL", TESTED), Saved(monitor)
    recompute = bool(getattr(config, "enable_old_logprobs_recompute", False))
    workers = Workers(monitor, fresh=recompute, gaps=not (recompute and _takes_tokens_out(config)))
    with hooks.part("ratios of tokens are not seen") as on:
        corrections = require(CORRECTIONS, "roll")
        parameters = ("response_mask", "old_log_probs", "infer_log_probs")
        on.callback(after(corrections, "compute_train_infer_correction", parameters, watch.on_correction, monitor))
        for module in (corrections, *(sys.modules[name] for name in PIPELINES if name in sys.modules)):
            name = "apply_train_infer_correction_to_batch"
            on.callback(after(module, name, ("pipeline_config", "batch"), watch.on_batch, monitor))
    with hooks.part("nothing that it logs is heard"):
        registry: dict[str, Any] = require("roll.utils.tracking", "roll").tracker_registry
        for name, tracker in list(registry.items()):
            registry[name] = _watched(tracker, monitor, saved, workers, add=given is None)
    with hooks.part(UNSAVED) as on:
        _save_state(monitor, saved, on)
    monitor.expect(getattr(config, "max_steps", None))
    if not getattr(config, "track_with", None):
        _log.warning(NO_TRACKER)
    if not recompute:
        _log.warning(NO_RECOMPUTE)
    return monitor


def clip_of(settings: Mapping[str, Any]) -> tuple[float, float]:
    """How far below and above 1 the ratio is clipped, as ROLL's losses take it from the pipeline's settings."""
    both = settings.get("pg_clip")
    sides = ("pg_clip_low", "pg_clip_high") if settings.get("use_pg_clip_range") else ("pg_clip", "pg_clip")
    return clip_range(*(settings.get(side) or both for side in sides))


def _takes_tokens_out(config: Any) -> bool:
    """Whether the mask that workers are given may have gaps that no environment has made."""
    filters = getattr(getattr(config, "train_infer_correction", None), "filters", None) or ()
    return any(getattr(setting, "enabled", False) and setting.agg_type in {"token", "segment"} for setting in filters)


def _save_state(monitor: Monitor, saved: Saved, on: ExitStack) -> None:
    """With the pipeline's own state, before it is uploaded; a resumed pipeline reads that when it is made."""
    state = require("roll.utils.worker_state", "roll").WorkerState

    def put(_: Any, given: Mapping[str, Any]) -> None:
        if given["tag"] == "pipeline":
            saved.put(given["save_dir"], row=given["self"].step)

    def find(_: Any, given: Mapping[str, Any]) -> None:
        if given["tag"] == "pipeline":
            saved.find(given["load_dir"])

    on.callback(after(state, "save_to_json", ("self", "save_dir", "tag"), put, monitor))
    on.callback(after(state, "load_from_json", ("load_dir", "tag"), find, monitor))


class _Watch:
    """What is kept between the correction of a batch and its end."""

    def __init__(self, monitor: Monitor, reference: bool) -> None:
        self._monitor, self._reference = monitor, reference
        self._correction: dict[str, Any] = {}

    def on_correction(self, result: Any, given: Mapping[str, Any]) -> None:
        weights, kept, _ = result
        self._correction = {
            "model_mask": given["response_mask"] != 0,  # a copy: the batch's own is changed in a moment
            "old": given["old_log_probs"],
            "rollout": given["infer_log_probs"],
            "applied_weights": weights * kept,
        }

    def on_batch(self, result: Any, given: Mapping[str, Any]) -> None:
        seen, self._correction = self._correction, {}
        if not seen or not seen["model_mask"].any():
            return
        data = given["batch"]
        labels: dict[str, Any] = {}
        if "advantages" in data.batch:
            labels["advantages"] = data.batch["advantages"]
        for name in ("tags", "domain"):
            if name in data.non_tensor_batch:
                labels["env"] = [str(tag) for tag in data.non_tensor_batch[name]]
                break
        # Without a reference it is a copy of old_log_probs.
        ref = data.batch["ref_log_probs"] if self._reference and "ref_log_probs" in data.batch else None
        observe_before_update(self._monitor, ref=ref, **seen, **labels)


def _watched(
    tracker: Callable[..., Any], monitor: Monitor, saved: Saved, workers: Workers, *, add: bool
) -> Callable[..., Any]:
    """What makes one of ROLL's trackers, the same tracker with its `log` and `finish` heard."""

    def made(*args: Any, **kwargs: Any) -> Any:
        started = tracker(*args, **kwargs)
        if add:
            add_active(monitor, sees=SEES)
        with monitor.guard("integration_errors"):
            _hear(started, monitor, saved, workers.open())  # now that Ray has been started
        # ROLL ends no tracker; at the end of the process the last one that came goes first.
        atexit.unregister(monitor.close)
        atexit.register(monitor.close)
        return started

    return made


def _hear(tracker: Any, monitor: Monitor, saved: Saved, workers: Workers) -> None:
    own, log, finish = get_ident(), tracker.log, tracker.finish

    def heard(values: Any, step: int | None = None, **kwargs: Any) -> Any:
        # A resumed run logs its history again, from a thread.
        if isinstance(values, Mapping) and get_ident() == own:
            metrics = {name.rsplit("@", 1)[0]: value for name, value in values.items() if isinstance(name, str)}
            workers.take_in()
            monitor.log(metrics, step)
            saved.logged()
        return log(values, step, **kwargs)

    def finished() -> Any:
        monitor.close()
        return finish()

    tracker.log, tracker.finish = heard, finished


def _monitor(config: Any) -> Monitor:
    settings = dotted(config.to_dict() if hasattr(config, "to_dict") else dict(config or {}))
    of_sequences = settings.get("ratio_type") in {"sequence", "segment"}
    return Monitor(config=settings, algorithm="gspo" if of_sequences else None, clip=clip_of(settings))
