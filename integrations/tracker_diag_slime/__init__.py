"""tracker_diag in slime, by its own options.

    --get-mismatch-metrics
    --custom-tis-function-path tracker_diag_slime.tis
    --custom-rollout-log-function-path tracker_diag_slime.log_rollout

`tis` corrects nothing without `--use-tis`, and is slime's own function with it. A function of yours is seen with
`tis = tracker_diag_slime.observing(your_function)` in a module of yours. Where neither fits,
`--custom-megatron-before-train-step-hook-path tracker_diag_slime.before_train_step` sees the metrics alone.

The rank with slime's W&B run watches. Other ranks that make losses send it their counts, a step later. Rollouts are in
another process. They have a monitor of their own for the rules about environment and reward.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.shares import Share, together
from tracker_diag.errors import require
from tracker_diag.hooks import HookError, after
from tracker_diag.rules.loader import in_force
from tracker_diag.samples.columns import Columns
from tracker_diag.tensors.store import ThroughStore

__all__ = ["SEES", "TESTED", "attach", "before_train_step", "log_rollout", "observing", "tis"]

TESTED = "v0.2.1 to v0.3.1 and 624b824 (August 2026): its losses were run by a command, its trainer was read"

SEES: dict[str, str] = {
    "mismatch": "with --get-mismatch-metrics or --use-tis: the trainer's log-probabilities before the update less "
    "SGLang's",
    "post_tool": "gaps in loss_masks, before any rejection",
    "metrics": "train/* and rollout/* of the trainer with train/step; with log_rollout also rewards and their "
    "parts, groups, texts, lengths and statuses of the samples",
    "state": "the trainer's, in Megatron's checkpoints: --save and --load",
    "not": "the policy and reference ratios, which no option of slime hands over: of these the rules see "
    "train/ppo_kl, train/pg_clipfrac and train/kl_loss; with "
    "context parallelism statistics of whole sequences are of each rank's part of them; which tool answered",
}

NO_MISMATCH = (
    "slime hands no log-probabilities over: no signal of trainer against SGLang. Set --get-mismatch-metrics with "
    "--custom-tis-function-path tracker_diag_slime.tis."
)

OTHERS = "tokens of other ranks than the one that logs are not seen"

FORMERLY = ("slime.utils.tracking_utils", "slime.utils.logging_utils")
"""Where slime's `log` stood up to v0.2.1, which has the other module too, without `log`; and from v0.2.2 to v0.3.1."""

ROLLOUT_LINKS = ("environment", "reward")
"""The links whose rules the rollout's process looks at, where it has a monitor."""

Lists: TypeAlias = Sequence[Any]
Corrected: TypeAlias = tuple[Any, Any, dict[str, Any]]

_log = logging.getLogger("tracker_diag")
_trainer: list[Monitor | None] = []
"""The monitor of this process once it was looked for; None on ranks that do not watch."""
_rollouts: list[Monitor | None] = []
"""The same of a process that makes rollouts."""


def attach(args: Any, *, monitor: Monitor | None = None) -> Monitor:
    """Watch the trainer of this process; done by `tis` and `before_train_step` on the rank that logs.

    Args:
        args: slime's.
        monitor: one with settings, rules or trackers of your own.
    """
    require("slime", "slime")
    if _trainer and (there := kit.watching(_trainer[0], monitor)) is not None:
        return there
    monitor, _trainer[:] = monitor or _monitor(args, rollout=False), [None]
    kit.watch_once(monitor, monitor, "slime")
    hooks, saved = kit.Hooks("slime", TESTED), Saved(monitor)
    monitor.at_close(hooks.close)
    waiting: dict[str, Any] = {}

    def on_log(_: Any, given: Mapping[str, Any]) -> None:
        metrics: Mapping[str, Any] = given["metrics"]
        if given["step_key"] == "train/step":
            monitor.log({**waiting, **metrics}, int(metrics["train/step"]))
            waiting.clear()
        elif given["step_key"] == "rollout/step":  # counts rollouts, of several train steps each
            waiting.update(metrics)

    with hooks.part("nothing that it logs is heard") as on:
        logging_utils = require("slime.observability.logging_utils", "slime", *FORMERLY)
        on.callback(after(logging_utils, "log", ("args", "metrics", "step_key"), on_log, monitor))
        _trainer[:] = [monitor]  # else what is observed would wait for a row that nobody hears
    with hooks.part(UNSAVED) as on:
        _save_state(args, monitor, saved, on)
    if not getattr(args, "custom_tis_function_path", None):
        _log.warning(NO_MISMATCH)
    return monitor


def _share() -> tuple[int, int] | None:
    """Which share of the batch this rank has, of how many; None where it makes no loss, or one that another makes."""
    mpu: Any = require("megatron.core.mpu", "slime")
    last = mpu.get_pipeline_model_parallel_rank() == mpu.get_pipeline_model_parallel_world_size() - 1
    if not last or mpu.get_tensor_model_parallel_rank():
        return None
    ways = {"with_context_parallel": True}
    return mpu.get_data_parallel_rank(**ways), mpu.get_data_parallel_world_size(**ways)


def _ranks() -> ThroughStore | None:
    """How this rank comes together with the others; None where it does not."""
    with kit.unless_changed("slime", TESTED, OTHERS):
        own = _share()
        return together(*own) if own else None
    return None


def _hand_over() -> None:
    """This rank logs nothing: after each step it hands over what its losses came to."""
    if ranks := _ranks():
        share = Share(ranks)

        def on_step(_: Any, given: Mapping[str, Any]) -> None:
            share.stepped(int(given["rollout_id"]))  # no later than train/step, which counts steps of all rollouts

        with kit.unless_changed("slime", TESTED, OTHERS):
            model = require("slime.backends.megatron_utils.model", "slime")
            after(model, "train_one_step", ("rollout_id",), on_step, share.monitor)
            _trainer[:] = [share.monitor]


def _save_state(args: Any, monitor: Monitor, saved: Saved, on: ExitStack) -> None:
    """In Megatron's checkpoints, and learn how many rows are to come; the trainer has loaded its own by now."""

    def folder(root: str, iteration: int) -> Path:
        return Path(root) / f"iter_{iteration:07d}"

    def put(_: Any, given: Mapping[str, Any]) -> None:
        saved.put(folder(args.save, int(given["iteration"])))

    model = require("slime.backends.megatron_utils.model", "slime")
    on.callback(after(model, "save_checkpoint", ("iteration",), put, monitor))
    tracked = Path(args.load or "") / "latest_checkpointed_iteration.txt"
    last = tracked.read_text().strip() if args.load and tracked.is_file() else ""
    done = int(last) + 1 if last.isdigit() else 0  # a checkpoint of a base model says "release"
    updates = max(args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size, 1)
    monitor.expect((args.num_rollout - done) * updates)
    if done:
        saved.find(folder(args.load, done - 1))


def observing(function: Callable[..., Corrected]) -> Callable[..., Corrected]:
    """`function`, one for `--custom-tis-function-path`, seen by the diagnostics and otherwise as it was."""

    @wraps(function)
    def seen(args: Any, **given: Any) -> Corrected:
        if monitor := _watching(args):
            with monitor.guard("integration_errors"):
                _observe(monitor, given)
        return function(args, **given)

    return seen


@observing
def tis(args: Any, *, pg_loss: Any, loss_masks: Lists, **kwargs: Any) -> Corrected:
    """What slime does by itself: truncated importance sampling with `--use-tis`, otherwise nothing."""
    if not args.use_tis:
        return pg_loss, loss_masks, {}
    loss: Any = require("slime.backends.megatron_utils.loss", "slime")
    if not hasattr(loss, "vanilla_tis_function"):  # up to v0.2.0, where nobody can call it
        raise HookError("slime.backends.megatron_utils.loss: no vanilla_tis_function; leave out --use-tis or our tis")
    vanilla = loss.vanilla_tis_function
    corrected: Corrected = vanilla(args, pg_loss=pg_loss, loss_masks=loss_masks, **kwargs)
    return corrected


def before_train_step(args: Any, *_: Any, **__: Any) -> None:
    """For `--custom-megatron-before-train-step-hook-path`: watch what the trainer logs from this step on."""
    _watching(args)


def log_rollout(
    rollout_id: int, args: Any, samples: Lists, rollout_extra_metrics: Mapping[str, Any] | None, *_: Any, **__: Any
) -> bool:
    """For `--custom-rollout-log-function-path`: look at the samples, and let slime log them as ever."""
    if not _rollouts:
        _rollouts.append(None)
        try:
            _rollouts[0] = _monitor(args, rollout=True)
        except Exception as error:  # noqa: BLE001  # as in `_watching`
            _log.warning("the rollouts of this slime are not watched: %s: %s", type(error).__name__, error)
    monitor = _rollouts[0]
    if monitor is None:
        return False
    with monitor.guard("integration_errors"):
        if samples:
            monitor.samples(step=rollout_id, **_columns(args, samples))
        metrics: dict[str, Any] = dict(rollout_extra_metrics or {})
        monitor.log(metrics, rollout_id)
    return False


def _columns(args: Any, samples: Lists) -> Columns:
    """What slime's samples are to `samples`; a reward that is a mapping is that of `--reward-key`, with its parts."""
    key = getattr(args, "reward_key", None)
    parts = [sample.reward if isinstance(sample.reward, Mapping) else {} for sample in samples]
    whole = [part.get(key) if part else sample.reward for sample, part in zip(samples, parts, strict=True)]
    names = dict.fromkeys(name for part in parts for name, value in part.items() if _is_number(value))
    statuses = [getattr(sample.status, "value", sample.status) for sample in samples]
    columns: Columns = {
        "length": [sample.response_length for sample in samples],
        "truncated": [status == "truncated" for status in statuses],
        "text": [getattr(sample, "response", None) for sample in samples],
    }
    if any(map(_is_number, whole)):
        columns["reward"] = [value if _is_number(value) else None for value in whole]
    if names:
        columns["components"] = {
            name: [part[name] if _is_number(part.get(name)) else None for part in parts] for name in names
        }
    groups = [getattr(sample, "group_index", None) for sample in samples]
    if None not in groups:
        columns["group"] = groups
    return columns


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _monitor(args: Any, *, rollout: bool) -> Monitor:
    """One that knows the run's settings, and writes to the tracker that is underway."""
    # Two monitors of one run: each rule is looked at by one of them.
    divided = getattr(args, "custom_rollout_log_function_path", None) == "tracker_diag_slime.log_rollout"
    rules = [rule for rule in in_force() if not divided or (rule.link in ROLLOUT_LINKS) == rollout]

    def made() -> Monitor:
        config = kit.plain(vars(args))
        clip = kit.clip_range(config.get("eps_clip"), config.get("eps_clip_high"))
        ranks = None if rollout else _ranks()
        return Monitor(config=config, clip=clip, rules=rules, catalog=False, ranks=ranks)

    monitor = kit.monitor_knowing(made, "slime", TESTED)
    kit.add_active(monitor, sees=SEES)
    return monitor


def _watching(args: Any) -> Monitor | None:
    """The monitor of this process: on the rank that has slime's tracker, and of others on those that make losses."""
    if not _trainer:
        _trainer.append(None)  # tried once, whatever comes of it
        try:
            if require("slime.backends.megatron_utils.initialize", "slime").is_megatron_main_rank():
                attach(args)
            else:
                _hand_over()
        except Exception as error:  # noqa: BLE001  # no error of ours may reach the training step
            _log.warning("nothing of this slime is watched: %s: %s", type(error).__name__, error)
    return _trainer[0]


def _observe(monitor: Monitor, given: Mapping[str, Any]) -> None:
    """Hand over one micro-batch: lists with a tensor a sample, of its response alone."""
    import torch

    new, old = given["train_log_probs"], given["rollout_log_probs"]
    parts = [mask.bool() for mask in given["loss_masks"]]
    lengths = given["total_lengths"], given["response_lengths"]
    after_tool: list[Any] | None = None
    if any(len(values) != len(mask) for values, mask in zip(new, parts, strict=True)):
        # Context parallel: log-probabilities of this rank's part, masks of the whole. What comes after a tool is known
        # from the whole.
        part_of = require("slime.backends.megatron_utils.cp_utils", "slime").slice_log_prob_with_cp
        flags = [mask & (((~mask) & (mask.cumsum(0) > 0)).cumsum(0) > 0) for mask in parts]
        after_tool = [part_of(whole, *both) for whole, *both in zip(flags, *lengths, strict=True)]
        parts = [part_of(whole, *both) for whole, *both in zip(parts, *lengths, strict=True)]
    if not sum(len(values) for values in new):
        return
    ids = torch.cat([torch.full_like(mask, i, dtype=torch.int64) for i, mask in enumerate(parts)])
    monitor.observe(
        old_logprobs=torch.cat([values.detach() for values in new]),
        rollout_logprobs=torch.cat([values.detach() for values in old]),
        model_mask=torch.cat(parts),
        after_tool=None if after_tool is None else torch.cat(after_tool),
        sequence_ids=ids,
    )
