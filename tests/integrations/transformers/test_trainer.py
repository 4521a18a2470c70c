"""A plain Trainer of transformers on a tiny model."""

import tempfile
from functools import cache

import pytest
import torch
import wandb
from tracker_diag_transformers import DiagnosticsCallback, attach, checkpoint, guarded
from tracker_diag_transformers import trainer as of_trainer
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

import tracker_diag as td
from tests.integrations.conformance import METRICS, SameWithUs, SurvivesWhatBreaks, WatchedOnce
from tests.integrations.transformers.made import Breaks, make, weights
from tracker_diag.testing import CapturingTracker

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

KINDS = (TrainerState, TrainerControl, TrainingArguments, CallbackHandler, GPT2LMHeadModel, Trainer, torch.optim.AdamW)


def trained(trainer):
    trainer.train()
    return weights(trainer), [row["loss"] for row in trainer.state.log_history if "loss" in row]


@cache
def plain():
    return trained(make(tempfile.mkdtemp(), steps=3))


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
        return make(self.path, steps=3, save_strategy="steps", save_steps=2)

    def attach(self, training, monitor=None):
        self.monitor = attach(training, monitor=monitor)
        return self.monitor

    def train(self, training):
        return trained(training)

    def plain(self):
        return plain()

    def ours(self):
        return [of_trainer.Watching, of_trainer.DiagnosticsCallback, guarded.Guarded]

    def owner(self, kind):
        return {known.__name__: known for known in KINDS}[kind]

    def lost(self, training):
        return set() if self.monitor.summary().steps == 3 else {METRICS}


def test_without_a_place_for_callbacks_it_is_reported_once_and_nothing_is_watched(tmp_path, without, caplog):
    trainer = make(tmp_path, steps=3)
    monitor = without(trainer, "callback_handler", lambda: attach(trainer))
    assert torch.equal(trained(trainer)[0], plain()[0])
    without.reported_once(caplog.messages)
    assert monitor.summary().steps == 0


@pytest.mark.nightly
@pytest.mark.matrix("transformers", "run for real")
def test_findings_reach_every_tracker(tmp_path, places, alerted, receive):
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    trainer = make(tmp_path, Breaks(6), report_to=trackers, project=alerted.project)
    assert attach(trainer).failures == []
    trainer.train()
    wandb.finish()
    assert alerted("NUM004") == {*trackers, "webhook"}
    assert [messages["level"] for messages in receive.state.got] == ["error"]


@pytest.mark.matrix("transformers", "run for real")
def test_without_a_tracker_it_is_found_in_files(tmp_path, alerted):
    trainer = make(tmp_path, Breaks(6))
    attach(trainer)
    trainer.train()
    assert alerted("NUM004") == {"jsonl", "webhook"}


def test_it_hears_each_log_with_its_step_and_evaluations_too(tmp_path):
    trainer = make(tmp_path, eval_strategy="steps", eval_steps=6)
    attach(trainer, monitor=td.Monitor([kept := CapturingTracker()]))
    trainer.train()
    assert sorted(kept.own) == list(range(1, 13))
    assert {"loss", "grad_norm", "learning_rate"} <= set(kept.own[3])
    assert [step for step, row in kept.own.items() if "eval_loss" in row] == [6, 12]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "rows"),
    [({}, 12), ({"logging_steps": 5}, 3), ({"logging_steps": 0.25}, 4), ({"logging_strategy": "no"}, None),
     ({"logging_strategy": "epoch", "max_steps": -1, "num_train_epochs": 2}, 2)],
)  # fmt: skip
def test_the_monitor_knows_how_many_rows_are_to_come(tmp_path, changes, rows):
    trainer = make(tmp_path, **changes)
    monitor = attach(trainer)
    trainer.train()
    assert monitor.state_dict()["rows"] == rows


def test_the_rules_know_settings_and_that_it_is_supervised(tmp_path):
    trainer = make(tmp_path, hub_token="hf_not_a_real_one")  # noqa: S106
    monitor = attach(trainer)
    trainer.train()
    assert monitor.config["learning_rate"] == 1e-3
    assert monitor.config["model.vocab_size"] == 40
    assert not [value for value in monitor.config.values() if "hf_not" in str(value)]
    messages = {*monitor.summary().blind, *monitor.summary().healthy}
    assert "SFT003" in messages
    assert "CRI001" not in messages


@pytest.mark.nightly
def test_as_a_callback_of_its_own_and_for_a_second_training(tmp_path):
    callback = DiagnosticsCallback()
    trainer = make(tmp_path, callback, steps=3)
    trainer.train()
    first = callback.monitor
    assert first.summary().last_step == 3
    trainer.train()
    assert callback.monitor is not first
    assert first.summary().steps == 3


@pytest.mark.nightly
def test_a_loss_may_hand_over_tensors(tmp_path, make_batch, rng):
    class Own(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            monitor.observe(**make_batch(rng, pairs=("policy",)))
            return super().compute_loss(model, inputs, *args, **kwargs)

    backend = CapturingTracker()
    trainer = make(tmp_path, steps=3, kind=Own)
    monitor = attach(trainer, monitor=td.Monitor([backend], window=1))
    trainer.train()
    assert backend.scalars(2)["diag/policy/text_only/count"] > 500


def test_a_resumed_trainer_continues_where_its_checkpoint_was_made(tmp_path):
    saves = {"save_strategy": "steps", "save_steps": 4}
    attach(first := make(tmp_path, steps=4, **saves))
    first.train()
    monitor = attach(again := make(tmp_path, steps=9, **saves))
    again.train(resume_from_checkpoint=True)
    assert monitor.failures == []
    summary = monitor.summary()
    assert (summary.steps, summary.first_step, summary.last_step) == (9, 1, 9)


class Late(TrainerCallback):
    """Attaches amid training, from within a callback, and counts how often it is called itself."""

    def __init__(self):
        self.monitor, self.trainer, self.called = None, None, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.called += 1
        if state.global_step == 2:
            self.monitor = attach(self.trainer)


@pytest.mark.nightly
def test_attached_after_training_has_begun_the_rows_from_then_on_are_heard(tmp_path):
    late = Late()
    late.trainer = trainer = make(tmp_path, late, steps=3)
    assert torch.equal(trained(trainer)[0], plain()[0])
    assert late.called == 3
    summary = late.monitor.summary()
    assert (summary.first_step, summary.last_step) == (2, 3)  # the row of a step comes after its end
    assert late.monitor.failures == []


def test_an_evaluation_alone_is_as_without_us_and_its_row_is_heard(tmp_path):
    def measured(trainer):
        return {name: value for name, value in trainer.evaluate().items() if name == "eval_loss"}

    trainer = make(tmp_path, steps=3)
    monitor = attach(trainer, monitor=td.Monitor([kept := CapturingTracker()]))
    assert measured(trainer) == measured(make(tmp_path, steps=3))
    assert kept.own[0]["eval_loss"] == measured(make(tmp_path, steps=3))["eval_loss"]
    trainer.train()  # and a training after it
    assert sorted(kept.own) == [*range(4)]
    assert monitor.failures == []


def test_contract_a_checkpoint_is_where_we_look_for_it(tmp_path):
    trainer = make(tmp_path, steps=2, save_strategy="steps", save_steps=2)
    trained(trainer)
    assert checkpoint.folder_of(trainer.args, trainer.state).is_dir()
