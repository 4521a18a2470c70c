"""What people do with a Trainer that nobody meant: attached twice or too late, evaluated alone, made anew, upgraded."""

import json

import pytest
import torch
import transformers
from tracker_diag_transformers import attach
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import tracker_diag as td
from tracker_diag.testing import CapturingTracker

transformers.utils.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

STEPS = 4


def make(folder, *callbacks, **changes):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=1))
    ids = torch.randint(0, 40, (64, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    settings = {
        "output_dir": str(folder), "max_steps": STEPS, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "no", "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 1e-3,
    }  # fmt: skip
    arguments = TrainingArguments(**settings | changes)
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[*callbacks])


def weights(trainer):
    return torch.cat([one.detach().flatten() for one in trainer.model.parameters()])


def test_attached_twice_it_is_watched_once(tmp_path):
    trainer = make(tmp_path)
    monitor = attach(trainer, monitor=td.Monitor([kept := CapturingTracker()]))
    assert attach(trainer) is monitor
    assert attach(trainer, monitor=monitor) is monitor
    with pytest.raises(td.DiagError, match="monitor: another one given"):
        attach(trainer, monitor=td.Monitor())
    trainer.train()
    assert sorted(kept.own) == [*range(1, STEPS + 1)]
    assert sum(type(one).__module__.startswith("tracker_diag") for one in trainer.callback_handler.callbacks) == 1
    assert monitor.failures == []


def test_attached_again_after_a_training_the_next_one_is_watched_by_another(tmp_path):
    trainer = make(tmp_path)
    first = attach(trainer)
    trainer.train()
    second = attach(trainer)
    trainer.train()
    assert second is not first
    assert (first.summary().steps, second.summary().steps) == (STEPS, STEPS)
    assert first.failures == second.failures == []


class Late(TrainerCallback):
    """Attaches amid training, from within a callback, and counts how often it is called itself."""

    def __init__(self):
        self.monitor, self.trainer, self.called = None, None, 0

    def on_step_end(self, args, state, control, **kwargs):
        self.called += 1
        if state.global_step == 2:
            self.monitor = attach(self.trainer)


def test_attached_after_training_has_begun_the_rows_from_then_on_are_heard(tmp_path):
    late = Late()
    late.trainer = trainer = make(tmp_path, late)
    trainer.train()
    plain = make(tmp_path)
    plain.train()
    assert late.called == STEPS
    summary = late.monitor.summary()
    assert (summary.first_step, summary.last_step) == (2, STEPS)  # the row of a step comes after its end
    assert late.monitor.failures == []
    assert torch.equal(weights(trainer), weights(plain))


def test_a_trainer_that_is_made_anew_has_a_run_of_its_own(tmp_path):
    monitors, trainers = [], []
    for _ in range(2):
        trainers.append(make(tmp_path))
        monitors.append(attach(trainers[-1]))
        trainers[-1].train()
    assert monitors[0] is not monitors[1]
    assert [one.summary().steps for one in monitors] == [STEPS, STEPS]
    assert torch.equal(*map(weights, trainers))


def test_an_evaluation_alone_is_as_without_us_and_its_row_is_heard(tmp_path):
    def measured(trainer):
        return {name: value for name, value in trainer.evaluate().items() if name == "eval_loss"}

    trainer = make(tmp_path)
    monitor = attach(trainer, monitor=td.Monitor([kept := CapturingTracker()]))
    assert measured(trainer) == measured(make(tmp_path))
    assert kept.own[0]["eval_loss"] == measured(make(tmp_path))["eval_loss"]
    trainer.train()  # and a training after it
    assert sorted(kept.own) == [*range(STEPS + 1)]
    assert monitor.failures == []


def test_of_a_framework_that_was_upgraded_under_a_saved_state_it_is_said_and_it_goes_on(tmp_path, caplog):
    saves = {"save_strategy": "steps", "save_steps": 2}
    first = make(tmp_path, **saves)
    attach(first)
    first.train()
    file = tmp_path / "checkpoint-2" / "tracker_diag_0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"framework_release": "4.0"}))
    again = make(tmp_path, **saves)
    monitor = attach(again)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (said,) = [one for one in caplog.messages if "the state of the diagnostics is of" in one]
    assert f"is of transformers 4.0, and this is {transformers.__version__}" in said
    assert (monitor.summary().first_step, monitor.summary().last_step) == (1, STEPS)
    assert monitor.failures == []
    assert torch.equal(weights(first), weights(again))
