"""DiagnosticsCallback: looks on while PPO goes over its rollout buffer, and hears what the logger dumps."""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active, attempt, clip_range, one_of, resume, tell_changed, unless_changed
from tracker_diag.errors import of_a_handler
from tracker_diag.guards.decision import Decision
from tracker_diag.guards.policy import Action, Guarded
from tracker_diag.guards.steps import Steps
from tracker_diag.hooks import after
from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag_sb3 import SEES, TESTED
from tracker_diag_sb3.episodes import Episodes

NAME = "Stable-Baselines3"

SETTINGS = (
    "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "ent_coef", "vf_coef",
    "max_grad_norm", "target_kl", "normalize_advantage", "buffer_size", "train_freq", "gradient_steps", "tau", "seed",
)  # fmt: skip


STATE = "tracker_diag"
"""The model's attribute with our state: SB3 saves all attributes with the model."""

ROWS = 100
"""Parts of a run. For a model without a ratio, the diagnostics log a row after each part in which episodes ended. A2C
logs once in 100 updates, and the rolling mean of 100 episodes that it logs moves late."""

NO_SPREAD = "train/explained_variance"
"""NaN where SB3 divides by the spread of the returns, and there is none: then it is not defined."""

_log = logging.getLogger("tracker_diag")


class DiagnosticsCallback(BaseCallback):
    """Give it to `learn`; it costs no forward pass, since it takes the log-probabilities that the loss is made of.

    Args:
        monitor: by default one is made when training starts. It has the settings of the model and writes to the
            trackers that are underway. In either case it is closed when training ends.
        guards: those of the monitor that is made; what they decide is done as far as docs/guards-frameworks.md says.
    """

    def __init__(self, *, monitor: Monitor | None = None, guards: Guarded = ()) -> None:
        super().__init__()
        one_of(monitor, guards)
        self._guards = guards
        self._steps: Steps | None = None
        self._given = monitor
        self.monitor = monitor
        """The monitor of this training; None before it starts, if none was given."""
        self._writer: _Writer | None = None
        self._hooks = ExitStack()
        self._looks_on = False
        self._rollout: dict[str, Any] = {}
        self._places: Any = None
        self._evaluated: list[tuple[Any, Any]] = []
        self._every: object = None
        self._pace: float | None = None
        """Steps between two rows of our own; None where the logger's are enough."""
        self._last_row = 0
        self._underway: dict[str, Any] | None = None
        """The variables of the `learn` that is watched: if a callback is twice in a list, SB3 makes each call twice;
        the second one is left out."""
        self._stepped = 0
        self._episodes: Episodes | None = None

    def _on_training_start(self) -> None:
        if self._underway is self.locals:
            return
        self._underway, self._stepped = self.locals, self.num_timesteps
        self._let_go()  # a training that was interrupted may have left something
        model = self.model
        monitor = self.monitor = self._given or self._made(model)
        monitor.framework = "SB3"
        if self._given is None:
            writers = attempt(monitor, lambda: [getattr(out, "writer", None) for out in self.logger.output_formats])
            add_active(monitor, *(writers or ()), sees=SEES, blind=attempt(monitor, lambda: blind(model)), tools=False)
        self._every = self.locals.get("log_interval")
        attempt(monitor, lambda: monitor.expect(expected_rows(model, self.num_timesteps, self._every)))
        with monitor.guard("integration_errors"):
            if self.num_timesteps:
                resume(monitor, getattr(model, STATE, None), "training of a model without diagnostics continues")
            setattr(model, STATE, _State(monitor))
        self._episodes = attempt(monitor, lambda: Episodes(self.training_env, self.num_timesteps))
        self._pace, self._last_row = attempt(monitor, lambda: pace_of(model, self.num_timesteps)), self.num_timesteps
        self._steps = attempt(monitor, lambda: steps_of(model))
        self._writer = _Writer(monitor, self._give_episodes, self._steps)
        with monitor.guard("integration_errors"):
            self.logger.output_formats.append(self._writer)
        with monitor.guard("integration_errors"):
            if has_ratio(model):
                self._look_on(model, monitor)

    def _made(self, model: Any) -> Monitor:
        known: dict[str, Any] = {}
        try:
            known = {"config": settings(model), "clip": clip_of(model)}
        except Exception as error:  # training has begun, and there is no monitor's guard yet
            if of_a_handler(error):
                raise
            tell_changed(NAME, TESTED, error, "the settings of the model are not known")
        # PPO's rules are those of any policy with a critic; those that see nothing say so.
        return Monitor(algorithm="ppo", guards=self._guards, **known)

    def _look_on(self, model: Any, monitor: Monitor) -> None:
        lost = "no ratios are seen, only its metrics"
        with unless_changed(NAME, TESTED, lost) as self._hooks:
            places, logprobs = self._seen_places, self._seen_logprobs
            self._hooks.callback(after(model.rollout_buffer, "_get_samples", ["batch_inds"], places, monitor))
            self._hooks.callback(after(model.policy, "evaluate_actions", ["obs", "actions"], logprobs, monitor))
            self._looks_on = True

    def _seen_places(self, result: Any, given: Mapping[str, Any]) -> None:
        """Which actions of the buffer the next mini-batch has; that of a recurrent policy is padded, and masked."""
        mask = getattr(result, "mask", None)
        self._places = given["batch_inds"], None if mask is None else mask.flatten() > 0

    def _seen_logprobs(self, result: Any, given: Mapping[str, Any]) -> None:
        seen, self._places = self._places, None
        if seen is not None:  # otherwise somebody else evaluates, not the loss
            (places, mask), logprobs = seen, result[1].detach().flatten()
            self._evaluated.append((places, logprobs if mask is None else logprobs[mask]))

    def _on_rollout_end(self) -> None:
        if self._looks_on and self.monitor is not None:
            model: Any = self.model
            with self.monitor.guard("integration_errors"):
                buffer = model.rollout_buffer  # PPO reorders it next, and resets it after the update
                self._rollout = {"old": buffer.log_probs, "advantages": buffer.advantages}

    def _on_rollout_start(self) -> None:
        self._observe()

    def _on_step(self) -> bool:
        if self.monitor is not None and self.num_timesteps != self._stepped:
            self._stepped = self.num_timesteps
            if (episodes := self._episodes) is not None:
                attempt(self.monitor, partial(self._watch_episodes, episodes, self.monitor))
        return self._writer is None or self._writer.decision.stop != "training"

    def _watch_episodes(self, episodes: Episodes, monitor: Monitor) -> None:
        episodes.stepped(self.locals, self.num_timesteps)
        if text := episodes.none_has_ended():  # not at a dump: DQN logs nothing before an episode ends
            monitor.events.append((self.num_timesteps, text))
            _log.warning("%s", text)
        due = self._pace is not None and self.num_timesteps - self._last_row >= self._pace
        if due and episodes.has_news and self._writer is not None:
            self._writer.write({}, {}, self.num_timesteps)

    def _give_episodes(self) -> None:
        """Hand over what is known of episodes, for the row to come."""
        self._last_row = self.num_timesteps
        episodes, monitor = self._episodes, self.monitor
        if episodes is None or monitor is None:
            return
        with monitor.guard("integration_errors"):
            if monitor.step is None and self._pace is not None:
                monitor.expect(rows_by_episodes(self.model, episodes, self._every, self._pace))
        with monitor.guard("integration_errors"):
            monitor.measure(episodes.measured())
            if episodes.ended:
                monitor.samples(**episodes.samples(self._names(monitor, episodes.several)))

    def _on_training_end(self) -> None:
        if self._underway is None:
            return
        self._underway = None
        self._observe()
        if self.monitor is not None:
            self._give_episodes()
            with self.monitor.guard("integration_errors"):
                # The last update comes after the last dump; it belongs to the same step.
                self.monitor.log(defined(self.logger.name_to_value), self.num_timesteps)
            with self.monitor.guard("integration_errors"):
                setattr(self.model, STATE, self.monitor.state_dict())
        self._let_go()
        if self.monitor is not None:
            self.monitor.close()

    def _observe(self) -> None:
        """Hand over the update that has just ended."""
        rollout, self._rollout = self._rollout, {}
        evaluated, self._evaluated = self._evaluated, []
        if not rollout or not evaluated or self.monitor is None:
            return
        with self.monitor.guard("integration_errors"):
            given = tensors(rollout, evaluated, bool(getattr(self.model, "normalize_advantage", False)))
            steps, several = rollout["old"].shape
            if several > 1:
                given["env"] = np.repeat(self._names(self.monitor, several), steps)
            self.monitor.observe(**given)

    def _names(self, monitor: Monitor, several: int) -> Any:
        """One name for each environment: ids if they differ, else numbers, of the first `several`."""
        specs = attempt(monitor, lambda: self.training_env.get_attr("spec")) or ()
        ids = [str(getattr(spec, "id", "")) for spec in specs]
        return np.array(ids if len(set(ids)) > 1 else [str(i) for i in range(several)])

    def _let_go(self) -> None:
        self._hooks.close()
        self._looks_on = False
        if self._steps is not None:
            self._steps.close()
        if self._writer is not None and self.monitor is not None:
            with self.monitor.guard("integration_errors"):
                if self._writer in self.logger.output_formats:
                    self.logger.output_formats.remove(self._writer)


class _Writer(KVWriter):
    """An output of the model's logger: the monitor hears each dump, and its guards are asked."""

    def __init__(self, monitor: Monitor, coming: Callable[[], None], steps: Steps | None) -> None:
        self._monitor, self._coming, self._steps = monitor, coming, steps
        self._can: tuple[Action, ...] = ("stop_training", *(("stop_update", "scale_lr") if steps else ()))
        self.decision = Decision()
        """The last one."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self._coming()
        self._monitor.log(defined(key_values), step)
        self.decision = self._monitor.decide(self._can)
        if self._steps:
            self._steps.follow(self.decision)

    def close(self) -> None:
        """Nothing is open."""


class _State:
    """Represents in the model the state that the monitor has when the model is saved; loaded it is a dictionary."""

    __slots__ = ("_monitor",)

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def __reduce__(self) -> tuple[Any, ...]:
        return json.loads, (json.dumps(self._monitor.state_dict()),)


def has_ratio(model: Any) -> bool:
    """Whether a loss with the ratio of two policies is what `model` trains with, as PPO's."""
    return hasattr(model, "clip_range") or hasattr(model, "n_epochs")


def defined(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row without an explained variance that is not defined, which is no fault of numerics."""
    value = row.get(NO_SPREAD, 0.0)
    return row if value == value else {name: kept for name, kept in row.items() if name != NO_SPREAD}  # noqa: PLR0124


def tensors(rollout: Mapping[str, Any], evaluated: list[tuple[Any, Any]], normalised: bool) -> dict[str, Any]:
    """What `observe` takes, from `rollout`, arrays (steps, environments), and the log-probabilities by place.

    Places count along each environment's steps in turn. Of several epochs the last one counts, whose ratios
    are those of nearly the whole update.
    """
    import torch

    old = rollout["old"].T.reshape(-1)
    advantages = rollout["advantages"].T.reshape(-1)
    places = np.concatenate([place for place, _ in evaluated])
    latest = torch.cat([values.flatten() for _, values in evaluated]).cpu().numpy()  # waits for the device once
    if len(latest) != len(places):
        raise ValueError(f"log_prob: {len(latest)} values given, expected {len(places)}, one for each of batch_inds")
    new = np.zeros_like(old)
    new[places] = latest
    reached = np.zeros(len(old), bool)  # target_kl may have ended the update within the first epoch
    reached[places] = True
    return {
        "logprobs": new,
        "old_logprobs": old,
        "model_mask": reached,
        "sequence_ids": np.arange(len(old)),
        "advantages": advantages - advantages[reached].mean() if normalised else advantages,
    }


def blind(model: Any) -> dict[Pair, str | None]:
    """The pairs that will not come."""
    return dict.fromkeys(pair for pair in PAIRS if pair != "policy" or not has_ratio(model))


def pace_of(model: Any, done: int) -> float | None:
    """Steps between two rows of our own, of a model without a ratio; `done` are those of an earlier `learn`."""
    return None if has_ratio(model) else (model._total_timesteps - done) / ROWS  # noqa: SLF001  # `learn` tells a callback nothing else of it


def steps_of(model: Any) -> Steps | None:
    """What guards do to its optimiser, if it has one."""
    optimizer = getattr(model.policy, "optimizer", None)
    return None if optimizer is None else Steps(optimizer)


def expected_rows(model: Any, done: int, log_interval: object) -> int | None:
    """How many rows `learn` of a model with a ratio will log; None of another: see `rows_by_episodes`.

    Args:
        done: steps that were made in an earlier `learn`.
        log_interval: updates a row; SB3 logs nothing without one.
    """
    steps = getattr(model, "n_steps", 0)
    if not has_ratio(model) or not steps or not isinstance(log_interval, int) or log_interval < 1:
        return None
    updates = -(-(model._total_timesteps - done) // (steps * model.n_envs))  # noqa: SLF001  # as in `_on_training_start`
    return int(updates) // log_interval


def rows_by_episodes(model: Any, episodes: Episodes, log_interval: object, pace: float) -> int | None:
    """How many rows a model without a ratio will have if episodes stay as long as the first ones; None without any.

    Args:
        log_interval: updates (A2C) or episodes (the others) that SB3 logs a row after.
        pace: steps between two rows of our own, at least.
    """
    if not (length := episodes.mean_length):
        return None
    between = max(pace, length / model.n_envs)
    if isinstance(log_interval, int) and log_interval > 0:
        steps = model.n_steps * model.n_envs if hasattr(model, "rollout_buffer") else length
        between = min(between, log_interval * steps)
    return int(pace * ROWS / between)


def settings(model: Any) -> dict[str, object]:
    """The settings of `model` that are numbers, by name."""
    known: dict[str, object] = {"trainer": type(model).__name__}
    for name in SETTINGS:
        value = getattr(model, name, None)
        if isinstance(value, int | float):
            known[name] = value
    return known


def clip_of(model: Any) -> tuple[float, float]:
    """The clip range at the start. Where the trainer does not clip, the usual one shows what it would have done."""
    schedule: Any = getattr(model, "clip_range", None)
    clip = None if schedule is None else float(schedule(1.0))
    return clip_range(clip if clip is None or clip < 1 else None)
