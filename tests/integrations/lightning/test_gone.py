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

from tracker_diag import DiagError, Monitor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's, of torch
]

STEPS = 4

TOUCHED = {
    # What is touched, and whether metrics are heard without it. The rest is guards, resuming, the run's length.
    (pl.Trainer, "should_stop"): True,
    (pl.Trainer, "diag"): True,
    (pl.Trainer, "is_global_zero"): True,
    (pl.Trainer, "loggers"): False,
    (pl.Trainer, "estimated_stepping_batches"): True,
    (pl.Trainer, "log_every_n_steps"): True,
    (pl.Trainer, "ckpt_path"): True,
    (pl.Trainer, "default_root_dir"): False,
}


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


@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("not in this release")], ids=["gone", "raises"])
@pytest.mark.parametrize("touched", TOUCHED, ids=lambda one: one[1])
def test_whatever_is_gone_costs_its_own_part(tmp_path, without, caplog, touched, error):
    expected = plain()
    ours = DiagnosticsCallback()
    without.during([DiagnosticsCallback, of_callback._Listener], *touched, error)
    assert torch.equal(fit(tmp_path, ours), expected)
    without.told(caplog.messages)
    assert ours.monitor.summary().steps == (STEPS if TOUCHED[touched] else 0)


def test_attached_twice_it_is_watched_once_and_another_monitor_is_one_too_many(tmp_path):
    trainer = made(tmp_path)
    monitor = attach(trainer)
    assert attach(trainer) is attach(trainer, monitor=monitor) is monitor
    assert sum(isinstance(one, DiagnosticsCallback) for one in trainer.callbacks) == 1
    with pytest.raises(DiagError, match="monitor: another one given"):
        attach(trainer, monitor=Monitor())


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
