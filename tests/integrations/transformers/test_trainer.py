"""A plain Trainer of transformers on a tiny model, with the findings read from the MLflow run that it starts itself."""

import json

import mlflow
import pytest
import torch
import transformers
import wandb
from tracker_diag_transformers import DiagnosticsCallback, attach
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import tracker_diag as td
from tracker_diag.testing import CapturingTracker

transformers.utils.logging.set_verbosity_error()

pytestmark = pytest.mark.slow


class Breaks(TrainerCallback):
    """Puts NaN into a weight after some steps, as a bad kernel would."""

    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.at:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))


def rows():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 40, (64, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def make(folder, *, steps=12, callbacks=(), **changes):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=1))
    arguments = {
        "output_dir": str(folder), "max_steps": steps, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "no", "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 1e-3,
    }  # fmt: skip
    return Trainer(
        model, TrainingArguments(**(arguments | changes)), train_dataset=rows(), eval_dataset=rows()[:8],
        callbacks=list(callbacks),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_breaks_is_found_in_the_run_that_the_trainer_starts_and_ends(tmp_path, mlflow_store):
    trainer = make(tmp_path, callbacks=[Breaks(6)], report_to="mlflow", run_name="plain")
    monitor = attach(trainer)
    open_at_close = []
    close = monitor.close
    monitor.close = lambda: (open_at_close.append(mlflow.active_run() is not None), close())[1]
    trainer.train()
    assert monitor.failures == []
    assert open_at_close == [True]  # written before the Trainer ends its run
    assert mlflow.active_run() is None
    run = mlflow.search_runs(search_all_experiments=True, output_format="list")[0]
    found = json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/diag/findings.json"))["findings"]
    (nan,) = [finding for finding in found if finding["rule"] == "NUM004"]
    assert nan["fired"] == 7
    assert run.data.tags["diag.alert.state"] == "error"
    assert run.info.status == "FINISHED"


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.matrix("transformers", "run for real")
def test_what_breaks_is_found_in_every_tracker_of_the_trainer_and_told_to_people(
    tmp_path, monkeypatch, mlflow_store, alerted, receive
):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "curves"))
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    trainer = make(tmp_path, callbacks=[Breaks(6)], report_to=trackers, project=alerted.project)
    assert attach(trainer).failures == []
    trainer.train()
    wandb.finish()
    assert alerted("NUM004") == {*trackers, "webhook"}
    assert [told["level"] for told in receive.state.got] == ["error"]


@pytest.mark.matrix("transformers", "run for real")
def test_without_a_tracker_it_is_found_in_files(tmp_path, alerted):
    trainer = make(tmp_path, callbacks=[Breaks(6)])
    attach(trainer)
    trainer.train()
    assert alerted("NUM004") == {"jsonl", "webhook"}


def test_it_hears_each_log_with_its_step_and_evaluations_too(tmp_path):
    backend = CapturingTracker()
    trainer = make(tmp_path, eval_strategy="steps", eval_steps=6)
    attach(trainer, monitor=td.Monitor([backend]))
    trainer.train()
    assert sorted(backend.own) == list(range(1, 13))
    assert {"loss", "grad_norm", "learning_rate"} <= set(backend.own[3])
    assert [step for step, row in backend.own.items() if "eval_loss" in row] == [6, 12]


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
    told = {*monitor.summary().blind, *monitor.summary().healthy}
    assert "SFT003" in told
    assert "CRI001" not in told


def test_training_is_the_same_with_and_without(tmp_path):
    def trained(watched):
        trainer = make(tmp_path)
        if watched:
            attach(trainer)
        trainer.train()
        rows = [{k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k} for row in
                trainer.state.log_history]  # fmt: skip
        return rows, [p.detach().clone() for p in trainer.model.parameters()]

    (plain, before), (watched, after) = trained(watched=False), trained(watched=True)
    assert plain == watched
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_as_a_callback_of_its_own_and_for_a_second_training(tmp_path):
    callback = DiagnosticsCallback()
    trainer = make(tmp_path, steps=3, callbacks=[callback])
    trainer.train()
    first = callback.monitor
    assert first.summary().last_step == 3
    trainer.train()
    assert callback.monitor is not first
    assert first.summary().steps == 3


def test_a_loss_may_hand_over_tensors(tmp_path, make_batch, rng):
    class Own(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            monitor.observe(**make_batch(rng, pairs=("policy",)))
            return super().compute_loss(model, inputs, *args, **kwargs)

    backend = CapturingTracker()
    trainer = make(tmp_path, steps=3)
    trainer.__class__ = Own
    monitor = attach(trainer, monitor=td.Monitor([backend], window=1))
    trainer.train()
    assert backend.scalars(2)["diag/policy/text_only/count"] > 500


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_resumed_trainer_goes_on_where_its_checkpoint_was_made(tmp_path):
    saves = {"save_strategy": "steps", "save_steps": 4}
    attach(first := make(tmp_path, steps=4, **saves))
    first.train()
    monitor = attach(again := make(tmp_path, steps=9, **saves))
    again.train(resume_from_checkpoint=True)
    assert monitor.failures == []
    summary = monitor.summary()
    assert (summary.steps, summary.first_step, summary.last_step) == (9, 1, 9)
