"""Whatever the callback touches of a Trainer may be gone or raise: training is as without us."""

import tempfile
from functools import cache

import pytest
import torch
import transformers
from tracker_diag_transformers import attach, checkpoint, guarded
from tracker_diag_transformers import trainer as of_trainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

transformers.utils.logging.set_verbosity_error()

pytestmark = pytest.mark.slow

STEPS = 3

TOUCHED = {
    # What is touched in training, and whether metrics are heard without it; the rest is guards, resuming, settings.
    (TrainerState, "global_step"): False,
    (TrainerState, "is_world_process_zero"): True,
    (TrainerState, "max_steps"): True,
    (TrainerState, "logging_steps"): True,
    (TrainerControl, "should_save"): True,
    (TrainerControl, "should_evaluate"): True,
    (TrainerControl, "should_training_stop"): True,
    (TrainingArguments, "output_dir"): True,
    (TrainingArguments, "process_index"): True,
    (TrainingArguments, "logging_strategy"): True,
    (TrainingArguments, "to_sanitized_dict"): True,
    (CallbackHandler, "callbacks"): True,
    (GPT2LMHeadModel, "config"): True,
    (Trainer, "callback_handler"): True,
    (Trainer, "eval_dataset"): True,
    (Trainer, "is_deepspeed_enabled"): True,
    (torch.optim.AdamW, "register_step_pre_hook"): True,
}

OPTIONAL = {"config", "eval_dataset", "is_deepspeed_enabled", "register_step_pre_hook"}
"""What not each Trainer, model or optimiser has: where it is not there, nothing is said. That it raises is said."""


def make(folder):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=1))
    ids = torch.randint(0, 40, (64, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, logging_steps=1, report_to="none", disable_tqdm=True, save_steps=2,
        save_strategy="steps", per_device_train_batch_size=4, use_cpu=True, learning_rate=1e-3,
    )  # fmt: skip
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])


def trained(trainer):
    trainer.train()
    assert trainer.state.global_step == STEPS
    return torch.cat([one.detach().flatten() for one in trainer.model.parameters()])


@cache
def plain():
    return trained(make(tempfile.mkdtemp()))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("not in this release")], ids=["gone", "raises"])
@pytest.mark.parametrize("touched", TOUCHED, ids=lambda one: f"{one[0].__name__}.{one[1]}")
def test_whatever_is_gone_in_training_costs_its_own_part(tmp_path, without, caplog, touched, error):
    expected, (kind, name) = plain(), touched
    trainer = make(tmp_path)
    monitor = attach(trainer)
    without.during([of_trainer.DiagnosticsCallback, guarded.Guarded], kind, name, error)
    assert torch.equal(trained(trainer), expected)
    if name in OPTIONAL and isinstance(error, AttributeError):
        assert not [one for one in caplog.messages if "gone" in one]
    else:
        without.told(caplog.messages)
    assert monitor.summary().steps == (STEPS if TOUCHED[touched] else 0)


def test_without_a_place_for_callbacks_it_is_told_once_and_nothing_is_watched(tmp_path, without, caplog):
    trainer = make(tmp_path)
    monitor = without(trainer, "callback_handler", lambda: attach(trainer))
    assert torch.equal(trained(trainer), plain())
    without.told_once(caplog.messages)
    assert monitor.summary().steps == 0


def test_contract_a_checkpoint_lies_where_we_look_for_it(tmp_path):
    trainer = make(tmp_path)
    trained(trainer)
    trainer.state.global_step = 2
    assert checkpoint.folder_of(trainer.args, trainer.state).is_dir()
