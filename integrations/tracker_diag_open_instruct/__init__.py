"""tracker_diag in open-instruct's GRPO: one key in the `runtime_env` that `grpo_fast.py` gives to `ray.init`.

    ray.init(runtime_env={..., "worker_process_setup_hook": "tracker_diag_open_instruct.attach"})

Each learner reads the tensors of its losses, and they are merged once a step. The scalars join what the first learner
returns, so they are in the row that open-instruct logs for the step. Findings are in the log.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, all_ranks, clip_range, place_in_job, plain
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.errors import require
from tracker_diag.hooks import after
from tracker_diag.records import Scalar
from tracker_diag.rules.alerts import Notice
from tracker_diag.trackers.tracker import Entry, Tracker

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "attach"]

INSTALLED_AS = ("open-instruct",)
TESTED = "e6c3044 (August 2026), read, not run"

SEES: dict[str, str] = {
    "policy": "the loss's own log-probabilities less the old ones; zero with one mini-batch and one epoch, where the "
    "old ones are the same, which is reported as no signal",
    "mismatch": "the old log-probabilities less vLLM's; not with use_vllm_logprobs, where they are the same",
    "reference": "with load_ref_policy",
    "post_tool": "with mask_tool_use: gaps in response_masks",
    "advantage": "the sign of each token's advantage",
    "metrics": "losses, KL, clip fraction and entropy of the learners, with the number of their step in this run",
    "state": "in DeepSpeed's checkpoints: checkpoint_state_dir",
    "not": "rewards and lengths, which the driver adds; histograms, as the driver makes them of plain values; with "
    "sequence_parallel_size above 1 any tensor, as a learner has parts of sequences; the trainer of grpo.py; which "
    "tool answered",
}

PARTS = (
    "sequence_parallel_size is above 1: each learner has parts of sequences, in which turns are unknown; nothing is "
    "watched."
)

INVALID = 1.0
"""What open-instruct writes where vLLM gave no log-probability, and on tokens that are no response."""

PLACES = {
    "forward_for_logprobs": ("position_ids",),
    "compute_rho_correction": ("old_logprob", "vllm_logprobs", "response_mask", "config"),
    "compute_grpo_loss": ("new_logprobs", "advantages", "ref_logprobs", "rho_weights"),
    "compute_metrics_from_loss_stats": ("loss_stats_B",),
    "finalize_rho_histograms": ("acc",),
}
"""The functions of `grpo_utils` that a step goes through, in this order, and what each must take."""

_log = logging.getLogger("tracker_diag")


def attach(*, monitor: Monitor | None = None) -> Monitor | None:
    """Watch the learner of this process, if it becomes one.

    Args:
        monitor: one with settings or rules of your own. By default one that knows the run's clip range, together
            with those of the other learners.
    """
    module = require("open_instruct.grpo_utils", "open-instruct")
    health = monitor or Monitor()
    watch = _Learner(monitor, health)
    hooks = Hooks("open-instruct", TESTED)
    with hooks.part("nothing of it is watched") as on:  # a step goes through all of them
        for name, parameters in PLACES.items():
            on.callback(after(module, name, parameters, getattr(watch, name), health))
    with hooks.part(UNSAVED) as on:
        engine = require("deepspeed", "deepspeed").DeepSpeedEngine
        on.callback(after(engine, "save_checkpoint", ("self", "save_dir", "tag"), watch.saved, health))
        on.callback(after(engine, "load_checkpoint", ("self", "load_dir"), watch.loaded, health))
    return monitor


class _Returned(Tracker):
    """Keeps the scalars of the last step, for the learner to return, and tells alerts in the log."""

    name = "open-instruct"
    local = True
    takes = (Scalar, Notice)

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        if scalars := {entry.name: entry.value for entry in entries if isinstance(entry, Scalar)}:
            self.scalars = scalars
        for entry in entries:
            if isinstance(entry, Notice):
                _log.warning("%s: %s", entry.title, entry.text)


class _Learner:
    """Takes in the losses of one learner; each method is called after the function of its name."""

    def __init__(self, monitor: Monitor | None, health: Monitor) -> None:
        self._monitor, self._health, self._returned = monitor, health, _Returned()
        self._sequences: Any = None
        self._seen: dict[str, Any] = {}
        self._step, self._tried = 0, False
        self._saved: Saved | None = None
        self._resumes_from: Path | None = None
        if monitor is not None:
            monitor.add_tracker(self._returned)

    def forward_for_logprobs(self, result: Any, given: Mapping[str, Any]) -> None:
        # Packed: positions begin anew with each sequence of a row. Log-probabilities begin with the second token.
        self._sequences = (given["position_ids"] == 0).cumsum(-1)[:, 1:]

    def compute_rho_correction(self, result: Any, given: Mapping[str, Any]) -> None:
        self._seen = {name: given[name] for name in ("old_logprob", "vllm_logprobs", "response_mask")}
        if self._tried:
            return
        self._tried = True  # once: the learners make it together
        if getattr(given["config"], "sequence_parallel_size", 1) > 1:
            _log.warning(PARTS)
            self._monitor = None
        else:
            self._monitor = self._monitor or self._made(given["config"])
            self._begin(self._monitor, given["config"])

    def compute_grpo_loss(self, result: Any, given: Mapping[str, Any]) -> None:
        import torch

        seen, self._seen = self._seen, {}
        if self._monitor is None or not seen:
            return
        mask, vllm = seen["response_mask"].bool(), seen["vllm_logprobs"]
        known = vllm != INVALID
        rows, width = mask.shape
        ids = self._sequences + (width + 1) * torch.arange(rows, device=mask.device)[:, None]
        tensors = {
            "logprobs": given["new_logprobs"],
            "old_logprobs": seen["old_logprob"],
            "rollout_logprobs": vllm,
            "ref_logprobs": given["ref_logprobs"],
            "advantages": given["advantages"],
            "applied_weights": given["rho_weights"],
            "model_mask": mask & known,
            "response_mask": known | ~mask,  # a token without a score is no tool's
            "sequence_ids": ids,
        }
        flat = {name: values.detach().reshape(-1) for name, values in tensors.items() if values is not None}
        self._monitor.observe(**flat)

    def compute_metrics_from_loss_stats(self, result: Any, given: Mapping[str, Any]) -> None:
        if self._monitor is not None:  # every learner comes here, once a step
            self._monitor.log(result, self._step)
        self._step += 1

    def finalize_rho_histograms(self, result: Any, given: Mapping[str, Any]) -> None:
        result.update(self._returned.scalars)

    def saved(self, result: Any, given: Mapping[str, Any]) -> None:
        """DeepSpeed has written a checkpoint; without a tag it is called by its steps."""
        if self._saved is not None:
            self._saved.put(Path(given["save_dir"]) / (given.get("tag") or f"global_step{given['self'].global_steps}"))

    def loaded(self, result: Any, given: Mapping[str, Any]) -> None:
        """DeepSpeed has read one, before there is a monitor; None as the path where there was none."""
        path, _ = result
        self._resumes_from = Path(path).parent if path else None

    def _begin(self, monitor: Monitor, config: Any) -> None:
        """Before the first step: continue with the state, if there is one."""
        self._saved = Saved(monitor, place_in_job()[0])
        monitor.framework = "open-instruct"
        monitor.expect(getattr(config, "num_training_steps", None))
        if self._resumes_from is not None and self._saved.find(self._resumes_from):
            self._step = 1 + (monitor.step if monitor.step is not None else -1)

    def _made(self, config: Any) -> Monitor:
        """A monitor of this learner's; made on all of them at the same place."""
        settings = plain(vars(config))
        return Monitor(
            [] if place_in_job()[0] else [self._returned],
            config=settings,
            algorithm="grpo",
            clip=clip_range(settings.get("clip_lower"), settings.get("clip_higher")),
            ranks=all_ranks(),
        )
