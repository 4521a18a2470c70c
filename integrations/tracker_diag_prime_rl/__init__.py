"""tracker_diag in prime-rl, offline without any code, or in the trainer's process.

Offline: train with `trainer.enable_token_export=true`, then give the run's `token_exports` folder to
`tracker-diag replay`. It has the tokens of all ranks.

In the process: set

    [trainer.loss]
    type = "custom"
    import_path = "tracker_diag_prime_rl.loss"

and what else `[trainer.loss]` held goes into `kwargs`. `loss` is prime-rl's own default loss, and looks at what it
is given. Rank 0 has the monitors of prime-rl, and writes; each other rank hands over what its share of the batch comes
to, a step later. With context parallelism the ranks that have the same sequences count once.
"""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, add_active, watch_once, watching
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.attach.shares import Share, together
from tracker_diag.errors import require
from tracker_diag.hooks import HookError, after, before
from tracker_diag_prime_rl.samples import Samples

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "attach", "loss"]

INSTALLED_AS = ("prime-rl",)
TESTED = "v0.6.0 to v0.8.0 and 559b447 (August 2026): its losses were run by a command, its trainer was read"

SEES: dict[str, str] = {
    "mismatch": "the trainer's log-probabilities less those of the rollout, of sampled tokens",
    "post_tool": "gaps in loss_mask: the first run of trained tokens is the first turn; what follows a gap comes after "
    "a tool or another message of the environment. If the prefix of a rollout breaks, it is in several samples; one "
    "whose prompt extends another's is after a tool too. In the process, if other ranks have samples, those that "
    "extend none here are of unknown context; they count only in the slice all",
    "advantage": "the sign of each token's advantage",
    "env": "from the exports: the environment's name",
    "metrics": "in the process: all that the trainer logs, with its step",
    "state": "in the process: in the trainer's checkpoint of the step, found again when it resumes",
    "not": "a policy ratio, since each batch is trained on once; in the process, anything of the orchestrator's, as it "
    "logs in a process of its own; what comes before a sample whose "
    "prompt was rewritten: up to its first gap it counts as text_only; which tool answered",
}

_log = logging.getLogger("tracker_diag")


def attach(*, monitor: Monitor | None = None) -> Monitor:
    """Hear what the trainer of this process logs; call this once prime-rl has set up its own monitor or monitors.

    In the releases up to v0.8 that is `prime_rl.utils.monitor.setup_monitor`, later `prime_rl.monitors.setup`. A rank
    other than 0 only hands over its share of the batches.

    Args:
        monitor: one with settings, rules, ranks or trackers of your own, for rank 0.

    Raises:
        MissingExtra: prime-rl is not installed.
        RuntimeError: of prime-rl, which has no monitor yet.
    """
    theirs: Any = require("prime_rl.monitors", "prime-rl", "prime_rl.utils.monitor")
    first, own = _rank() == 0, _trainer.share()
    if _process and (there := watching(_process[0], monitor if first else None)) is not None:
        return there
    ranks = together(*own) if own else None
    share = Share(ranks) if ranks and not first else None
    if share:
        monitor = share.monitor
    elif monitor is None:
        monitor = Monitor(algorithm="grpo", ranks=ranks)
        if first:
            add_active(monitor, sees=SEES)
    watch, hooks = _Watch(monitor, share), Hooks("prime-rl", TESTED)
    watch_once(watch, monitor, "prime-rl")
    with hooks.part("nothing of it is watched") as parts:
        on = first or share is not None
        if hasattr(theirs, "MONITORS"):  # since 2026-08-15
            on = on and _join(theirs, watch)
        elif on:  # each rank has a monitor of prime-rl's there, which logs on rank 0 alone
            theirs_here = theirs.get_monitor()
            parts.callback(
                before(theirs_here, "log", ("metrics", "step"), lambda given: watch.logged(**given), monitor)
            )
            parts.callback(before(theirs_here, "close", (), lambda _: watch.ended(), monitor))
        _process[:] = [watch if on else None]
        if on and share is None and _trainer.resumed is not None:
            watch.saved.find(_trainer.resumed)
    return monitor


class _Trainer:
    """What the trainer of this process does before its first loss, and besides its losses."""

    def __init__(self) -> None:
        self.samples = Samples()
        self.resumed: Path | None = None
        self.shares: int | None = None
        """How many shares prime-rl divides a batch into."""

    def share(self) -> tuple[int, int] | None:
        """Which share this rank has, of how many; None where a rank before it has the same, or nobody knows.

        Ranks of one share, as with context parallelism, follow one another.
        """
        rank, world = _rank(), int(os.environ.get("WORLD_SIZE", "1"))
        if not self.shares or world % self.shares:
            return None
        number, among = divmod(rank, world // self.shares)
        return None if among else (number, self.shares)

    def hook_trainer(self) -> None:
        """Put hooks on it, where this is its process: it imports our loss before it loads a checkpoint or a batch."""
        data, ckpt = (sys.modules.get(f"prime_rl.trainer.{name}") for name in ("rl.data", "ckpt"))
        hooks, health = Hooks("prime-rl", TESTED), Monitor(catalog=False)
        if data is not None:
            with hooks.part("what comes before a sample is not seen") as on:
                loader = data.DataLoader
                on.callback(after(loader, "get_batch", (), lambda batches, _: self.samples.given(batches), health))
        if (loader := getattr(data, "DataLoader", None)) is not None:
            with hooks.part("tokens of other ranks than the first are not seen") as on:

                def divided(_: Any, given: Mapping[str, Any]) -> None:
                    self.shares = int(given["dp_world_size"])

                on.callback(after(loader, "__init__", ("dp_world_size",), divided, health))
        if ckpt is not None:
            with hooks.part(UNSAVED) as on:
                manager = ckpt.CheckpointManager
                on.callback(after(manager, "save", ("self", "step"), self._put, health))
                on.callback(after(manager, "load", ("self", "step"), self._found, health))

    @staticmethod
    def _put(_: Any, given: Mapping[str, Any]) -> None:
        if _process and (watch := _process[0]) is not None and watch.share is None:
            # A release that saves before the step has nothing of it yet, and trains it again when it resumes.
            row = int(given["step"]) if watch.waits else None
            watch.saved.put(given["self"].get_ckpt_path(given["step"]), row=row)

    def _found(self, _: Any, given: Mapping[str, Any]) -> None:
        self.resumed = Path(given.get("path") or given["self"].get_ckpt_path(given["step"]))


def loss(inputs: Any, **kwargs: Any) -> Any:
    """prime-rl's default loss of one sequence, seen by the diagnostics.

    Args:
        kwargs: fields of prime-rl's `DefaultLossConfig`.
    """
    config = require("prime_rl.configs.trainer", "prime-rl").DefaultLossConfig(**kwargs)
    outputs = require("prime_rl.trainer.rl.loss", "prime-rl").default_loss_fn(inputs, config)
    if watch := _watching():
        watch.sequence(inputs)
    return outputs


class _Watch:
    """What is needed of each sequence of a step, until the step is logged."""

    def __init__(self, monitor: Monitor, share: Share | None = None) -> None:
        self._monitor, self.saved, self.share = monitor, Saved(monitor), share
        self._sequences: list[dict[str, Any]] = []

    @property
    def waits(self) -> bool:
        """Whether sequences have come whose step is not logged yet."""
        return bool(self._sequences)

    def sequence(self, inputs: Any) -> None:
        with self._monitor.guard("integration_errors"):
            kept = {
                "old_logprobs": inputs.trainer_logprobs,
                "rollout_logprobs": inputs.inference_logprobs,
                "model_mask": inputs.loss_mask,
                "advantages": inputs.advantages,
            }
            self._sequences.append({name: value.detach() for name, value in kept.items()})

    def logged(self, metrics: Mapping[str, Any], step: int) -> None:
        """The step is logged: its sequences belong to it."""
        with self._monitor.guard("integration_errors"):
            self._observe()
        if self.share is None:
            self._monitor.log(metrics, step)
            self.saved.logged()
        else:
            self.share.stepped(step)

    def ended(self) -> None:
        with self._monitor.guard("integration_errors"):
            self._observe()
        self._monitor.close()
        if _process == [self]:
            _process[:] = [None]

    def _observe(self) -> None:
        sequences, self._sequences = self._sequences, []
        if any(len(sequence["model_mask"]) for sequence in sequences):
            import torch

            sequences = [sequence for sequence in sequences if len(sequence["model_mask"])]
            lengths = [len(sequence["model_mask"]) for sequence in sequences]
            about = _trainer.samples.about(lengths)
            mask = sequences[0]["model_mask"]
            numbers = torch.arange(len(lengths), device=mask.device)
            ids = numbers.repeat_interleave(torch.tensor(lengths, device=mask.device), output_size=sum(lengths))
            packed: dict[str, Any] = {
                name: torch.cat([sequence[name] for sequence in sequences]) for name in sequences[0]
            }
            self._monitor.observe(**packed, **about, sequence_ids=ids)


_trainer = _Trainer()
_process: list[_Watch | None] = []
"""What is watched in this process, once it was tried; None on ranks that do not watch. `loss` is a plain function."""


def _watching() -> _Watch | None:
    if not _process:
        _process.append(None)  # tried once, whatever comes of it
        try:
            attach()
        except Exception as error:  # noqa: BLE001  # no error of ours may reach the training step
            _log.warning("nothing of this prime-rl is watched: %s: %s", type(error).__name__, error)
    return _process[0]


def _rank() -> int:
    """This process's, as prime-rl's own monitors take it."""
    return int(os.environ.get("RANK", os.environ.get("DP_RANK", "0")))


def _join(monitors: Any, watch: _Watch) -> bool:
    """Put `watch` among `prime_rl.monitors.MONITORS`, first, so that it ends before W&B's run does.

    Gives whether it is there: rank 0 may have no monitors. Other ranks never have, but log all the same.
    """
    base: Any = monitors.Monitor
    if unknown := set(getattr(base, "__abstractmethods__", ())) - {"log_metrics", "log_episodes"}:
        raise HookError(f"prime_rl.monitors.Monitor: asks for {', '.join(sorted(unknown))}, as tested versions do not")

    class DiagnosticsMonitor(base):  # type: ignore[misc]
        async def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
            watch.logged(metrics, step)

        async def log_episodes(self, episodes: list[Any], step: int, kind: str, subset: str) -> None:
            """Texts stay out of the diagnostics."""

        async def finalize(self) -> None:
            watch.ended()

    listed: list[Any] = monitors.MONITORS
    if on := bool(listed) or watch.share is not None:
        listed.insert(0, DiagnosticsMonitor(None))
    return on


_trainer.hook_trainer()
