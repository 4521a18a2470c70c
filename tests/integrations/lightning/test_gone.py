"""Whatever the callback touches of Lightning may be gone or raise: training is as without us."""

import tempfile
from functools import cache

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from tracker_diag_lightning import DiagnosticsCallback, attach
from tracker_diag_lightning import callback as of_callback

from tests.integrations.conformance import METRICS, SameWithUs, SurvivesWhatBreaks, WatchedOnce

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's, of torch
]

STEPS = 4


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def made(folder, *callbacks):
    return pl.Trainer(
        callbacks=[*callbacks], logger=CSVLogger(folder), max_steps=STEPS, log_every_n_steps=1, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, enable_checkpointing=False,
    )  # fmt: skip


def batches():
    return torch.utils.data.DataLoader(torch.ones(STEPS, 4), batch_size=1)


def fit(folder, *callbacks):
    torch.manual_seed(0)
    module, trainer = Module(), made(folder, *callbacks)
    trainer.fit(module, batches())
    assert trainer.global_step == STEPS
    return torch.cat([one.detach().flatten() for one in module.parameters()])


@cache
def plain():
    return fit(tempfile.mkdtemp())


class TestConformance(SameWithUs, WatchedOnce, SurvivesWhatBreaks):
    STEPS = [*range(STEPS)]
    TOUCHED = {
        "Trainer.should_stop": set(), "Trainer.diag": set(), "Trainer.is_global_zero": set(),
        "Trainer.loggers": {METRICS}, "Trainer.estimated_stepping_batches": set(), "Trainer.log_every_n_steps": set(),
        "Trainer.ckpt_path": set(), "Trainer.default_root_dir": {METRICS},
    }  # fmt: skip
    BY_DAY = {"Trainer.loggers", "Trainer.is_global_zero"}

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    def make(self):
        torch.manual_seed(0)
        return Module(), made(self.path)

    def attach(self, training, monitor=None):
        return attach(training[1], monitor=monitor)

    def train(self, training):
        module, trainer = training
        trainer.fit(module, batches())
        return torch.cat([values.detach().flatten() for values in module.parameters()])

    def plain(self):
        return plain()

    def ours(self):
        return [DiagnosticsCallback, of_callback._Listener]

    def owner(self, kind):
        return getattr(pl, kind)

    def lost(self, training):
        (ours,) = (callback for callback in training[1].callbacks if isinstance(callback, DiagnosticsCallback))
        return set() if ours.monitor.summary().steps == STEPS else {METRICS}


def test_attached_again_after_a_fit_the_monitor_is_that_of_the_next(tmp_path):
    trainer = made(tmp_path)
    first = attach(trainer)
    trainer.fit(Module(), batches())
    second = attach(trainer)
    trainer.fit_loop.epoch_loop.max_steps = 2 * STEPS
    trainer.fit(Module(), batches())
    assert first is not second
    assert (first.summary().steps, second.summary().steps) == (STEPS, STEPS)


class Late(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            self.monitor = attach(trainer)


def test_attached_after_training_has_begun_it_disturbs_nothing(tmp_path):
    late = Late()
    assert torch.equal(fit(tmp_path, late), plain())
    assert late.monitor.failures == []


def test_contract_a_logger_that_does_nothing_has_what_lightning_asks_of_any():
    assert {"log_metrics", "log_hyperparams", "experiment", "name", "version"} <= set(dir(DummyLogger))
