"""A loop with Accelerate and its own trackers, with the findings read from the MLflow run that it starts."""

import json

import mlflow
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tracker_diag_transformers import attach
from tracker_diag_transformers.loop import DiagTracker

import tracker_diag as td
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh():
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def loop(accelerator, monitor, make_batch, rng, *, steps, grow_from=None):
    """A training loop as a person writes it; its tail after tool results may be made to grow."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(steps):
        loss = model(torch.ones(2, 4)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        grown = 1.0 if grow_from is None else min(1.04 ** max(step - grow_from, 0), 12)
        monitor.observe(**make_batch(rng, post=0.03 * grown, text=0.03, pairs=("policy",)))
        accelerator.log({"loss": loss.item(), "reward": 0.5}, step=step)
    accelerator.end_training()


def test_attached_twice_it_is_one_monitor(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run")
    monitor = attach(accelerator)
    assert attach(accelerator) is monitor
    assert sum(isinstance(tracker, DiagTracker) for tracker in accelerator.trackers) == 1
    accelerator.end_training()


@pytest.mark.nightly
@pytest.mark.matrix("accelerate", "run for real")
def test_a_tail_that_grows_is_found_in_the_runs_that_accelerate_starts_and_ends(
    tmp_path, mlflow_store, alerted, make_batch, rng
):
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    accelerator = Accelerator(cpu=True, log_with=trackers, project_dir=tmp_path)
    settings = {"learning_rate": 0.01, "algorithm": "grpo"}
    accelerator.init_trackers(alerted.project, config=settings)
    run_id = mlflow.active_run().info.run_id
    monitor = attach(accelerator, config=settings)
    loop(accelerator, monitor, make_batch, rng, steps=110, grow_from=70)
    assert monitor.failures == []
    assert monitor.config["algorithm"] == "grpo"
    run = mlflow.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["reward"] == 0.5
    findings = json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/diag/findings.json"))["findings"]
    (tail,) = [finding for finding in findings if finding["rule"] == "POL001"]
    assert tail["slice"] == "post_tool"
    assert run.data.tags["diag.first_break"].startswith("after tool results @")
    assert alerted("POL001") == {*trackers, "webhook"}
    # The other tracker has its own rows, and nothing else.
    events = EventAccumulator(str(tmp_path / alerted.project))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["loss", "reward"]
    assert [event.step for event in events.Scalars("loss")] == list(range(110))


@pytest.mark.matrix("accelerate", "run for real")
def test_without_a_tracker_a_loss_that_is_nan_is_found_in_files(alerted):
    accelerator = Accelerator(cpu=True)
    accelerator.init_trackers("project")
    attach(accelerator)
    for step in range(4):
        accelerator.log({"loss": float("nan") if step else 1.0}, step=step)
    accelerator.end_training()
    assert alerted("NUM004") == {"jsonl", "webhook"}


@pytest.mark.nightly
def test_a_loop_that_loads_its_state_continues_with_that_of_the_diagnostics(tmp_path, caplog):
    def begin(monitor):
        accelerator = Accelerator(cpu=True)
        accelerator.init_trackers("project")
        attach(accelerator, monitor=monitor)
        return accelerator

    first = begin(td.Monitor())
    for step in range(5):
        first.log({"loss": 1.0}, step=step)
    first.save_state(str(tmp_path))
    first.end_training()
    for kept in (True, False):
        again = td.Monitor()
        accelerator = begin(again)
        accelerator.load_state(str(tmp_path))
        assert again.step == (4 if kept else None)
        assert caplog.text.count("run start over") == (not kept)
        accelerator.end_training()
        (tmp_path / "tracker_diag_0.json").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["register_save_state_pre_hook", "register_load_state_pre_hook"])
def test_whatever_is_gone_of_accelerate_is_reported_once_and_the_loop_continues(without, caplog, name):
    accelerator, monitor = Accelerator(cpu=True), td.Monitor()
    accelerator.init_trackers("project")
    without(Accelerator, name, lambda: attach(accelerator, monitor=monitor))
    accelerator.log({"loss": 1.0}, step=3)
    without.reported_once(caplog.messages)
    assert monitor.step == 3
    accelerator.end_training()


def test_it_hears_a_loop_without_steps_and_without_other_trackers(tmp_path):
    backend = CapturingTracker()
    accelerator = Accelerator(cpu=True)
    accelerator.init_trackers("project")
    attach(accelerator, monitor=td.Monitor([backend]))
    for _ in range(3):
        accelerator.log({"loss": 1.0})
    accelerator.end_training()
    assert backend.own == {0: {"loss": 1.0}, 1: {"loss": 1.0}, 2: {"loss": 1.0}}
    assert backend.summary is not None
