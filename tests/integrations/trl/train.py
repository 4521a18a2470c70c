"""Runs of TRL's trainers on the checkpoint; as a program, one of several processes that train together.

python train.py FOLDER
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from datasets import Dataset
from task import CHECKPOINT, Lookup, judge, prompts, tokenizer, value_of
from tracker_diag_trl import attach
from transformers import PrinterCallback, Qwen2ForCausalLM, TrainerCallback, set_seed

from tracker_diag import AllReduce, Guard, Monitor, Rule
from tracker_diag.testing import CapturingTracker

SMALL = {"per_device_train_batch_size": 16, "max_steps": 4, "num_iterations": 2, "beta": 0.02}


class Tapped(trl.GRPOTrainer):
    """GRPO that also counts its tokens itself, in plain torch, to hold the diagnostics against."""

    def __init__(self, *args, **kwargs):
        self.calls = []
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self.last, self.values = out[0].detach(), len(out)
        return out

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        with torch.no_grad():
            response = inputs["completion_mask"] == 1
            mine = response & (inputs.get("tool_mask", torch.ones_like(response)) == 1)
            post = mine & ((response & ~mine).cumsum(1) > 0)
            old = inputs.get("old_per_token_logps", self.last)
            reference = inputs.get("ref_per_token_logps", self.last)
            moved = {"policy": (self.last - old)[mine], "reference": (self.last - reference)[mine]}
        if torch.is_grad_enabled():  # not an evaluation
            call = {"step": self.state.global_step, "keys": sorted(inputs), "tokens": int(mine.sum())}
            call |= {"post": int(post.sum()), "empty": int((~response.any(1)).sum())}
            self.calls.append(call | {pair: max(r.abs().tolist(), default=0.0) for pair, r in moved.items()})
        return loss


class Widening(TrainerCallback):
    """Widens what the tool says, from step `start` to `end`; and keeps what is logged."""

    def __init__(self, tool, start, end, width):
        self.tool, self.start, self.end, self.width = tool, start, end, width
        self.rows = []

    def on_step_begin(self, args, state, control, **kwargs):
        share = (state.global_step - self.start) / max(self.end - self.start, 1)
        self.tool.width = self.width * min(1.0, max(0.0, share))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.rows.append({"step": state.global_step, **logs})


def grpo(folder, *, kind=Tapped, config=trl.GRPOConfig, widening=(0, 1, 0.0), tools=True, more=None, **settings):
    """A GRPOTrainer with the tool; `settings` are those of its config, `more` goes to the trainer itself."""
    set_seed(0)
    tool = Lookup()
    given = {"reward_funcs": judge(errs=0.35), "train_dataset": Dataset.from_list(prompts(2000, tool_share=0.85))}
    given |= {"tools": tool.tools()} if tools else {}
    trainer = kind(
        model(),
        args=config(**(common(folder) | {
            "per_device_train_batch_size": 32, "num_generations": 4, "steps_per_generation": 1,
            "max_completion_length": 64, "max_tool_calling_iterations": 1, "learning_rate": 1e-4,
        } | settings)),
        processing_class=tokenizer(),
        callbacks=[Widening(tool, *widening)],
        **(given | (more or {})),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def common(folder):
    """Settings of every trainer here."""
    return {
        "output_dir": str(folder), "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [],
        "save_strategy": "no", "bf16": False, "gradient_checkpointing": False, "use_cpu": True,
        "disable_tqdm": True, "seed": 0,
    }  # fmt: skip


def weights(trainer):
    """A hash of all weights, bit by bit."""
    digest = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def model():
    made = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    made.config._name_or_path = str(CHECKPOINT)  # from where the reference is read again
    return made


def watched(trainer, **given):
    """Attach and train: the monitor, what a tracker was given, and what has fired."""
    monitor = attach(trainer, **given)
    monitor.add_tracker(kept := CapturingTracker())
    trainer.train()
    fired = {(finding.rule.id, finding.slice) for finding in kept.summary.findings if finding.fired is not None}
    return SimpleNamespace(trainer=trainer, monitor=monitor, kept=kept, fired=fired)


def logged(trainer):
    """The rows of training that the trainer itself has logged."""
    rows = [
        row
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, Widening)
        for row in callback.rows
    ]
    return [row for row in rows if "loss" in row]


def entropy_above(limit):
    """A rule that fires from the second step on."""
    high = {"kind": "threshold", "series": {"metric": "entropy"}, "above": limit}
    return Rule(id="ACM001", title="Entropy", signals={"high": high}, when=["high"], for_steps=2, summary="high")


def broken(folder, first):
    """One of two processes, of which the second one's tool is broken."""

    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: Key.
        """
        if not first:
            raise ConnectionError("the index is away")
        return f"value {value_of(key)}"

    trackers = {"report_to": ["mlflow", "tensorboard", "trackio", "wandb"], "project": os.environ["PROJECT"]}
    quick = {"per_device_train_batch_size": 4, "max_steps": 6, "ddp_backend": "gloo"}
    run = watched(grpo(folder, tools=False, more={"tools": [lookup]}, **trackers | quick))
    failed = [row["tools/failure_frequency"] for row in logged(run.trainer)]
    return run.monitor, {"fired": sorted(run.fired), "failed": failed}


def counts(folder, first):
    """One of two processes, whose tokens are counted together; the second one's tool is slow."""

    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: Key.
        """
        time.sleep(0.0 if first else 0.3)
        return f"value {value_of(key)}"

    run = watched(grpo(folder, tools=False, more={"tools": [lookup]}, **SMALL, ddp_backend="gloo"))
    table = run.monitor.slices_table()
    slices = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    ratios = [run.kept.scalars(step).get("diag/health/rank_time_ratio") for step in run.kept.records] if first else []
    return run.monitor, {"slices": slices, "calls": run.trainer.calls, "slower": ratios}


def slower(folder, first):
    """One of two processes of RLOO, which tells no tensors; the second one samples slowly."""

    class Slow(trl.RLOOTrainer):
        def _generate_single_turn(self, *args, **kwargs):
            time.sleep(0.0 if first else 2.0)
            return super()._generate_single_turn(*args, **kwargs)

    set_seed(0)
    settings = {"per_device_train_batch_size": 4, "num_generations": 2, "max_steps": 3, "ddp_backend": "gloo"}
    args = trl.RLOOConfig(**common(folder) | settings, max_completion_length=16)
    data = Dataset.from_list(prompts(32))
    run = watched(Slow(model(), judge(errs=0.35), args, train_dataset=data, processing_class=tokenizer()))
    scalars = [run.kept.scalars(step) for step in run.kept.records] if first else []
    return run.monitor, {"slower": [row.get("diag/health/rank_time_ratio") for row in scalars]}


def guards(folder, first):
    """One of two processes, of which the first alone finds its entropy too high."""
    own = ({"do": "scale_lr", "bounds": (0.25, 0.25), "hold": 1}, {"do": "stop_update", "hold": 2})
    trainer = grpo(folder, **SMALL | {"max_steps": 6}, ddp_backend="gloo")
    rules, acting = [entropy_above(0.0 if first else 1e9)], [Guard(act=True, **it) for it in own]
    monitor = Monitor(rules=rules, catalog=False, guards=acting, ranks=AllReduce())
    attach(trainer, monitor=monitor)
    hashes, asked, decide = {}, [], monitor.decide

    class Hashes(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            hashes[state.global_step] = weights(trainer)

    def decided(can):
        decision = decide(can)
        asked.append([decision.stop, decision.lr_factor, *decision.reasons])
        return decision

    monitor.decide = decided
    trainer.add_callback(Hashes())
    trainer.train()
    number = sum(it.fired is not None for it in monitor.summary().findings)
    return monitor, {"weights": hashes, "asked": asked, "found": number}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, number = Path(sys.argv[2]), os.environ["RANK"]
    watching, outcome = globals()[sys.argv[1]](place, number == "0")
    outcome["failed_of_ours"] = watching.health["integration_errors"] + watching.health["rank_errors"]
    (place / f"result-{number}.json").write_text(json.dumps(outcome, default=str))
