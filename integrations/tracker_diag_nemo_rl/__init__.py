"""tracker_diag in NeMo-RL: one line in the script that starts the training, after its `setup`.

    tracker_diag_nemo_rl.attach(logger, master_config)

The trainers of GRPO and PPO are known, synchronous and asynchronous. Log-probabilities are read on the driver, where
NeMo-RL compares them itself. The token mask is the one before sequences were masked for their error.

The ratios of the policy are made in its workers. To read them, each of their environments needs tracker_diag too. Ray
has to start each process with `install`. The environment of the script says so:

    RAY_JOB_CONFIG_JSON_ENV_VAR='{"runtime_env": {"worker_process_setup_hook": "tracker_diag_nemo_rl.install"}}'
"""

import logging
import math
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.workers import Workers
from tracker_diag.errors import require
from tracker_diag.hooks import HookError, after
from tracker_diag_nemo_rl.workers import install

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "DiagnosticsLogger", "attach", "install"]

INSTALLED_AS = ("nemo-rl",)
TESTED = "v0.7.0 and 7ea279a (August 2026): its losses were run by a command, its trainer was read"

SEES: dict[str, str] = {
    "policy": "from the workers of all ranks, where the clipped loss is made, if each process has `install`: of "
    "several updates a step all but the first, whose ratios are 1 by construction; with one update a step, and with "
    "force_on_policy_ratio, that is no signal",
    "mismatch": "prev_logprobs less generation_logprobs; not with force_on_policy_ratio, which makes no prev_logprobs",
    "reference": "in the trainer that keeps its data on the driver, unless "
    "skip_reference_policy_logprobs_calculation; it tells how far the batch's first policy is from the reference",
    "post_tool": "gaps in token_mask: messages of the environment between those of the model",
    "advantage": "in the policy pair: the sign of each token's advantage",
    "metrics": "all that the logger is given, with its step, but for the GPU monitor's",
    "state": "in the checkpoint of the step, found again in the latest one of checkpointing.checkpoint_dir",
    "not": "the policy pair without `install`, of which the rules see probs_ratio; each sequence once, with DTensor "
    "and sequence packing, as NeMo-RL repeats some where ranks have unequal numbers of batches; which tool answered",
}

NO_PREVIOUS = (
    "force_on_policy_ratio makes no log-probabilities of the trainer before the update: no signal of trainer against "
    "generation engine. Set force_on_policy_ratio=false, or grpo.seq_logprob_error_threshold."
)

TRAINED = ("train", "")
"""Prefixes of the row that is logged when a step has been trained on; other rows come before and after."""

UNLIMITED = 1_000_000
"""NeMo-RL's usual `max_num_steps`, where the number of epochs ends the run."""

FUNCTION = "compute_and_apply_seq_logprob_error_masking"
MODULES = tuple(f"nemo_rl.algorithms.{name}" for name in ("grpo", "grpo_sync", "ppo", "single_controller"))
"""Where the function is looked up; those that are loaded later take it from the first."""

_log = logging.getLogger("tracker_diag")


class DiagnosticsLogger:
    """Has the methods of NeMo-RL's `LoggerInterface`, and hands metrics over to a monitor."""

    def __init__(self, monitor: Monitor, saved: Saved | None = None, workers: Workers | None = None) -> None:
        self._monitor, self._saved = monitor, saved or Saved(monitor)
        self._workers = workers or Workers(monitor)

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Metrics of `step`; those with a step of their own are the GPU monitor's, and stay out."""
        if step_metric is None:
            if prefix in TRAINED:
                self._workers.take_in()
            named = {f"{prefix}/{name}" if prefix else name: value for name, value in metrics.items()}
            self._monitor.log(named, step)
            self._saved.logged()

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        with self._monitor.guard("integration_errors"):
            self._monitor.config = {**self._monitor.config, **kit.dotted(params)}

    def log_histogram(self, histogram: list[Any], step: int, name: str) -> None:
        """Nothing: what NeMo-RL draws are no log-ratios."""

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Called before the trackers' own, since this logger is first."""
        self._monitor.close()


def attach(logger: Any, config: Any = None, *, monitor: Monitor | None = None) -> Monitor:
    """Watch the training that logs to `logger`, a `nemo_rl.utils.logger.Logger`.

    Args:
        config: the run's `MasterConfig`, or the same as a dictionary.
        monitor: one with settings, rules or trackers of your own.
    """
    require("nemo_rl", "nemo-rl")
    settings: dict[str, object] = {}
    with kit.unless_changed("nemo-rl", TESTED, "the run's settings are not known"):
        settings = kit.dotted(config.model_dump() if hasattr(config, "model_dump") else dict(config or {}))
    if monitor is None:
        monitor = kit.monitor_knowing(lambda: _monitor(settings), "nemo-rl", TESTED)
        kit.add_active(monitor, sees=SEES)
    monitor.framework = "NeMo-RL"
    watched, saved, hooks = monitor, Saved(monitor), kit.Hooks("nemo-rl", TESTED)

    with hooks.part("ratios of tokens are not seen") as on:
        others = [sys.modules[name] for name in MODULES[1:] if hasattr(sys.modules.get(name), FUNCTION)]
        for module in (require(MODULES[0], "nemo-rl"), *others):
            seen = partial(_observe, watched)
            on.callback(after(module, FUNCTION, ("train_data", "rewards"), seen, monitor))
    with hooks.part(UNSAVED) as on:
        _save_state(monitor, saved, settings, on)
    with hooks.part("nothing that it logs is heard"):
        asked = getattr(require("nemo_rl.utils.logger", "nemo-rl").LoggerInterface, "__abstractmethods__", ())
        if lacking := set(asked) - set(dir(DiagnosticsLogger)):
            raise HookError(f"LoggerInterface: asks for {', '.join(sorted(lacking))}, as tested versions do not")
        workers = Workers(monitor, each=True, every=_with_the_same_tokens(settings))
        logger.loggers.insert(0, DiagnosticsLogger(monitor, saved, workers.open()))
    thresholds = (settings.get(f"{algorithm}.seq_logprob_error_threshold") for algorithm in ("grpo", "ppo"))
    if settings.get("loss_fn.force_on_policy_ratio") and all(threshold is None for threshold in thresholds):
        _log.warning(NO_PREVIOUS)
    return monitor


def _save_state(monitor: Monitor, saved: Saved, settings: Mapping[str, object], on: ExitStack) -> None:
    """In each checkpoint while it is made, and once it has its name; and learn how many steps are to come."""
    manager = require("nemo_rl.utils.checkpoint", "nemo-rl").CheckpointManager

    def begun(folder: Any, given: Mapping[str, Any]) -> None:
        saved.put(folder, row=given["step"])

    def named(_: Any, given: Mapping[str, Any]) -> None:
        made = Path(given["checkpoint_path"])
        saved.put(made.with_name(made.name.removeprefix("tmp_")), row=int(made.name.rpartition("_")[2]))

    on.callback(after(manager, "init_tmp_checkpoint", ("step",), begun, monitor))
    on.callback(after(manager, "_rename_checkpoint", ("checkpoint_path",), named, monitor))
    folder = settings.get("checkpointing.checkpoint_dir")
    there = Path(folder).glob("step_*") if isinstance(folder, str) else ()
    steps = {int(path.name[5:]): path for path in there if path.name[5:].isdigit()}
    done = max(steps, default=0)
    total = next((settings[name] for name in ("grpo.max_num_steps", "ppo.max_num_steps") if name in settings), None)
    if isinstance(total, int) and total < UNLIMITED:
        monitor.expect(total - done)
    if steps:
        saved.find(steps[done])


def _with_the_same_tokens(settings: Mapping[str, object]) -> int:
    """How many ranks in a row share their sequences: those of a tensor and of a context in parts."""
    megatron = bool(settings.get("policy.megatron_cfg.enabled"))
    kind, tensor = ("megatron_cfg", "tensor_model") if megatron else ("dtensor_cfg", "tensor")
    sizes = (settings.get(f"policy.{kind}.{name}_parallel_size") for name in (tensor, "context"))
    return math.prod(size for size in sizes if isinstance(size, int))


def _monitor(settings: Mapping[str, object]) -> Monitor:
    of_sequences = bool(settings.get("loss_fn.sequence_level_importance_ratios"))
    ppo = "ppo.num_prompts_per_step" in settings
    return Monitor(
        config=settings,
        algorithm="gspo" if of_sequences else "ppo" if ppo else "grpo",
        clip=kit.clip_range(settings.get("loss_fn.ratio_clip_min"), settings.get("loss_fn.ratio_clip_max")),
    )


def _observe(monitor: Monitor, _: Any, given: Mapping[str, Any]) -> None:
    data = given["train_data"]
    mask, reference = data["token_mask"].bool(), data.get("reference_policy_logprobs")
    if not mask.any():
        return
    if reference is not None and not reference.any():  # zeros throughout where it was skipped
        reference = None
    # The mask of samples is left out: it is 0 on sequences that were rejected.
    kit.observe_before_update(
        monitor, data["prev_logprobs"], rollout=data["generation_logprobs"], ref=reference, model_mask=mask
    )
