"""A plain Trainer: a callback that hears what is logged."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from transformers import TrainerCallback

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active, all_ranks, attempt, one_of, plain, unless_changed
from tracker_diag.errors import DiagError
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag_transformers import SEES, TESTED, checkpoint, guarded


class Watching(TrainerCallback):
    """A monitor for each training of a Trainer, its state in the checkpoints, and its guards; for TRL too."""

    def __init__(self, trainer: Any, monitor: Monitor | None, guards: guarded.Guards) -> None:
        one_of(monitor, guards)
        self.trainer = trainer
        """None where it is not known."""
        self._given, self._guards = monitor is not None, guards
        self._guarded: guarded.Guarded | None = None
        self.closed = False
        """Whether the training that it watched is over."""
        self._begin(monitor)

    def _begin(self, monitor: Monitor | None = None) -> None:
        """Have `monitor`, or one that is made here, for the training to come."""
        self.monitor = monitor or Monitor(guards=self._guards)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.closed and not self._given:
            self._begin()
        self.closed = False
        made = partial(guarded.Guarded, self.monitor, self.trainer, kwargs.get("optimizer"))
        self._guarded = attempt(self.monitor, made)
        attempt(self.monitor, lambda: self.monitor.expect(expected_rows(args, state)))
        checkpoint.load(self.monitor, args, state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint.save(self.monitor, args, state)
        if self._guarded:
            with self.monitor.guard("integration_errors"):
                self._guarded.saved(checkpoint.folder_of(args, state), state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._guarded:
            self._guarded.stepped()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.closed = True
        if self._guarded:
            self._guarded.close()
            self._guarded = None
        self.monitor.close()


class DiagnosticsCallback(Watching):
    """Hears every `log` of the Trainer; `attach` puts it where it is closed before the trackers' runs end.

    Args:
        monitor: by default one is made at the first step. It has the settings of Trainer and model, and writes to the
            trackers that are underway then.
        algorithm: what is trained with, which a callback cannot see.
        guards: those of the monitor that is made.
    """

    def __init__(
        self, *, monitor: Monitor | None = None, algorithm: Algorithm = "sft", guards: guarded.Guards = ()
    ) -> None:
        self._algorithm: Algorithm = algorithm
        super().__init__(None, monitor, guards)  # `attach` knows the trainer, and so its writer of TensorBoard

    def _begin(self, monitor: Monitor | None = None) -> None:
        ranks = all_ranks() if self._guards else None
        self.monitor = monitor or Monitor(algorithm=self._algorithm, guards=self._guards, ranks=ranks)
        self._begun = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._begun:
            return
        self._begun = True  # the trackers have been started by now, whatever the order of the callbacks
        if self._given or not attempt(self.monitor, lambda: state.is_world_process_zero, True):
            return
        with self.monitor.guard("integration_errors"):
            self.monitor.config = settings(args, kwargs.get("model"))
        theirs = attempt(self.monitor, lambda: writers(self.trainer)) or ()
        add_active(self.monitor, *theirs, sees=SEES)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and not self.closed:  # as when something is evaluated after training
            attempt(self.monitor, lambda: self.monitor.log(logs, state.global_step))
            if self._guarded:
                self._guarded.decide(args, state, control)


def attach_trainer(trainer: Any, monitor: Monitor | None, guards: guarded.Guards) -> Monitor:
    """Watch `trainer`, once however often it is attached to."""
    with unless_changed("transformers", TESTED):
        if (watching := watched_by(trainer, DiagnosticsCallback, monitor)) is not None:
            return watching
        algorithm = algorithm_of({"trainer": type(trainer).__name__}) or "sft"
        callback = DiagnosticsCallback(monitor=monitor, algorithm=algorithm, guards=guards)
        callback.trainer = trainer
        put_first(trainer, callback)
        return callback.monitor
    one_of(monitor, guards)
    return monitor or Monitor()


def watched_by(trainer: Any, kind: type[Any], monitor: Monitor | None) -> Monitor | None:
    """The monitor that a callback of `kind` watches `trainer` with already; one whose training is over goes."""
    handler = trainer.callback_handler
    ours = [callback for callback in handler.callbacks if isinstance(callback, kind)]
    if not ours or ours[0].closed:
        handler.callbacks = [callback for callback in handler.callbacks if callback not in ours]
        return None
    if monitor is not None and monitor is not ours[0].monitor:
        raise DiagError("monitor: another one given, expected that which watches this trainer already, or none")
    watching: Monitor = ours[0].monitor
    return watching


def put_first(trainer: Any, callback: TrainerCallback) -> None:
    """Before the callbacks of trackers, one of which ends its run when training ends.

    Into a list of its own: that which is there may be gone through, as where training has begun.
    """
    handler = trainer.callback_handler
    handler.callbacks = [callback, *handler.callbacks]


def expected_rows(args: Any, state: Any) -> int | None:
    """How many rows the Trainer will log; None where its settings do not say it."""
    how = getattr(args.logging_strategy, "value", args.logging_strategy)
    if how == "epoch":
        return int(state.num_train_epochs)
    every = max(int(state.logging_steps), 1)
    return -(-state.max_steps // every) if how == "steps" and state.max_steps > 0 else None


def writers(trainer: Any) -> list[Any]:
    """What the trainer's own callbacks write to TensorBoard with."""
    callbacks = trainer.callback_handler.callbacks if trainer is not None else ()
    return [writer for callback in callbacks if (writer := getattr(callback, "tb_writer", None)) is not None]


def settings(args: Any, model: Any) -> Mapping[str, object]:
    """The Trainer's arguments by name, without tokens of any hub, and the model's as `model.…`."""
    given: dict[str, object] = dict(args.to_sanitized_dict())
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        given |= {f"model.{name}": value for name, value in config.to_dict().items()}
    return {name: value for name, value in plain(given).items() if not name.endswith("_token")}
