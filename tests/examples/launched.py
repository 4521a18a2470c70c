"""GRPO of TRL whose learning rate rises fifteenfold midway, with and without a launcher that resumes for a guard.

python tests/examples/launched.py SEEDS gives the reward at the end of both arms for each seed.
"""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tracker_diag_trl import attach
from tracker_diag_trl.callback import settings
from transformers import PrinterCallback, Qwen2ForCausalLM, TrainerCallback, set_seed

from tracker_diag import Guard, Monitor
from tracker_diag.attach.resume import resume_from

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 70, 5
GUARD = Guard.model_validate({"do": "rollback", "act": True})


class Begun(TrainerCallback):
    """The weights with which training begins."""

    def on_train_begin(self, args, state, control, *, model, **_):
        self.step, self.weights = state.global_step, hashed(model.state_dict())


def hashed(weights):
    """SHA-256 of all weights, by name."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(weights[name].contiguous().numpy().tobytes())
    return total.hexdigest()


def train(folder, *, seed, guards, rate, resume):
    """One start of the training: its model and where it began."""
    language = import_module("language")
    torch.set_num_threads(1)
    set_seed(seed)
    watcher, begun = language.Watcher({"rate_from": (0.5, 15.0)}, STEPS), Begun()
    model = Qwen2ForCausalLM.from_pretrained(language.task.CHECKPOINT, dtype=torch.float32)
    model.config.name_or_path = str(language.task.CHECKPOINT)
    common = {
        "output_dir": str(folder), "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [], "seed": seed,
        "save_strategy": "steps", "save_steps": EVERY, "bf16": False, "use_cpu": True, "disable_tqdm": True,
        "max_steps": STEPS,
    }  # fmt: skip
    trainer = language.grpo(model, common, {"learning_rate": rate}, watcher.fault, watcher, False, False, seed)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(begun)
    attach(trainer, monitor=Monitor(config=settings(trainer), guards=guards))
    trainer.train(resume_from_checkpoint=resume and resume.path)
    return trainer, begun


def launched(seed, guards=(GUARD,), rate=3e-4):
    """Each start of a training until no guard wants another one: what was resumed, where it began, where it ended."""
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "docs")]
    starts, resume = [], None
    with TemporaryDirectory() as folder:
        while True:
            trainer, begun = train(folder, seed=seed, guards=guards, rate=rate, resume=resume)
            starts.append((resume, begun, trainer.state.global_step))
            if (resume := resume_from(folder)) is None:
                break
            rate /= 10
    return starts, import_module("guards_trl").probed(trainer.model.eval(), import_module("language").task)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        starts, with_launcher = launched(number)
        _, without = launched(number, guards=())
        ends = [(resume.step if resume else 0, end) for resume, _, end in starts]
        line = f"seed {number}: with {with_launcher:.3f}, without {without:.3f}; starts and ends {ends}\n"
        sys.stdout.write(line)
        sys.stdout.flush()
