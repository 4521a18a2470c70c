"""tracker_diag in verl: installing it is enough, verl loads `tracker_diag_verl.plugin` in each of its processes.

Up to 0.8 verl looks for no plugins; there name it in the environment of the job, of all its processes:

    VERL_USE_EXTERNAL_MODULES=tracker_diag_verl.plugin

The process that has a `Tracking`, the trainer's own, gets a monitor: `trainer.logger.diag`. Both trainers are known, v0
and v1, the asynchronous ones too. Log-probabilities are read on the driver, after the advantages are there. The
response mask is the one before rejection sampling. Those of the updated policy are read in its workers, which send
counts to the driver.

rLLM with verl as its backend is known too: its trainer logs through a `Tracking` of its own. A trajectory whose context
was rewritten is in several rows there; which one comes first is not known, and they are of unknown context.

For guards, name their file in a setting: `+tracker_diag.guards=guards.yaml`.
docs/guards-frameworks.md says which ones verl obeys.
"""

import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED
from tracker_diag.attach.workers import Workers
from tracker_diag.errors import require
from tracker_diag.hooks import after, before
from tracker_diag.metrics.series import Pair
from tracker_diag_verl.checkpoints import CHECKPOINTS
from tracker_diag_verl.guarded import Guarded

__all__ = ["SEES", "TESTED", "attach"]

TESTED = "0.7, 0.8 and 0.9"

SEES: dict[str, str] = {
    "policy": "from the workers of all ranks, where their losses are made: of several mini-batches a step all but the "
    "first, whose ratios are 1 by construction; with one mini-batch a step that is no signal. In bypass_mode, and with "
    "use_rollout_log_probs, it is the policy against the one that sampled, in all mini-batches",
    "mismatch": "with actor_rollout_ref.rollout.calculate_log_probs=True, and without bypass_mode",
    "reference": "with a reference policy (use_kl_loss or use_kl_in_reward); it shows how far the batch's first policy "
    "is from it",
    "post_tool": "multi-turn rollouts: gaps in response_mask, taken before rejection sampling; of an agent loop with "
    "several outputs a session, all of the second and later ones, in the trainer v1",
    "policy_lag": "from the second logged step on: policy versions between the oldest that sampled a sequence and the "
    "trainer's",
    "advantage": "the sign of each token's advantage; none for rejected tokens",
    "env": "data_source of each sequence; in v0 trainers",
    "prompt": "uid of each sequence; in v0 trainers",
    "samples": "score, advantage, length and group of each sequence; in v0 trainers also data source, turns, acc as "
    "whether it is right; further numbers of the reward function, as parts of the reward",
    "metrics": "all that Tracking.log is given, with its step",
    "state": "next to the checkpoint of the step, loaded when training resumes; not in the fully asynchronous trainer",
    "not": "the policy ratio in Megatron's actor of 0.7 and with the trainer of tinker; rules see actor/ppo_kl and "
    "actor/pg_clipfrac there; which tokens of the policy pair are after a tool, if rejection sampling (rollout_rs) "
    "has masked some; statistics of whole sequences then; tensors of the driver in main_ppo_sync "
    "of 0.8; which of several tools answered",
}

NO_ROLLOUT = (
    "verl does not bring the rollout's log-probabilities to the trainer: no signal of trainer against rollout engine. "
    "Set actor_rollout_ref.rollout.calculate_log_probs=True."
)
BYPASS = (
    "rollout_correction.bypass_mode takes the rollout's log-probabilities for the trainer's own: no signal of trainer "
    "against rollout engine, by construction. Set bypass_mode=False."
)

GUARDS = "tracker_diag.guards"
"""The setting that names the file of guards."""

_ACTOR = "actor_rollout_ref.actor."
_ADVANTAGES = {
    "verl.trainer.ppo.ray_trainer": ("compute_advantage", "data"),
    "verl.trainer.ppo.v1.trainer_base": ("compute_advantage_for_multi_trajectories", "data"),
    "verl.experimental.separation.ray_trainer": ("compute_advantage", "data"),
    "rllm.trainer.verl.verl_backend": ("update_dataproto_with_advantages", "batch"),
}
"""Where each trainer looks up the function that adds advantages to the batch, and its name for the batch."""

KNOWN = {
    "uid", "data_source", "__num_turns__", "acc", "score", "index", "tool_call_counts", "min_global_steps",
    "max_global_steps", "step_nums", "is_correct", "is_valid", "is_last_step", "is_pad_step",
}  # fmt: skip
"""Names in `non_tensor_batch` that are verl's or rLLM's own, and no part of a reward."""

_WANTED = ("responses", "old_log_probs", "rollout_log_probs", "ref_log_prob", "response_mask", "attention_mask")

_log = logging.getLogger("tracker_diag")


def attach(tracking: Any, *, monitor: Monitor | None = None, config: Mapping[str, Any] | None = None) -> Monitor:
    """Watch the training that logs to `tracking`, a `verl.utils.tracking.Tracking`; its monitor is `tracking.diag`.

    The diagnostics go to the runs of W&B, MLflow, Trackio and TensorBoard that `tracking` has started. They are closed
    when `tracking` is finished, before the trackers' runs are.

    Args:
        monitor: one with settings, rules or trackers of your own, in place of that which watches already, as the
            plugin's does. By default one that knows the run's settings, its algorithm and its clip range.
        config: the run's settings, nested; for the default monitor.
    """
    require("verl", "verl")
    if (there := kit.watching(tracking, None)) is not None:  # installing is enough, so that there is one as a rule
        if monitor is None or monitor is there:
            return there
        there.close()
    settings: dict[str, object] = {}
    with kit.unless_changed("verl", TESTED, "the run's settings are not known"):
        settings = kit.dotted(dict(config or {}))
    if monitor is None:
        monitor = kit.monitor_knowing(lambda: _monitor(settings), "verl", TESTED)
        theirs = getattr(tracking, "logger", {}).get("tensorboard")
        kit.add_active(monitor, theirs, sees=SEES, blind=_blind(settings) if settings else None)
    kit.watch_once(tracking, monitor, "verl")
    tracking.diag = monitor
    if _Watch.current is not None:
        _Watch.current.hooks.close()
    hooks = kit.Hooks("verl", TESTED)
    _Watch.current = watch = _Watch(id(tracking), monitor, hooks)
    with hooks.part("nothing that it logs is heard") as on:
        watch.metrics(on, type(tracking))
    with hooks.part("ratios of tokens, scores and lengths are not seen") as on:
        watch.tensors(on)
    with hooks.part("guards do nothing in it") as on:
        if watch.guarded:
            watch.guarded.hook_trainers(on)
    CHECKPOINTS.hook_trainers(TESTED)
    with hooks.part(UNSAVED):
        CHECKPOINTS.follow(monitor)
    if settings.get("actor_rollout_ref.rollout.calculate_log_probs") is False:
        _log.warning(NO_ROLLOUT)
    elif settings.get("algorithm.rollout_correction.bypass_mode"):
        _log.warning(BYPASS)
    return monitor


def _monitor(settings: Mapping[str, object]) -> Monitor:
    both = settings.get(f"{_ACTOR}clip_ratio")
    clip = kit.clip_range(*(settings.get(f"{_ACTOR}clip_ratio_{side}") or both for side in ("low", "high")))
    gspo = settings.get(f"{_ACTOR}policy_loss.loss_mode") == "gspo"
    guards = settings.get(GUARDS)
    return Monitor(config=settings, algorithm="gspo" if gspo else None, clip=clip, guards=str(guards) if guards else ())


def _blind(settings: Mapping[str, object]) -> dict[Pair, str | None]:
    """Which pairs will not come with these settings, and what to set."""
    blind: dict[Pair, str | None] = {}
    if settings.get("actor_rollout_ref.rollout.calculate_log_probs") is False:
        blind["mismatch"] = "set actor_rollout_ref.rollout.calculate_log_probs=True"
    elif settings.get("algorithm.rollout_correction.bypass_mode"):
        blind["mismatch"] = (
            "bypass_mode trains on the rollout's log-probabilities, and the policy pair is against these; set "
            "algorithm.rollout_correction.bypass_mode=False to see them separately"
        )
    if not (settings.get(f"{_ACTOR}use_kl_loss") or settings.get("algorithm.use_kl_in_reward")):
        blind["reference"] = f"set {_ACTOR}use_kl_loss=True"
    return blind


def _of_workers(settings: Mapping[str, object]) -> dict[str, bool]:
    """What the workers' old log-probabilities and masks are, as `Workers` takes it.

    In bypass mode and in the fully asynchronous trainer, the old ones are the rollout's. Every update's ratios then
    compare the policy with the one that sampled, and all count.
    """
    correction = "algorithm.rollout_correction."
    sampled = settings.get(f"{correction}bypass_mode") or settings.get(f"{_ACTOR}use_rollout_log_probs")
    rejects = settings.get(f"{correction}rollout_rs") and not settings.get(f"{correction}bypass_mode")
    return {"fresh": not sampled, "gaps": not rejects}


class _Watch:
    """The hooks of one run; a process has those of one at a time."""

    current: "_Watch | None" = None

    def __init__(self, tracking: int, monitor: Monitor, hooks: ExitStack) -> None:
        self._tracking = tracking
        """Its id: a reference would keep it alive, and verl ends the tracker's run when it is freed."""
        self._monitor, self.hooks = monitor, hooks
        self._step: int | None = None
        """The last step that was logged, which is the number of the policy that is trained next."""
        self._oldest: list[int | None] | None = None
        """By sequence, the oldest policy that sampled a part of it."""
        self._later: list[bool] | None = None
        """By sequence, whether it is a later output of its session; None where no session has several."""
        self._before_rejection: Any = None
        """The batch's tensors, as they were when the old log-probabilities had come."""
        self.guarded = Guarded(monitor) if monitor.guards.guards else None
        self._workers = Workers(monitor, **_of_workers(monitor.config)).open()

    def metrics(self, on: ExitStack, kind: type[Any]) -> None:
        """Hear what the trainer logs, and that it ends; its `Tracking` is of this `kind`."""
        on.callback(before(kind, "log", ("data", "step"), self._on_log, self._monitor))
        end = "finish" if hasattr(kind, "finish") else "__del__"  # up to 0.8
        on.callback(before(kind, end, (), self._on_finish, self._monitor))

    def tensors(self, on: ExitStack) -> None:
        """See the batch, in the trainers that this process has loaded."""
        metrics = require("verl.utils.debug.metrics", "verl")
        v1 = sys.modules.get("verl.trainer.ppo.v1.trainer_base")
        for module in filter(None, (metrics, v1)):  # v1 has the function under a name of its own
            on.callback(after(module, "calculate_debug_metrics", ("data",), self._on_old_logprobs, self._monitor))
        for name, (function, takes) in _ADVANTAGES.items():
            if name in sys.modules:

                def seen(_: Any, given: Mapping[str, Any], takes: str = takes) -> None:
                    self._on_advantages(given[takes])

                on.callback(after(sys.modules[name], function, (takes,), seen, self._monitor))
        if v1 is not None:
            on.callback(
                before(v1.PPOTrainer, "_compute_advantage", ("self", "batch"), self._on_versions, self._monitor)
            )

    def _on_old_logprobs(self, result: Any, given: Mapping[str, Any]) -> None:
        batch = given["data"].batch
        self._before_rejection = {name: batch[name] for name in _WANTED if name in batch}

    def _on_versions(self, given: Mapping[str, Any]) -> None:
        batch = given["batch"]
        self._oldest = [tag.get("min_global_steps") for tag in batch.tags]
        # The last part of verl's key, `uid_session_output`, is which output of its session a sequence is, from 0 on.
        outputs = [key.rsplit("_", 1)[-1] for key in batch.keys]
        later = [output.isdigit() and int(output) > 0 for output in outputs]
        self._later = later if any(later) else None

    def _on_advantages(self, data: Any) -> None:
        if (filling := data.non_tensor_batch.get("is_pad_step")) is not None:  # rows of rLLM that repeat others
            data = data[~filling.astype(bool)]
        earlier, self._before_rejection = self._before_rejection, None
        oldest, self._oldest = self._oldest, None
        later, self._later = self._later, None
        now = dict(data.batch.items())
        mask = now["response_mask"]
        if earlier is not None and earlier["response_mask"].shape == mask.shape:
            mask = earlier["response_mask"]
        if oldest is None and "min_global_steps" in data.non_tensor_batch:
            oldest = list(data.non_tensor_batch["min_global_steps"])
        labels = _labels(now, mask, data.non_tensor_batch) | self._lag(oldest)
        self._observe(now, mask, labels if later is None else labels | {"begins_after_tool": later})
        with self._monitor.guard("integration_errors"):
            if columns := _samples(now, mask, data.non_tensor_batch):
                self._monitor.samples(**columns)

    def _on_log(self, given: Mapping[str, Any]) -> None:
        if id(given["self"]) != self._tracking:
            return
        if self._before_rejection is not None:  # of a trainer that makes its advantages elsewhere
            earlier, self._before_rejection = self._before_rejection, None
            self._observe(earlier, earlier["response_mask"], {})
        self._step = int(given["step"])
        self._workers.take_in()
        self._monitor.log(given["data"], self._step)
        CHECKPOINTS.logged()
        if self.guarded:
            self.guarded.decide()

    def _on_finish(self, given: Mapping[str, Any]) -> None:
        if id(given["self"]) == self._tracking:
            self._workers.take_in()
            self._monitor.close()
            self.hooks.close()
            CHECKPOINTS.leave()

    def _lag(self, oldest: list[int | None] | None) -> dict[str, Any]:
        import numpy as np

        if oldest is None or self._step is None or any(version is None for version in oldest):
            return {}
        return {"policy_lag": self._step - np.array(oldest, np.int64)}

    def _observe(self, tensors: Mapping[str, Any], mask: Any, labels: Mapping[str, Any]) -> None:
        masks: dict[str, Any] = {"model_mask": mask}
        if "attention_mask" in tensors:
            masks["response_mask"] = tensors["attention_mask"][:, -mask.shape[1] :]
        if "responses" in tensors:
            masks["token_ids"] = tensors["responses"]
        applied = None
        if "rollout_is_weights" in tensors:
            applied = tensors["rollout_is_weights"] * tensors["response_mask"]
        kit.observe_before_update(
            self._monitor,
            tensors["old_log_probs"],
            rollout=tensors.get("rollout_log_probs"),
            ref=tensors.get("ref_log_prob"),
            applied_weights=applied,
            **masks,
            **labels,
        )


def _labels(tensors: Mapping[str, Any], mask: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """Sign of the advantage by token, and data source and prompt by sequence."""
    labels: dict[str, Any] = {}
    if "advantages" in tensors:  # 0 on rejected tokens, whatever theirs was
        labels["advantages"] = tensors["advantages"].masked_fill(mask != tensors["response_mask"], float("nan"))
    if "data_source" in others:
        labels["env"] = [str(source) for source in others["data_source"]]
    if (prompts := others.get("uid", others.get("trajectory_ids"))) is not None:  # one for all samples of a prompt
        labels["prompt"] = [str(uid) for uid in prompts]
    if "step_ids" in others:  # of rLLM: one for all rows of a trajectory
        labels["trajectory_ids"] = [str(row) for row in others["step_ids"]]
    return labels


def _samples(tensors: Mapping[str, Any], mask: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of each sequence: its score, parts of that, and how long it is."""
    columns: dict[str, Any] = {}
    n, width = mask.shape
    if "token_level_scores" in tensors:
        columns["reward"] = tensors["token_level_scores"].sum(1)
    if "advantages" in tensors:
        columns["advantage"] = kit.of_sequences(tensors["advantages"], mask)
    if "attention_mask" in tensors:
        columns["length"] = tensors["attention_mask"][:, -width:].sum(1)
        columns["truncated"] = columns["length"] >= width  # as verl counts them
        if "responses" in tensors:
            columns["tokens"] = tensors["responses"]
    if "trajectory_ids" in others:
        columns["group"] = [*others["trajectory_ids"]]
    for name, theirs in (("group", "uid"), ("env", "data_source"), ("turns", "__num_turns__"), ("correct", "acc")):
        if theirs in others and len(others[theirs]) == n:
            columns[name] = [*others[theirs]]
    # What the reward function gave besides the score is there under names of its own.
    parts = {name: values for name, values in others.items() if name not in KNOWN and _numbers(values, n)}
    return columns | ({"components": parts} if parts else {})


def _numbers(values: Any, n: int) -> bool:
    return len(values) == n and all(isinstance(value, int | float) for value in values.tolist())
