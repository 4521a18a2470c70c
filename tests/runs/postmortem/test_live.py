import json

import pytest

from tracker_diag import Guard, Monitor, Rule, wrap
from tracker_diag.attach.kit import add_active
from tracker_diag.runs.postmortem.live import leave_one
from tracker_diag.tensors.suspicions import SETTLED
from tracker_diag.testing import CapturingTracker, example_batch
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.tracker import File

pytestmark = pytest.mark.slow

SECRET = "hf_thisIsNotForAnyone"  # noqa: S105


class Logger:
    def log(self, data, step=None):
        pass


class Files(CapturingTracker):
    """Takes no file after the end."""

    def write(self, step, entries, at):
        assert self.summary is None or not any(isinstance(entry, File) for entry in entries)
        super().write(step, entries, at)


def raised(message):
    return pytest.raises(ValueError, match=message)


def train(run, steps):
    for step in range(steps):
        run.log({"reward": 0.5}, step=step)


def test_the_context_record_goes_to_the_trackers_once_settings_are_there(journals):
    files = Files()
    run = wrap(Logger(), also=[files], config={"trainer": {"seed": 3}, "hub.token": SECRET})
    train(run, SETTLED - 1)
    assert files.files == {}
    run.diag.config = {**run.diag.config, "late": f"with {SECRET}"}
    train(run, SETTLED + 1)
    output = json.loads(files.files["context.json"])
    assert output["config"] == {"trainer.seed": 3, "hub.token": "***", "late": "with ***"}
    assert output["seed"] == {"trainer.seed": 3}
    run.diag.close()
    assert set(files.files) == {"context.json"}
    assert not (journals / "postmortem").exists()


def test_a_short_run_has_its_context_record_at_the_end():
    files = Files()
    run = wrap(Logger(), also=[files], config={"seed": 3})
    train(run, 1)
    run.diag.close()
    assert json.loads(files.files["context.json"])["seed"] == {"seed": 3}


def test_what_is_missing_is_said_once_in_one_line(capsys):
    run = wrap(Logger(), config={"seed": 3})
    train(run, 20)
    run.diag.close()
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("to repeat this run, its record lacks") == 1
    assert "lacks the data splits (`data_splits`), the evaluation command (`evaluation_command`)" in output


@pytest.mark.nightly
def test_settings_that_are_given_stand_next_to_those_of_the_tracker(mlflow_store):
    import mlflow

    with mlflow.start_run():
        mlflow.log_params({"lr": 1e-6, "seed": 3})
        run = wrap(mlflow, config={"seed": 4, "evaluation_command": "evaluate"})
        assert run.diag.config == {"lr": "1e-06", "seed": 4, "evaluation_command": "evaluate"}


def test_an_exception_in_the_block_of_the_run_is_in_every_place(journals, tmp_path):
    files = Files()
    with raised("stop here"), Monitor([files, JsonlTracker(tmp_path / "out")]) as monitor:
        leave_one(monitor)
        leave_one(monitor)  # once is enough
        for step in range(80):
            monitor.observe(**example_batch(step))
            monitor.log({"reward": 0.5}, step)
        monitor.rebaseline("new tool")
        monitor.log({}, 80)
        raise ValueError("stop here")
    (place,) = (journals / "postmortem").iterdir()
    there = {f"postmortem/{file.name}": file.read_text() for file in place.iterdir()}
    assert {name: text for name, text in files.files.items() if name.startswith("postmortem/")} == there
    assert (tmp_path / "out/postmortem/README.md").read_text() == there["postmortem/README.md"]
    assert "- step 80: new baseline: new tool" in there["postmortem/README.md"]
    assert 'raise ValueError("stop here")' in there["postmortem/traceback.txt"]


def test_no_token_and_no_text_is_in_it_unless_asked_for(journals):
    with raised("stop"), Monitor() as monitor:
        leave_one(monitor)
        for step in range(100):
            ids = (example_batch(step)["logprobs"] * 0 + 424_242).astype(int)
            monitor.observe(token_ids=ids, **example_batch(step))
            monitor.log({}, step)
        raise ValueError("stop")
    (place,) = (journals / "postmortem").iterdir()
    assert json.loads((place / "worst_sequences.json").read_text())["data"]
    assert all("424242" not in file.read_text() for file in place.iterdir())


def test_a_disk_that_takes_nothing_is_counted_and_the_run_ends_well(journals, caplog):
    (journals / "postmortem").write_text("a file where the folder should be")
    seen = CapturingTracker()
    with raised("stop"), Monitor([seen]) as monitor:
        leave_one(monitor)
        monitor.log({"reward": 0.5}, 0)
        raise ValueError("stop")
    assert monitor.health["tracker_errors"] == 1
    assert seen.summary is not None
    assert "postmortem" in caplog.text


@pytest.mark.nightly
def test_integrations_leave_one_as_well(tmp_path, journals):
    from torch.utils.tensorboard import SummaryWriter

    monitor = Monitor()
    with SummaryWriter(tmp_path) as writer:
        assert add_active(monitor, writer, sees={})
        assert [tracker.name for tracker in monitor.trackers] == ["tensorboard"]
        monitor.log({"loss": float("nan")}, 0)
        monitor.close()
    (place,) = (journals / "postmortem").iterdir()
    assert json.loads((place / "postmortem.json").read_text())["ended"][0]["cause"] == "nan"


def test_a_guard_that_stops_training_begins_the_postmortem(journals):
    low = {
        "id": "ACM001", "title": "Reward is low", "summary": "reward is {low.value:.3g}", "when": ["low"],
        "signals": {"low": {"kind": "threshold", "series": {"metric": "reward"}, "below": 0.6}},
    }  # fmt: skip
    guards = [Guard(do="stop_training", act=True)]
    run = wrap(Logger(), also=[Files()], rules=[Rule.model_validate(low)], catalog=False, guards=guards)
    train(run, 3)
    assert run.diag.decide().stop == "training"
    run.diag.close()
    (page,) = (journals / "postmortem").rglob("README.md")
    assert "guard stop_training: stop training; for ACM001" in page.read_text()
