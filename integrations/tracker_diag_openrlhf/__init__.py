"""tracker_diag in OpenRLHF: start the training with `python -m tracker_diag_openrlhf` in place of its own module.

    python -m tracker_diag_openrlhf --actor.model_name_or_path ... --logger.wandb.key ...

With `ray job submit`, add to the runtime environment instead: `"worker_process_setup_hook":
"tracker_diag_openrlhf.install"`. The trainer is a Ray actor; when it is made there, `attach` is called on it. With a
trainer in your own process, call `attach(trainer)` before `trainer.fit()`.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach import kit
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.workers import Workers
from tracker_diag.errors import require
from tracker_diag.hooks import after, before, when_imported
from tracker_diag_openrlhf import workers

__all__ = ["SEES", "TESTED", "attach", "install"]

TESTED = "0.10 and 0.11"

SEES: dict[str, str] = {
    "policy": "from the losses in the workers of all ranks, if each process has `install`; both ways of starting do "
    "that. Of several updates a step all but the first, whose ratios are 1 by construction; with one update a step "
    "that is no signal",
    "mismatch": "with --algo.advantage.is_correction_level token or seq, which brings vLLM's log-probabilities; before "
    "0.11.2 with --algo.advantage.is_correction_enable",
    "reference": "with --algo.kl.use_loss; it tells how far the batch's first policy is from the reference",
    "post_tool": "multi-turn agents: tokens between the action ranges",
    "advantage": "the sign of each token's advantage",
    "samples": "reward, advantage, prompt, length and truncation of each sequence",
    "metrics": "all that the trainer logs, at every step, and its evaluations",
    "state": "next to the actor's checkpoint of the step, if the trainer sees its folder; loaded with "
    "--ckpt.load_enable",
    "not": "the policy pair of workers that were started without `install`, of which the rules see ppo_kl and "
    "ppo_clip_ratio; the reference pair without use_loss, of which they see kl; "
    "the policy lag of a token; which of several tools answered",
}

NO_ROLLOUT = (
    "OpenRLHF brings vLLM's log-probabilities to the trainer only for its correction: no signal of trainer against "
    "rollout engine. Set --%s, which also corrects the loss."
)

CORRECTION = {
    "algo.advantage.is_correction_level": ("off", "algo.advantage.is_correction_level token"),
    "algo.advantage.is_correction_enable": (False, "algo.advantage.is_correction_enable"),
}
"""The option of the correction, since 0.11.2 and before: its value where it is off, and what turns it on."""

_log = logging.getLogger("tracker_diag")


def attach(trainer: Any, *, monitor: Monitor | None = None) -> Monitor:
    """Watch one call of `trainer.fit()`; call this before it, in the trainer's process.

    The diagnostics go to the run of W&B that the trainer has started, next to its own rows. They are closed before that
    run is ended.

    Args:
        trainer: a `BasePPOTrainer`, synchronous or not.
        monitor: one with settings, rules or trackers of your own. By default one that knows the trainer's
            arguments, its algorithm and its clip range.
    """
    require("openrlhf", "openrlhf")
    if (there := kit.watching(trainer, monitor)) is not None:
        return there
    if monitor is None:
        monitor = kit.monitor_knowing(lambda: _monitor(trainer.args), "OpenRLHF", TESTED)
        kit.add_active(monitor, getattr(trainer, "tensorboard_logger", None), sees=SEES)
    kit.watch_once(trainer, monitor, "OpenRLHF")
    hooks, saved = kit.Hooks("OpenRLHF", TESTED), Saved(monitor)
    with hooks.part("nothing that it logs is heard") as on:
        _hear(trainer, monitor, on)
    with hooks.part("ratios of tokens, rewards and lengths are not seen") as on:
        _watch(trainer, monitor, on)
    with hooks.part(UNSAVED) as on:
        _save_state(trainer, monitor, saved, on)
    for option, (off, remedy) in CORRECTION.items():
        if monitor.config.get(option) == off:
            _log.warning(NO_ROLLOUT, remedy)
    return monitor


def install() -> None:
    """From now on each trainer that is made in this process is attached to; the hook of Ray's worker processes.

    And of an actor that is made in it the losses are seen. OpenRLHF is not imported by this: most workers of a job must
    not import its trainer.
    """
    workers.install()

    def made(_: None, given: Mapping[str, Any]) -> None:
        attach(given["self"])

    def put(module: Any) -> None:
        with kit.unless_changed("OpenRLHF", TESTED):
            # The monitor is only for failures of attach itself, which are logged.
            after(module.BasePPOTrainer, "__init__", ("self", "strategy"), made, Monitor(catalog=False))

    when_imported("openrlhf.trainer.ppo_trainer", put)


def _watch(trainer: Any, monitor: Monitor, hooks: ExitStack) -> None:
    def on_experiences(made: Any, _: Mapping[str, Any]) -> None:
        for experience in made:
            kit.observe_before_update(
                monitor,
                experience.action_log_probs,
                rollout=experience.rollout_log_probs,
                ref=experience.base_action_log_probs,
                model_mask=experience.action_mask.bool(),
                advantages=experience.advantages,
            )
            with monitor.guard("integration_errors"):
                monitor.samples(**_samples(experience))

    maker = trainer.experience_maker
    hooks.callback(after(maker, "make_experience_batch", ("rollout_samples",), on_experiences, monitor))


def _hear(trainer: Any, monitor: Monitor, hooks: ExitStack) -> None:
    """Hear what is logged, and that the trackers' runs end."""
    sent = Workers(monitor).open()

    def on_log(given: Mapping[str, Any]) -> None:
        sent.take_in()
        monitor.log(given.get("logs_dict") or {}, given["global_step"])

    hooks.callback(before(trainer, "save_logs_and_checkpoints", ("global_step", "logs_dict"), on_log, monitor))
    loggers = [logger for logger in (trainer.wandb_logger, trainer.tensorboard_logger) if logger is not None]
    for logger in loggers[:1]:  # W&B's, if there are two
        hooks.callback(before(logger, "log_eval", ("global_step", "logs_dict"), on_log, monitor))
        hooks.callback(before(logger, "close", (), lambda _: monitor.close(), monitor))


def _save_state(trainer: Any, monitor: Monitor, saved: Saved, hooks: ExitStack) -> None:
    """Next to the actor's checkpoints, which DeepSpeed writes in the actors' processes."""
    settings = trainer.args.ckpt

    def folder(step: int) -> Path:
        return Path(settings.path) / "_actor" / f"global_step{step}"

    def on_saved(_: Any, given: Mapping[str, Any]) -> None:
        # If the actors have a disk of their own, there is no such folder here. OpenRLHF asks whether there is.
        made = folder(given["global_step"])
        if given["global_step"] % settings.save_steps == 0 and made.is_dir():
            saved.put(made)

    def on_begin(states: Any, _: Mapping[str, Any]) -> None:
        done = int(states["global_step"])
        monitor.expect((getattr(trainer, "max_steps", None) or done) - done)  # an asynchronous one does not know it
        if done:
            saved.find(folder(done))

    hooks.callback(after(trainer, "save_logs_and_checkpoints", ("global_step",), on_saved, monitor))
    hooks.callback(after(trainer, "init_checkpoint_states", (), on_begin, monitor))


def _samples(experience: Any) -> dict[str, Any]:
    """What is known of each sequence; a field that another version lacks is left out."""
    theirs = {"reward": "rewards", "group": "prompts", "length": "response_length", "truncated": "truncated"}
    fields = {name: getattr(experience, field, None) for name, field in theirs.items()}
    n = len(experience.action_mask)
    columns = {name: values for name, values in fields.items() if values is not None and len(values) == n}
    if experience.advantages is not None:
        columns["advantage"] = kit.of_sequences(experience.advantages, experience.action_mask)
    return columns


def _monitor(args: Any) -> Monitor:
    settings = _nested(args)
    settings.pop("logger", None)  # it has the tracker's key
    config = kit.dotted(settings)
    clip = kit.clip_range(*args.actor.eps_clip_low_high)
    if config.get("actor.policy_loss_type") == "gspo":
        return Monitor(config=config, algorithm="gspo", clip=clip)
    estimator = config.get("algo.advantage.estimator")
    return Monitor(config=config, algorithm="ppo" if estimator == "gae" else "grpo", clip=clip)


def _nested(args: Any) -> dict[str, Any]:
    """Arguments in dictionaries: OpenRLHF has a namespace for each part of a name."""
    return {key: _nested(value) if hasattr(value, "__dict__") else value for key, value in vars(args).items()}
