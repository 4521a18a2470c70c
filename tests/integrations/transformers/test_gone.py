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

from tests.integrations.conformance import METRICS, SameWithUs, SurvivesWhatBreaks, WatchedOnce

transformers.utils.logging.set_verbosity_error()

pytestmark = pytest.mark.slow

STEPS = 3
KINDS = (TrainerState, TrainerControl, TrainingArguments, CallbackHandler, GPT2LMHeadModel, Trainer, torch.optim.AdamW)


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
class TestConformance(SameWithUs, WatchedOnce, SurvivesWhatBreaks):
    STEPS = [1, 2, 3]
    # All but the step is for guards, resuming and settings.
    TOUCHED = {"TrainerState.global_step": {METRICS}} | {
        touched: set()
        for touched in (
            "TrainerState.is_world_process_zero", "TrainerState.max_steps", "TrainerState.logging_steps",
            "TrainerControl.should_save", "TrainerControl.should_evaluate", "TrainerControl.should_training_stop",
            "TrainingArguments.output_dir", "TrainingArguments.process_index", "TrainingArguments.logging_strategy",
            "TrainingArguments.to_sanitized_dict", "CallbackHandler.callbacks", "GPT2LMHeadModel.config",
            "Trainer.callback_handler", "Trainer.eval_dataset", "Trainer.is_deepspeed_enabled",
            "AdamW.register_step_pre_hook",
        )
    }  # fmt: skip
    OPTIONAL = {"GPT2LMHeadModel.config", "Trainer.eval_dataset", "Trainer.is_deepspeed_enabled",
                "AdamW.register_step_pre_hook"}  # fmt: skip
    BY_DAY = {"TrainerState.global_step", "Trainer.eval_dataset"}

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    def make(self):
        return make(self.path)

    def attach(self, training, monitor=None):
        self.monitor = attach(training, monitor=monitor)
        return self.monitor

    def train(self, training):
        return trained(training)

    def plain(self):
        return plain()

    def ours(self):
        return [of_trainer.DiagnosticsCallback, guarded.Guarded]

    def owner(self, kind):
        return {known.__name__: known for known in KINDS}[kind]

    def lost(self, training):
        return set() if self.monitor.summary().steps == STEPS else {METRICS}


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
