"""Lightning with its real Trainer; findings are read from a real MLflow run, which its own logger writes."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import mlflow
import numpy as np
import pytest
import torch
import trackio
import wandb
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset
from tracker_diag_lightning import DiagnosticsCallback, attach
from tracker_diag_lightning import callback as of_callback

import tracker_diag as td
from tests.examples.test_launcher import hashed
from tests.integrations.conformance import METRICS, SameWithUs, SurvivesWhatBreaks, WatchedOnce, same
from tracker_diag.attach.resume import resume_from
from tracker_diag.guards.checkpoints import MANIFEST
from tracker_diag.testing import CapturingTracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's, of torch
]

ROOT = Path(__file__).parents[3]


class Agent(pl.LightningModule):
    """Regresses on noise; what it hands over comes from a generator of its own, with a tail that may grow."""

    def __init__(self, make_batch=None, grow_from=None, nan_from=None, rate=0.01, gain=0.0):
        super().__init__()
        self.save_hyperparameters("rate")
        self.layer = torch.nn.Linear(4, 1)
        self.make_batch, self.grow_from, self.nan_from, self.gain = make_batch, grow_from, nan_from, gain
        self.numbers = np.random.default_rng(0)

    def training_step(self, batch, batch_idx):
        step = self.global_step
        if self.make_batch is not None:
            grown = 1.0 if self.grow_from is None else 1.04 ** max(step - self.grow_from, 0)
            arrays = self.make_batch(self.numbers, post=0.03 * min(grown, 12), text=0.03, pairs=("policy",))
            self.trainer.diag.observe(**{name: torch.from_numpy(value) for name, value in arrays.items()})
        loss = self.layer(batch[0]).square().mean()
        if self.nan_from is not None and step >= self.nan_from:
            loss = loss * float("nan")
        self.log("train_loss", loss)
        self.log("reward", 0.5 + self.gain * step)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])


def loader(batches):
    return DataLoader(TensorDataset(torch.randn(batches, 4, generator=torch.Generator().manual_seed(1))), batch_size=1)


def trainer(tmp_path, callbacks, *, logger=False, steps=6, every=1, kind=pl, **more):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return kind.Trainer(
        callbacks=callbacks, logger=logger, max_steps=steps, log_every_n_steps=every, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        **({"enable_checkpointing": False, "num_sanity_val_steps": 0} | more),
    )  # fmt: skip


def test_what_happens_in_training_is_in_the_mlflow_run_before_that_is_ended(tmp_path, mlflow_store):
    """A loss that becomes NaN, and then an exception."""

    class Breaks(Agent):
        def training_step(self, batch, batch_idx):
            if batch_idx == 16:
                raise RuntimeError("out of memory")
            return super().training_step(batch, batch_idx)

    logger = MLFlowLogger("lightning", tracking_uri=mlflow_store)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer(tmp_path, [DiagnosticsCallback()], logger=logger, steps=20).fit(Breaks(nan_from=12), loader(20))
    run = mlflow.get_run(logger.run_id)
    findings = json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/diag/findings.json"))["findings"]
    assert [finding["fired"] for finding in findings if finding["rule"] == "NUM004"] == [12]
    assert (run.info.status, run.data.tags["diag.alert.state"]) == ("FAILED", "error")


@pytest.mark.nightly
@pytest.mark.matrix("lightning", "run for real")
def test_it_is_found_in_every_tracker_that_lightning_logs_to(tmp_path, mlflow_store, trackio_runs, alerted):
    theirs = {"project": alerted.project, "save_dir": tmp_path, "offline": True}
    loggers = [TensorBoardLogger(tmp_path), MLFlowLogger("lightning", tracking_uri=mlflow_store), WandbLogger(**theirs)]
    trackio_runs.start()  # Lightning has no logger for it
    alerted.ours.add("trackio")
    callback = DiagnosticsCallback()
    trainer(tmp_path, [callback], logger=loggers, steps=20).fit(Agent(nan_from=12), loader(20))
    assert callback.monitor.failures == []
    wandb.finish()
    trackio.finish()
    assert alerted("NUM004") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}


@pytest.mark.matrix("lightning", "run for real")
def test_without_a_logger_it_is_found_in_files(tmp_path, alerted):
    callback = DiagnosticsCallback()
    trainer(tmp_path, [callback], steps=20).fit(Agent(nan_from=12), loader(20))
    assert callback.monitor.failures == []
    assert alerted("NUM004") == {"jsonl", "webhook"}


class TestConformance(SameWithUs, WatchedOnce, SurvivesWhatBreaks):
    STEPS = [0, 1, 2, 3]
    TOUCHED = {
        "Trainer.should_stop": set(), "Trainer.diag": set(), "Trainer.is_global_zero": set(),
        "Trainer.loggers": {METRICS}, "Trainer.estimated_stepping_batches": set(), "Trainer.log_every_n_steps": set(),
        "Trainer.ckpt_path": set(), "Trainer.default_root_dir": {METRICS}, "Trainer.world_size": set(),
    }  # fmt: skip
    BY_DAY = {"Trainer.loggers", "Trainer.is_global_zero"}

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    def make(self):
        torch.manual_seed(0)
        return Agent(), trainer(self.path, [], logger=CSVLogger(self.path), steps=4)

    def attach(self, training, monitor=None):
        return attach(training[1], monitor=monitor)

    def train(self, training):
        module, fitting = training
        fitting.fit(module, loader(4))
        rows = Path(fitting.logger.log_dir, "metrics.csv").read_text()
        return [values.detach() for values in module.parameters()], rows

    def ours(self):
        return [DiagnosticsCallback, of_callback._Listener]  # private: its calls are broken one by one

    def owner(self, kind):
        return getattr(pl, kind)

    def lost(self, training):
        (ours,) = (callback for callback in training[1].callbacks if isinstance(callback, DiagnosticsCallback))
        return set() if ours.monitor.summary().steps == 4 else {METRICS}


@pytest.mark.nightly
def test_attached_again_after_a_fit_the_monitor_is_that_of_the_next(tmp_path):
    run = trainer(tmp_path, [], steps=2)
    first = attach(run)
    run.fit(Agent(), loader(4))
    second = attach(run)
    run.fit_loop.epoch_loop.max_steps = 4
    run.fit(Agent(), loader(4))
    assert run.diag is second is not first
    assert (first.summary().steps, second.summary().steps) == (2, 2)
    run.validate(Agent(), loader(2))  # no training, nothing to close
    assert run.loggers == []


class Late(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            self.monitor = attach(trainer)


@pytest.mark.nightly
def test_attached_after_training_has_begun_it_disturbs_nothing(tmp_path):
    late, weights = Late(), []
    for callbacks in ([], [late]):
        torch.manual_seed(0)
        trainer(tmp_path, callbacks, steps=4).fit(agent := Agent(), loader(4))
        weights.append([values.detach() for values in agent.parameters()])
    assert same(*weights)
    assert late.monitor.failures == []


@pytest.mark.by_day("20-5-4")
@pytest.mark.parametrize(("steps", "every", "rows"), [(20, 1, 20), (20, 5, 4), (-1, 1, None)])
def test_the_monitor_knows_how_many_rows_are_to_come(tmp_path, steps, every, rows):
    callback = DiagnosticsCallback()
    trainer(
        tmp_path, [callback], steps=steps, every=every, max_epochs=-1, limit_train_batches=5, max_time="00:00:00:01"
    ).fit(Agent(), loader(20))
    assert callback.monitor.state_dict()["rows"] == rows


@pytest.mark.nightly
def test_rows_and_steps_are_those_of_the_other_loggers(tmp_path):
    backend = CapturingTracker()
    callback = DiagnosticsCallback(monitor=td.Monitor([backend]))
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    watched = trainer(tmp_path, [callback, LearningRateMonitor()], logger=logger, steps=6, every=2)
    watched.fit(Agent(), loader(3), loader(2))
    assert watched.loggers == [logger]  # ours is gone

    lines = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    names, rows = lines[0].split(","), {}
    for line in lines[1:]:
        cells = dict(zip(names, line.split(","), strict=True))
        rows.setdefault(int(cells["step"]), {}).update({k: float(v) for k, v in cells.items() if v and k != "step"})
    assert backend.own == {step: pytest.approx(row) for step, row in rows.items()}
    assert {"val_loss", "train_loss", "lr-SGD"} <= set(names)


@pytest.mark.nightly
def test_without_a_logger_it_is_heard_too_and_checkpoints_stay_where_they_were(tmp_path):
    backend = CapturingTracker()
    callback = DiagnosticsCallback(monitor=td.Monitor([backend]))
    kept = ModelCheckpoint(every_n_train_steps=2)
    run = trainer(tmp_path, [callback, kept], steps=4, enable_checkpointing=True)

    class Looks(Agent):
        def on_train_start(self):
            self.logger.experiment.add_scalar("theirs", 1.0)  # what a module may do with any logger
            assert self.trainer.log_dir == str(tmp_path)

    run.fit(Looks(), loader(4))
    assert sorted(backend.own) == [0, 1, 2, 3]
    assert kept.best_model_path.startswith(str(tmp_path / "checkpoints"))
    assert run.loggers == []


@pytest.mark.nightly
def test_batches_between_two_rows_add_up(tmp_path, make_batch):
    backend = CapturingTracker()
    callback = DiagnosticsCallback(monitor=td.Monitor([backend], window=1))
    trainer(tmp_path, [callback], steps=8, every=4).fit(Agent(make_batch), loader(8))
    batch = make_batch(np.random.default_rng(0))
    tokens = int(batch["model_mask"].sum())
    for step in (3, 7):
        values = backend.scalars(step)
        assert values["diag/policy/text_only/count"] + values["diag/policy/post_tool/count"] == 4 * tokens


def test_a_resumed_fit_continues_with_its_baselines_and_one_without_a_state_says_so(tmp_path, make_batch, caplog):
    def fit(steps, callback, path=None):
        made = trainer(tmp_path, [callback] if callback else [], steps=steps)
        made.fit(Agent(make_batch if callback else None), loader(20), ckpt_path=path)
        made.save_checkpoint(tmp_path / "saved.ckpt")
        return tmp_path / "saved.ckpt"

    first, second, without = (td.Monitor() for _ in range(3))
    file = fit(6, DiagnosticsCallback(monitor=first))
    with caplog.at_level("WARNING", logger="tracker_diag"):
        fit(10, DiagnosticsCallback(monitor=second), file)
        assert not [message for message in caplog.messages if "start over" in message]
        fit(10, DiagnosticsCallback(monitor=without), fit(6, None))
    assert [message for message in caplog.messages if "start over" in message]
    assert first.failures == second.failures == without.failures == []
    assert second.summary().steps == first.summary().steps + 4
    assert without.summary().steps == 4


def test_a_guard_stops_a_training_that_is_lost_and_no_healthy_one(tmp_path):
    def fit(**faults):
        monitor = td.Monitor(guards=[td.Guard(do=do, act=True) for do in ("stop_training", "save_state")])
        fitted = trainer(tmp_path, [DiagnosticsCallback(monitor=monitor)], logger=CSVLogger(tmp_path), steps=20)
        fitted.fit(Agent(**faults), loader(20))
        assert monitor.failures == []
        return fitted.global_step, [event.split(";")[0] for _, event in monitor.events]

    healthy, lost = fit(gain=0.01), fit(nan_from=5)
    assert healthy == (20, [])
    assert lost == (7, [  # the row of a step comes after its batch, and the next batch is there already
        "guard stop_training: stop training", "guard save_state: not done, not within reach of this trainer",
    ])  # fmt: skip


class Kept(ModelCheckpoint):
    """Knows the hash of the weights in each file, and of those that training began with."""

    def __init__(self, folder, **settings):
        super().__init__(folder, "{step}", every_n_train_steps=3, **settings)
        self.hashes, self.begun = {}, ()

    def on_train_start(self, trainer, pl_module):
        super().on_train_start(trainer, pl_module)
        self.begun = trainer.global_step, hashed(pl_module)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        self.hashes.setdefault(trainer.global_step, hashed(pl_module))


def launched(folder, kept, resume, faults):
    """What a launcher calls: a training of 20 steps, from the checkpoint of `resume` if there is one."""
    ours = DiagnosticsCallback(guards=[td.Guard(do="rollback", act=True)])
    fitting = trainer(folder, [ours, kept], logger=CSVLogger(folder), steps=20, enable_checkpointing=True)
    fitting.fit(Agent(**faults), loader(20), ckpt_path=resume and resume.path)
    assert ours.monitor.failures == []
    return fitting


@pytest.mark.parametrize("settings", [{"save_top_k": -1}, {"save_last": True}], ids=["all", "only the latest"])
def test_a_launcher_resumes_from_the_verified_checkpoint_what_a_rollback_has_stopped(tmp_path, settings):
    resume, faults, first, kept_in = None, [{}, {"nan_from": 4}], None, tmp_path / "kept"
    while True:  # as in docs/guards-frameworks.md
        kept = Kept(kept_in, **settings)
        stopped = launched(tmp_path, kept, resume, faults.pop())
        if (resume := resume_from(kept_in)) is None:
            break
        first = stopped.global_step, resume, kept
    ended, resume, saved = first
    assert (ended, resume.step, Path(resume.path).name, resume.times) == (6, 2, "step=3.ckpt", 1)
    assert (saved.save_top_k, saved.save_last) == (settings.get("save_top_k", 1), settings.get("save_last"))
    assert kept.begun == (3, saved.hashes[3])
    assert stopped.global_step == 20
    assert all(values.isfinite().all() for values in stopped.model.parameters())
    proofs = [file.name.removesuffix(f".{MANIFEST}") for file in kept_in.glob(f"*.{MANIFEST}")]
    assert len({*proofs} - {file.name for file in kept_in.glob("*.ckpt")}) <= 1  # that of the last that was deleted


@pytest.mark.parametrize("broken", ["gone", "another"])
def test_a_checkpoint_that_is_gone_or_another_is_reported_in_one_line(tmp_path, broken):
    launched(tmp_path, Kept(tmp_path / "kept", save_top_k=-1), None, {"nan_from": 4})
    file = tmp_path / "kept" / "step=3.ckpt"
    file.unlink() if broken == "gone" else file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(td.DiagError, match=r"step=3\.ckpt: .*; expected the checkpoint of step 2") as error:
        resume_from(tmp_path / "kept")
    assert len(str(error.value).splitlines()) == 1


def test_one_of_several_processes_does_nothing_without_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(pl.Trainer, "world_size", 2)
    callback = DiagnosticsCallback(guards=[td.Guard(do="rollback", act=True)])
    fitted = trainer(tmp_path, [callback, Kept(tmp_path / "kept")], steps=10, enable_checkpointing=True)
    fitted.fit(Agent(nan_from=5), loader(20))
    assert fitted.global_step == 10
    assert any("not within reach" in event for _, event in callback.monitor.events)


@pytest.mark.nightly
def test_two_processes_that_decide_together_stop_at_one_step(tmp_path):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "integrations")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, Path(__file__).with_name("ranks.py"), tmp_path], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first[0] < 20
    assert resume_from(tmp_path).path == str(tmp_path / "step=3.ckpt")


@pytest.mark.nightly
def test_it_works_in_the_package_of_the_older_name(tmp_path):
    import pytorch_lightning

    class Old(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            self.log("train_loss", loss := self.layer(batch[0]).square().mean())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = DiagnosticsCallback(monitor=td.Monitor([kept := CapturingTracker()]))
    trainer(tmp_path, [callback], steps=3, kind=pytorch_lightning).fit(Old(), loader(3))
    assert sorted(kept.own) == [0, 1, 2]
