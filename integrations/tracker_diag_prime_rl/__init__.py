"""tracker_diag in prime-rl, offline without any code, or in the trainer's process.

Offline: train with `trainer.enable_token_export=true`, then give the run's `token_exports` folder to `read_exports`.
It has the tokens of all ranks.

In the process: set

    [trainer.loss]
    type = "custom"
    import_path = "tracker_diag_prime_rl.loss"

and what else `[trainer.loss]` held goes into `kwargs`. `loss` is prime-rl's own default loss, and looks at what it
is given. Rank 0 has the monitors of prime-rl, so it is this rank's share of the batch that is seen.
"""

from collections.abc import Mapping
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active, unless_changed
from tracker_diag.errors import require
from tracker_diag.hooks import HookError
from tracker_diag.runs.sources.prime_rl import read_exports

__all__ = ["SEES", "TESTED", "attach", "loss", "read_exports"]

TESTED = "559b447 (August 2026), read, not run"
"""The commit of prime-rl whose signatures the tests stand on."""

SEES: dict[str, str] = {
    "mismatch": "the trainer's log-probabilities less those of the rollout, of sampled tokens",
    "post_tool": "gaps in loss_mask: the first run of trained tokens is the first turn, what follows a gap comes after "
    "a tool or another message of the environment",
    "advantage": "the sign of each token's advantage",
    "env": "from the exports: the environment's name",
    "metrics": "in the process: all that the trainer logs, with its step",
    "not": "a policy ratio, since each batch is trained on once; in the process, other ranks' tokens and, of the "
    "orchestrator's, anything, as it logs in a process of its own; which tool answered",
}
"""What is seen of a run, and under `not` what is not."""


def attach(*, monitor: Monitor | None = None) -> Monitor:
    """Put the diagnostics among the monitors of this process; call this after `prime_rl.monitors.setup`.

    They come first in `MONITORS`, so that they are closed before W&B's run is. On ranks other than 0, which have no
    monitors, nothing is watched.

    Args:
        monitor: one with settings, rules or backends of your own.
    """
    monitors = require("prime_rl.monitors", "prime-rl")
    if monitor is None:
        monitor = Monitor(algorithm="grpo")
        add_active(monitor)
    with unless_changed("prime-rl", TESTED):
        ours = _monitor(monitors.Monitor, monitor)
        listed: list[Any] = monitors.MONITORS
        if listed:
            _Watched.current = ours
            listed.insert(0, ours)
    return monitor


def loss(inputs: Any, **kwargs: Any) -> Any:
    """prime-rl's default loss of one sequence, seen by the diagnostics.

    Args:
        kwargs: fields of prime-rl's `DefaultLossConfig`.
    """
    config = require("prime_rl.configs.trainer", "prime-rl").DefaultLossConfig(**kwargs)
    outputs = require("prime_rl.trainer.rl.loss", "prime-rl").default_loss_fn(inputs, config)
    if _Watched.current is None and not _Watched.tried:
        _Watched.tried = True
        attach()
    if _Watched.current is not None:
        _Watched.current.sequence(inputs)
    return outputs


class _Watched:
    """What this process watches; `loss` is a plain function, and has no other place to ask."""

    current: Any = None
    tried = False


def _monitor(base: Any, monitor: Monitor) -> Any:
    """One of prime-rl's monitors that hands over what it is given; HookError if they are others than was tested."""
    if unknown := set(getattr(base, "__abstractmethods__", ())) - {"log_metrics", "log_episodes"}:
        raise HookError(f"prime_rl.monitors.Monitor: asks for {', '.join(sorted(unknown))}, as tested versions do not")

    class DiagnosticsMonitor(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(None)
            self._sequences: list[dict[str, Any]] = []

        def sequence(self, inputs: Any) -> None:
            """Keep what is needed of one sequence until its step is logged."""
            with monitor.guard("integration_errors"):
                kept = {
                    "old_logprobs": inputs.trainer_logprobs,
                    "rollout_logprobs": inputs.inference_logprobs,
                    "model_mask": inputs.loss_mask,
                    "advantages": inputs.advantages,
                }
                self._sequences.append({name: value.detach() for name, value in kept.items()})

        async def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
            with monitor.guard("integration_errors"):
                self._observe()
            monitor.log(metrics, step)

        async def log_episodes(self, episodes: list[Any], step: int, kind: str, subset: str) -> None:
            """Texts stay out of the diagnostics."""

        async def finalize(self) -> None:
            with monitor.guard("integration_errors"):
                self._observe()
            monitor.close()
            if _Watched.current is self:
                _Watched.current = None

        def _observe(self) -> None:
            sequences, self._sequences = [one for one in self._sequences if len(one["model_mask"])], []
            if sequences:
                import torch

                lengths = [len(one["model_mask"]) for one in sequences]
                mask = sequences[0]["model_mask"]
                numbers = torch.arange(len(lengths), device=mask.device)
                ids = numbers.repeat_interleave(torch.tensor(lengths, device=mask.device), output_size=sum(lengths))
                packed: dict[str, Any] = {name: torch.cat([one[name] for one in sequences]) for name in sequences[0]}
                monitor.observe(**packed, sequence_ids=ids)

    return DiagnosticsMonitor()
