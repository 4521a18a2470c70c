"""The callback that hears what a trainer logs, and looks over the shoulder of GRPO's loss."""

import logging
import math
from contextlib import suppress
from typing import Any

from tracker_diag_transformers import guarded
from tracker_diag_transformers.trainer import Watching, put_first, watched_by, writers

from tracker_diag import Monitor
from tracker_diag.attach.kit import NOTHING, Hooks, add_active, all_ranks, attempt, clip_range, dotted, one_of, plain
from tracker_diag.attach.own_time import OwnTime
from tracker_diag.hooks import after
from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag_trl import SEES, TESTED
from tracker_diag_trl.samples import CompletionSamples
from tracker_diag_trl.students import STUDENTS
from tracker_diag_trl.tensors import GrpoTensors

NO_RATIO = (
    "no signal: with these settings GRPO trains on-policy by construction, and its ratio is 1 at every token. Tails, "
    "ESS and KL by slice will not be seen. To get a signal, set num_iterations above 1, beta above 0, or sample with a "
    "rollout engine (use_vllm)"
)

UNSLOTH = (
    "no signal: Unsloth's GRPO makes its loss in a kernel of its own, which gives no log-probabilities of tokens; its "
    "rewards, texts and metrics are seen. For ratios train with TRL's own trainer, or hand them to monitor.observe"
)

ALONE = ("_generate_single_turn", "_tool_call_loop", "_get_per_token_logps_and_entropies")
"""What a process of GRPO or RLOO does without the others: sampling, tools, the pass that makes log-probabilities."""

SCORED = ("GRPOTrainer", "RLOOTrainer")
"""How the names of trainers end that tell the rewards of each completion."""

_COPY = "Unsloth"
"""How the name of its copy of each of TRL's trainers begins."""

_log = logging.getLogger("tracker_diag")


class DiagnosticsCallback(Watching):
    """Gives what `trainer` logs, and of GRPO its tensors, to `monitor`; `attach` makes one and puts it in its place."""

    def __init__(
        self, trainer: Any, monitor: Monitor | None = None, guards: guarded.Guards = (), correct: str | None = None
    ) -> None:
        self._correct = correct
        super().__init__(trainer, monitor, guards)

    def _begin(self, monitor: Monitor | None = None) -> None:
        trainer = self.trainer
        self._hooks, self._own_time = hooks_on(trainer), OwnTime()
        self.monitor = monitor or self._made(trainer)
        self.monitor.framework = names_of(trainer)
        self._tensors: GrpoTensors | None = None
        self._found = False
        if kind := tensors_of(trainer):
            self._look(trainer, kind)
        elif of_unsloth(trainer):
            _warn(trainer, UNSLOTH)
        if any(kind.__name__.endswith(SCORED) for kind in type(trainer).__mro__):
            self._look_at_samples(trainer)
        self._hooks.callback(self._own_time.on(trainer, *ALONE))  # last, as it hides what they take

    def _made(self, trainer: Any) -> Monitor:
        known: dict[str, Any] = {}
        with self._hooks.part("the trainer's settings are not known"):
            known = {"config": settings(trainer), "clip": clip(trainer.args)}
        return Monitor(ranks=all_ranks(), guards=self._guards, **known)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.closed:  # an evaluation after training
            return
        if self._tensors:
            with self.monitor.guard("integration_errors"):
                self.monitor.health.update(self._tensors.left_out())
        with self.monitor.guard("integration_errors"):
            if not (self._found or self._given) and state.is_world_process_zero:
                self._find_trackers(begun=state.global_step > 0)
        if (seconds := self._own_time.taken()) is not None:
            self.monitor.observe(seconds=seconds)
        with self.monitor.guard("integration_errors"):
            # On every process: where there are several, this is where they come together.
            self.monitor.log(logs or {}, state.global_step)
        if self._guarded:
            self._guarded.decide(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._hooks.close()
        super().on_train_end(args, state, control, **kwargs)

    def _find_trackers(self, *, begun: bool) -> None:
        """Write to what the trainer has started. Not all of TRL's trainers tell of anything between that and a log."""
        theirs = attempt(self.monitor, lambda: writers(self.trainer)) or ()
        blind = self._tensors.blind if self._tensors else dict[Pair, str | None].fromkeys(PAIRS)
        # Before training an evaluation may be logged, and no tracker be there yet.
        any_run = add_active(self.monitor, *theirs, sees=SEES, blind=blind, wait=not begun)
        self._found = any_run or begun

    def _look(self, trainer: Any, kind: type[GrpoTensors]) -> None:
        """Put the hooks on, or say what will not be seen and why."""
        if getattr(trainer, "use_liger_kernel", False) and hasattr(trainer, "compute_liger_loss"):
            _warn(trainer, "no signal: the liger loss makes no log-probabilities of tokens; set use_liger_kernel=False")
            self._hear_syncs(trainer, kind.generates)
            return
        with self._hooks.part("ratios of tokens are not seen") as on:
            tensors = kind(trainer, self.monitor)
            for name, (parameters, seen) in tensors.hooked.items():
                on.callback(after(tensors.owner(name), name, parameters, seen, self.monitor))
            self._tensors = tensors
        if self._tensors is None:
            return
        with self._hooks.part("tool results in prompts are not seen") as on:
            if whole := self._tensors.generates:
                on.callback(after(trainer, whole, ("inputs",), self._tensors.rows.generated, self.monitor))
        self._hear_syncs(trainer, self._tensors.generates)
        if not self._tensors.ratio_expected:
            _warn(trainer, NO_RATIO)

    def _hear_syncs(self, trainer: Any, generates: str) -> None:
        """Let a canary look once the sampler has new weights, which is before each generation."""
        if generates:
            with self._hooks.part("a canary does not run") as on:
                on.callback(after(trainer, generates, (), lambda *_: self.monitor.synced(), self.monitor))

    def _look_at_samples(self, trainer: Any) -> None:
        """The same for what is known of each completion."""
        with self._hooks.part("rewards, texts and tool calls of completions are not seen") as on:
            samples = CompletionSamples(trainer, self.monitor, self._correct)
            on.callback(after(trainer, "_calculate_rewards", ("completions",), samples.rewards, self.monitor))
            on.callback(after(trainer, "_generate_and_score_completions", (), samples.generation, self.monitor))


def attach_trainer(
    trainer: Any, monitor: Monitor | None, guards: guarded.Guards = (), correct: str | None = None
) -> Monitor:
    """Watch `trainer`, once however often it is attached to."""
    watching, known = None, False
    with hooks_on(trainer).part(NOTHING):
        watching, known = watched_by(trainer, DiagnosticsCallback, monitor), True
    if not known:
        one_of(monitor, guards)
        return monitor or Monitor()
    if watching is None:
        callback = DiagnosticsCallback(trainer, monitor, guards, correct)
        put_first(trainer, callback)
        watching = callback.monitor
    return watching


def settings(trainer: Any) -> dict[str, object]:
    """The trainer's arguments by dotted name, and under `trainer` the name of TRL's class."""
    kinds = type(trainer).__mro__
    names = [kind.__name__.removeprefix(_COPY) for kind in kinds if kind.__name__.startswith(_COPY)]
    names += [kind.__name__ for kind in kinds if kind.__module__.startswith("trl.")]
    return plain(dotted(trainer.args.to_dict())) | {"trainer": (names or [type(trainer).__name__])[0]}


def clip(args: Any) -> tuple[float, float]:
    """How far below and above 1 the ratio is clipped; TRL's usual 0.2 where the trainer has no such setting."""
    low, high = clip_range(getattr(args, "epsilon", None), getattr(args, "epsilon_high", None))
    if getattr(args, "loss_type", "") == "cispo":  # there it bounds the weight itself, and nothing does below
        return 0.999, max(high - 1.0, 0.01)
    if any(kind.__name__ == "GMPOConfig" for kind in type(args).__mro__):  # there it bounds the log-ratio
        return -math.expm1(-low), math.expm1(high)
    return low, high


def tensors_of(trainer: Any) -> type[GrpoTensors] | None:
    """What sees the trainer's ratios of tokens. RLOO has methods of GRPO's names, and no such ratios."""
    known: dict[str, type[GrpoTensors]] = {"GRPOTrainer": GrpoTensors, **STUDENTS}
    return next((known[kind.__name__] for kind in type(trainer).__mro__ if kind.__name__ in known), None)


def names_of(trainer: Any) -> str:
    """Whose names its metrics have: in the asynchronous trainers `kl` is to the sampler, and not to a reference."""
    return "TRL-async" if any(kind.__name__.startswith("Async") for kind in type(trainer).__mro__) else "TRL"


def of_unsloth(trainer: Any) -> bool:
    """Whether it is Unsloth's GRPO: a copy of TRL's source under another name, whose `compute_loss` is its own."""
    return any(kind.__name__.startswith(f"{_COPY}GRPO") for kind in type(trainer).__mro__)


def hooks_on(trainer: Any) -> Hooks:
    """Hooks on `trainer`. Of several processes, only the first one reports a change."""
    return Hooks("TRL", TESTED, tells=_first(trainer))


def _warn(trainer: Any, message: str) -> None:
    """Once, however many processes there are."""
    if _first(trainer):
        _log.warning(message)


def _first(trainer: Any) -> bool:
    """Whether this is the first process, or nobody knows."""
    with suppress(Exception):
        return bool(trainer.is_world_process_zero())
    return True
