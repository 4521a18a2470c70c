"""TRL: log-probabilities where the loss is computed, tool tokens separately, and all metrics, into the diagnostics.

    trainer = GRPOTrainer(model, reward_funcs, args=GRPOConfig(report_to="mlflow", ...), tools=[search], ...)
    attach(trainer)
    trainer.train()

Findings go to the run of W&B, MLflow or Trackio that the trainer logs to. They also go next to the event files of its
TensorBoard callback. Of trainers without ratios of tokens, such as DPO or SFT, the rules see what they log. The state
of the diagnostics is in the trainer's checkpoints: training that is resumed from `output_dir` continues with its
baselines.
"""

from typing import TYPE_CHECKING, Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import on_demand
from tracker_diag.errors import require
from tracker_diag.guards.policy import Guarded

if TYPE_CHECKING:
    from tracker_diag_trl.callback import DiagnosticsCallback as DiagnosticsCallback  # what __getattr__ gives

__all__ = ["SEES", "TESTED", "DiagnosticsCallback", "attach"]

TESTED = "0.29, 1.9, 1.14 and 1.16"
SEES = {
    "policy": "GRPO, SDFT and SDPO, if gradient_accumulation_steps is no multiple of steps_per_generation × "
    "num_iterations",
    "mismatch": "GRPO and IW-OPD with vLLM, or GRPO with a rollout_func that gives log-probabilities; tokens that vLLM "
    "could not score are left out and counted",
    "reference": "GRPO with beta > 0; in GKD, SDFT, SDPO and IW-OPD the teacher, on what the student has sampled "
    "itself; in A2PO its first policy",
    "post_tool": "GRPO with tools, environment_factory, or a rollout_func that gives env_mask; completions of a "
    "dataset whose prompt has a tool's result among its messages",
    "advantage": "GRPO, with each of the pairs",
    "prompt": "GRPO: distinguished by their token ids",
    "control": "GRPO: the tokens that the tokenizer adds to its vocabulary, as chat marks and tool-call marks are",
    "samples": "GRPO and RLOO: rewards by function, advantage, length and text of each completion, and the tool calls "
    "that were answered, by tool; with attach(correct=...) whether it is right. Of several processes, the first counts "
    "those of all; those of the others come a log later; texts stay on their process",
    "seconds": "GRPO and RLOO of several processes: the time of each for sampling, tools and log-probabilities, to "
    "name a slow process",
    "metrics": "all that the trainer logs, under its step: GRPO, RLOO, PPO, DPO, KTO, ORPO, SFT and the others",
    "not": "ratios in RLOO, which keeps its old log-probabilities summed over each sequence, in PPO and in "
    "AsyncGRPO; in Distillation, whose loss makes no log-probabilities of tokens; in IW-OPD with the JSD loss; in GKD "
    "and IW-OPD whether a prompt has a tool's result; in GRPO with the liger loss of older releases, or as Unsloth has "
    "it; which of several tools answered; "
    "who wrote what in rows of a rollout_func without env_mask, with several prompts a task or turns in a completion; "
    "their context is unknown, and they count only in the slice all. Completions that "
    "mask_truncated_completions takes out of the loss are only counted",
}


def attach(
    trainer: Any, *, monitor: Monitor | None = None, guards: Guarded = (), correct: str | None = None
) -> Monitor:
    """Watch `trainer.train()`; call it before that, and on every process.

    What cannot be seen with the trainer's settings, or with its version, is logged once, as a warning.

    Args:
        trainer: any trainer of TRL.
        monitor: by default one is made that knows the trainer's settings, its clip range and all its processes. It
            writes to the trackers that the trainer starts. In either case it is closed when training ends, just before
            these are. A second `train()` has one of its own, unless you pass one.
        guards: those of the monitor that is made; the trainer does what they decide, as far as
            docs/guards-frameworks.md says.
        correct: name of the reward function that gives 1 for a right answer and 0 for a wrong one. Rules compare the
            reward with it.
    """
    require("trl", "trl")
    from tracker_diag_trl.callback import attach_trainer

    return attach_trainer(trainer, monitor, guards, correct)


__getattr__ = on_demand("tracker_diag_trl.callback", "DiagnosticsCallback", "trl", "trl")
