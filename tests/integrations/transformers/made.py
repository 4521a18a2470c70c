"""A Trainer with a model of two thousand parameters."""

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

transformers.utils.logging.set_verbosity_error()


class Breaks(TrainerCallback):
    """Multiplies the weights after some steps, by NaN as a bad kernel would; and keeps what was done."""

    def __init__(self, at, by=float("nan")):
        self.at, self.by, self.weights, self.evaluated = at, by, {}, []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.at:
            with torch.no_grad():
                next(model.parameters()).mul_(self.by)
        self.weights[state.global_step] = [parameter.detach().clone() for parameter in model.parameters()]

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluated.append(state.global_step)


def make(folder, *callbacks, steps=12, kind=Trainer, **changes):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=1))
    ids = torch.randint(0, 40, (64, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    settings = {
        "output_dir": str(folder), "max_steps": steps, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "no", "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 1e-3,
    }  # fmt: skip
    arguments = TrainingArguments(**settings | changes)
    return kind(model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[*callbacks])


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
