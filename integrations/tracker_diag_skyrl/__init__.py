"""tracker_diag in SkyRL: `attach(trainer)` before `trainer.train()`, in the process that trains.

    class Exp(BasePPOExp):
        def get_trainer(self, *args, **kwargs):
            trainer = super().get_trainer(*args, **kwargs)
            tracker_diag_skyrl.attach(trainer)
            return trainer

The ratios of the policy are made in the workers. To read them, Ray has to start each process with `install`. The
environment of the script that calls `ray.init` says so:

    RAY_JOB_CONFIG_JSON_ENV_VAR='{"runtime_env": {"worker_process_setup_hook": "tracker_diag_skyrl.install"}}'

Both trainers are known, the synchronous and the fully asynchronous one, which refuses callbacks: the batch is looked at
where it is trained on, and the metrics where they are logged.
"""

import logging
from collections.abc import Mapping
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.workers import Workers
from tracker_diag.errors import require
from tracker_diag.hooks import after, before
from tracker_diag_skyrl.workers import install

__all__ = ["SEES", "TESTED", "attach", "install"]

TESTED = "0.3 and 0.4"

SEES: dict[str, str] = {
    "policy": "from the workers of all ranks, where their losses are made, if each process has `install`: of several "
    "updates a step all but the first, whose ratios are 1 by construction; with one update a step that is no signal. "
    "With a loss on the rollout's log-probabilities it is the policy against the one that sampled, in all updates",
    "mismatch": "with generator.sampling_params.logprobs, where the trainer makes log-probabilities of its own",
    "reference": "with a reference model; it tells how far the batch's first policy is from it",
    "post_tool": "multi-turn rollouts: response tokens that loss_mask leaves out; with step_wise_trajectories, turns "
    "after a trajectory's first",
    "advantage": "the sign of each token's advantage",
    "samples": "reward, advantage, length and group of each sequence",
    "metrics": "all that the trainer logs, with its step",
    "state": "next to the checkpoint of the step, found again when training resumes; not where these are in a cloud",
    "not": "the policy pair without `install`, of which the rules see policy/loss_metrics/clip_ratio, and with "
    "Megatron; its context with step_wise_trajectories; mismatch and reference with a loss on the rollout's "
    "log-probabilities (rollout_is, dppo; asynchronous runs take these) without off_policy_correction or "
    "use_kl_in_reward, where the trainer makes none of its own; the policy lag of a token, of which the rules see "
    "async/staleness_*; groups that zero_variance_filter or dynamic sampling took out; which of several tools answered",
}

NO_LOGPROBS = (
    "this loss trains on the rollout's log-probabilities, the trainer makes none of its own: no signal. Tails, ESS "
    "and KL by slice will not be seen, only what the trainer logs. It makes them with off_policy_correction "
    "(tis_ratio_type), with use_kl_in_reward, or with policy_loss_type=regular."
)

SAMPLED = ("rollout_is", "dppo")
"""Losses on the rollout's log-probabilities."""
_log = logging.getLogger("tracker_diag")


def attach(trainer: Any, *, monitor: Monitor | None = None) -> Monitor:
    """Watch one call of `trainer.train()`; call this before it.

    The diagnostics go to the run of W&B, MLflow or TensorBoard that `trainer.tracker` has started, next to its rows.
    They are closed before that run is ended.

    Args:
        trainer: a `RayPPOTrainer` or `FullyAsyncRayPPOTrainer`.
        monitor: one with settings, rules or trackers of your own. By default one that knows the trainer's
            settings, its algorithm and its clip range.
    """
    require("skyrl", "skyrl")
    if (there := kit.watching(trainer, monitor)) is not None:
        return there
    if monitor is None:
        monitor = kit.monitor_knowing(lambda: _monitor(trainer.cfg), "SkyRL", TESTED)
        kit.add_active(monitor, getattr(getattr(trainer, "tracker", None), "logger", None), sees=SEES)
    kit.watch_once(trainer, monitor, "SkyRL")
    _watch(trainer, monitor)
    return monitor


def from_rollout(config: Mapping[str, object]) -> bool:
    """Whether the loss is on the rollout's log-probabilities, by the run's settings: `cispo` says it by its anchor."""
    loss = config.get("trainer.algorithm.policy_loss_type")
    anchor = config.get("trainer.algorithm.cispo.cispo_anchor")
    return loss in SAMPLED or (loss == "cispo" and anchor == "rollout")


class _Batches:
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._warned = False
        self._about: dict[str, Any] = {}
        """What the trainer takes out of the batch before it trains on it."""

    def scored(self, result: Any, given: Mapping[str, Any]) -> None:
        """Keep rewards, groups and turns of a step's batch, which it has for a while."""
        about = result.metadata or {}
        self._about = {name: about.get(name) for name in ("is_last_step", "uids")} | {"rewards": result.get("rewards")}

    def observe(self, batch: Any) -> None:
        about, self._about = self._about, {}
        old = batch.get("action_log_probs")
        if old is None:
            if not self._warned:
                self._warned = True
                _log.warning(NO_LOGPROBS)
            return
        kit.observe_before_update(
            self._monitor,
            old,
            rollout=batch.get("rollout_logprobs"),
            ref=batch.get("base_action_log_probs"),
            response_mask=batch["response_mask"],
            model_mask=batch["loss_mask"],
            advantages=batch.get("advantages"),
            **_turns(batch, about),
        )
        with self._monitor.guard("integration_errors"):
            self._monitor.samples(**_samples(batch, about))


def _turns(batch: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """With step_wise_trajectories a row is a turn, and all but a trajectory's first follow what was said to it."""
    last = about.get("is_last_step")
    if last is None:
        return {}
    if len(last) != len(batch["loss_mask"]):  # rows have come or gone since: which are whose, nobody knows
        return {"trajectory_ids": [0] * len(batch["loss_mask"])}
    return {"begins_after_tool": [False, *(not ends for ends in last[:-1])]}


def _samples(batch: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of each sequence; with step_wise_trajectories of each turn, but the reward, which the last has.

    Rows without a trained token are left out: they only fill the batch up.
    """
    mask, rewards = batch["loss_mask"], about.get("rewards")
    n, columns = len(mask), dict[str, Any]()
    if rewards is not None and len(rewards) == n:
        last = about.get("is_last_step") or [True] * n
        rewards = rewards.reshape(n, -1).sum(1).tolist()
        columns["reward"] = [reward if ends else None for reward, ends in zip(rewards, last, strict=True)]
    if batch.get("advantages") is not None:
        columns["advantage"] = kit.of_sequences(batch["advantages"], mask).tolist()
    if len(uids := about.get("uids") or ()) == n:
        columns["group"] = uids
    columns["length"] = lengths = mask.sum(1).tolist()
    return {
        name: [value for value, length in zip(values, lengths, strict=True) if length]
        for name, values in columns.items()
    }


def _monitor(cfg: Any) -> Monitor:
    config = kit.dotted(require("skyrl.train.config", "skyrl").get_config_as_dict(cfg))
    prefix = "trainer.algorithm."
    clip = kit.clip_range(config.get(f"{prefix}eps_clip_low"), config.get(f"{prefix}eps_clip_high"))
    gspo = config.get(f"{prefix}policy_loss_type") == "gspo"
    return Monitor(config=config, algorithm="gspo" if gspo else None, clip=clip)


def _watch(trainer: Any, monitor: Monitor) -> None:
    """See the batch where it is trained on, what is logged, and where checkpoints are."""
    turns = bool(monitor.config.get("generator.step_wise_trajectories"))
    workers = Workers(monitor, fresh=not from_rollout(monitor.config), gaps=not turns, each=True).open()
    batches, saved = _Batches(monitor), Saved(monitor)

    def on_log(given: Mapping[str, Any]) -> None:
        workers.take_in()
        monitor.log(given["data"], given["step"])
        saved.logged()

    def on_saved(*_: Any) -> None:
        saved.put(f"{trainer.cfg.trainer.ckpt_path}/global_step_{trainer.global_step}", row=trainer.global_step)

    def on_begin(loaded: Any, _: Mapping[str, Any]) -> None:
        step, folder = loaded[:2]
        monitor.expect((trainer.total_training_steps or step) - step)
        if step:
            saved.find(folder)

    hooks = kit.Hooks("SkyRL", TESTED)
    with hooks.part("nothing that it logs is heard") as on:
        on.callback(before(trainer.tracker, "log", ("data", "step"), on_log, monitor))
        on.callback(before(trainer.tracker, "finish", (), lambda _: monitor.close(), monitor))
    with hooks.part("ratios of tokens are not seen") as on:
        seen = batches.observe
        on.callback(before(trainer, "train_critic_and_policy", ("data",), lambda given: seen(given["data"]), monitor))
    with hooks.part("rewards, groups and turns of a batch are not seen") as on:
        on.callback(after(trainer, "compute_advantages_and_returns", ("data",), batches.scored, monitor))
    with hooks.part(UNSAVED) as on:
        on.callback(after(trainer, "save_checkpoints", (), on_saved, monitor))
        on.callback(after(trainer, "load_checkpoints", (), on_begin, monitor))
