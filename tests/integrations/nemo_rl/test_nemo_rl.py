import sys
from abc import ABC, abstractmethod
from collections import UserDict
from types import ModuleType, SimpleNamespace

import pytest
import torch
import tracker_diag_nemo_rl as integration

from tests.integrations.conformance import SameWithUs, SurvivesWhatIsGone
from tracker_diag import Monitor
from tracker_diag.attach.workers import Workers

# Signatures as in NVIDIA-NeMo/RL at 7ea279a: nemo_rl/utils/logger.py (LoggerInterface, Logger),
# nemo_rl/algorithms/grpo.py (compute_and_apply_seq_logprob_error_masking, and the calls of grpo_train). `source.py`
# runs the real ones, by the command of `released.py`.


class LoggerInterface(ABC):
    @abstractmethod
    def log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False): ...

    @abstractmethod
    def log_hyperparams(self, params): ...

    @abstractmethod
    def log_histogram(self, histogram, step, name): ...

    @abstractmethod
    def log_plot(self, figure, step, name): ...


class Tracker(LoggerInterface):
    def __init__(self):
        self.told = []

    def log_metrics(self, *given, **named):
        self.told.append((given, named))

    def log_hyperparams(self, params):
        self.told.append(params)

    def log_histogram(self, histogram, step, name): ...

    def log_plot(self, figure, step, name): ...

    def finish(self):
        self.told.append("finished")


class Logger(LoggerInterface):
    def __init__(self):
        self.loggers = [Tracker()]

    def log_metrics(self, metrics, step, prefix="", step_metric=None, step_finished=False):
        for logger in self.loggers:
            logger.log_metrics(metrics, step, prefix, step_metric, step_finished)

    def log_hyperparams(self, params):
        for logger in self.loggers:
            logger.log_hyperparams(params)

    def log_histogram(self, histogram, step, name):
        for logger in self.loggers:
            logger.log_histogram(histogram, step, name)

    def log_plot(self, figure, step, name):
        for logger in self.loggers:
            logger.log_plot(figure, step, name)

    def finish(self):
        for logger in self.loggers:
            logger.finish()


def compute_and_apply_seq_logprob_error_masking(train_data, rewards, seq_logprob_error_threshold):
    if seq_logprob_error_threshold is not None:  # the first sequence is rejected
        kept = train_data["sample_mask"].clone()
        kept[0] = 0
        train_data["sample_mask"] = kept
    return {"num_masked_seqs": 0}


class CheckpointManager:
    """nemo_rl/utils/checkpoint.py: a folder gets its name when all is in it."""

    def __init__(self, folder):
        self.checkpoint_dir = folder

    def init_tmp_checkpoint(self, step, training_info, run_config=None):
        made = self.checkpoint_dir / f"tmp_step_{step}"
        made.mkdir(parents=True)
        return made

    def _rename_checkpoint(self, checkpoint_path):
        checkpoint_path.rename(checkpoint_path.with_name(checkpoint_path.name.removeprefix("tmp_")))

    def finalize_checkpoint(self, checkpoint_path):
        self._rename_checkpoint(checkpoint_path)


@pytest.fixture
def nemo(monkeypatch):
    def module(name, **contents):
        made = ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    for name in ("nemo_rl", "nemo_rl.utils", "nemo_rl.algorithms"):
        module(name)
    function = {integration.FUNCTION: compute_and_apply_seq_logprob_error_masking}
    return SimpleNamespace(
        logger=module("nemo_rl.utils.logger", LoggerInterface=LoggerInterface),
        checkpoint=module("nemo_rl.utils.checkpoint", CheckpointManager=type("Manager", (CheckpointManager,), {})),
        grpo=module("nemo_rl.algorithms.grpo", **function),
        sync=module("nemo_rl.algorithms.grpo_sync", **function),
    )


class Config:
    def model_dump(self):
        return {
            "grpo": {"seq_logprob_error_threshold": None},
            "loss_fn": {"ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "force_on_policy_ratio": False},
        }


def train_data(generator, reference=True):
    mask = torch.zeros(4, 24)
    mask[:, 6:12] = mask[:2, 16:20] = 1  # two sequences with a second turn; the rest is prompt, tool and padding
    new = torch.randn(4, 24, generator=generator) - 2
    data = {
        "input_lengths": torch.full((4,), 20),
        "token_mask": mask,
        "sample_mask": torch.ones(4),
        "prev_logprobs": new,
        "generation_logprobs": (new - 0.05 * torch.randn(4, 24, generator=generator)) * mask,
        "reference_policy_logprobs": new - 0.1 if reference else torch.zeros(4, 24),
    }
    return UserDict(data)


def step(module, logger, number, threshold=None, reference=True):
    """As grpo_train: a late row of the step before, the comparison, then several rows of the step."""
    data = train_data(torch.Generator().manual_seed(number), reference)
    function = getattr(module, integration.FUNCTION)
    result = function(train_data=data, rewards=torch.zeros(4), seq_logprob_error_threshold=threshold)
    result.pop("num_masked_seqs")  # as its caller does
    logger.log_metrics({"loss": 0.1, "reward": 0.5}, number + 1, prefix="train")
    logger.log_metrics({"gpu": 3.0, "ray_step": 7}, 99999, prefix="ray", step_metric="ray_step")  # from a thread
    logger.log_metrics({"total_step_time": 2.0}, number + 1, prefix="timing/train", step_finished=True)
    return data


def counts(monitor):
    table = monitor.slices_table()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {(row["pair"], row["slice"]): row["count"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "sync"])
def test_tokens_and_metrics_of_a_step_before_rejection(nemo, trainer):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, Config(), monitor=monitor)
    for number in range(5):
        data = step(getattr(nemo, trainer), logger, number, threshold=1.5)
        assert data["sample_mask"].tolist() == [0, 1, 1, 1]
    assert monitor.step == 5
    summary = monitor.close()
    assert (summary.steps, summary.first_step, summary.last_step) == (5, 1, 5)
    assert not +monitor.health
    found = counts(monitor)
    for pair in ("mismatch", "reference"):
        assert found[pair, "text_only"] == 5 * 4 * 6
        assert found[pair, "post_tool"] == 5 * 2 * 4
    assert ("policy", "all") not in found
    assert "no series reward" not in {str(reason) for reasons in summary.blind.values() for reason in reasons}


def test_it_is_closed_before_the_trackers(nemo):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, monitor=monitor)
    closed = []
    logger.loggers[-1].finish = lambda: closed.append(monitor._summary is not None)
    step(nemo.grpo, logger, 0)
    logger.finish()
    assert closed == [True]


def test_a_reference_that_was_skipped_is_no_reference(nemo):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, monitor=monitor)
    step(nemo.grpo, logger, 0, reference=False)
    assert {pair for pair, _ in counts(monitor)} == {"mismatch"}


@pytest.mark.slow
def test_settings_reach_the_monitor_and_a_run_without_signal_is_told(nemo, caplog):
    monitor = integration.attach(Logger(), Config())
    assert monitor.clip == (0.2, 0.28)
    assert monitor.config["loss_fn.ratio_clip_max"] == 0.28
    assert not caplog.records
    integration.attach(Logger(), {"loss_fn": {"force_on_policy_ratio": True}})
    assert "Set force_on_policy_ratio=false" in caplog.text


def test_a_changed_function_is_told_and_no_ratio_is_seen(nemo, caplog):
    def changed(batch, rewards, seq_logprob_error_threshold):
        return {}

    setattr(nemo.sync, integration.FUNCTION, changed)
    logger = Logger()
    integration.attach(logger, monitor=Monitor())
    assert "takes no train_data" in caplog.text
    assert getattr(nemo.sync, integration.FUNCTION) is changed
    assert getattr(nemo.grpo, integration.FUNCTION) is compute_and_apply_seq_logprob_error_masking
    assert len(logger.loggers) == 2  # and metrics are heard


class TestConformance(SameWithUs, SurvivesWhatIsGone):
    STEPS = [1, 2, 3]
    GONE = {
        (None, "nemo_rl.algorithms.grpo"): True, (None, "nemo_rl.utils.logger"): False,
        (None, "nemo_rl.utils.checkpoint"): True, ("grpo", integration.FUNCTION): True,
        ("logger", "LoggerInterface"): False, ("checkpoint", "CheckpointManager"): True,
        ("manager", "init_tmp_checkpoint"): True, ("manager", "_rename_checkpoint"): True,
    }  # fmt: skip

    @pytest.fixture(autouse=True)
    def modules(self, nemo):
        nemo.checkpoint.CheckpointManager = nemo.manager = CheckpointManager
        self.nemo = nemo

    def owners(self, training):
        return vars(self.nemo)

    def make(self):
        return Logger()

    def attach(self, training, monitor=None):
        return integration.attach(training, Config(), monitor=monitor)

    def train(self, training):
        for number in range(3):
            step(self.nemo.grpo, training, number)
        training.log_hyperparams({"grpo": {"lr": 1.0}})
        training.log_plot(None, 0, "plot")
        training.log_histogram([1.0], 0, "histogram")
        training.finish()
        return training.loggers[-1].told


def test_settings_that_cannot_be_read_are_told_once(nemo, caplog, without):
    integration.attach(Logger(), SimpleNamespace())
    assert "the run's settings are not known" in without.told_once(caplog.messages)


def resumable(folder, steps=200):
    settings = Config().model_dump()
    return settings | {"checkpointing": {"checkpoint_dir": str(folder)}, "grpo": {"max_num_steps": steps}}


@pytest.mark.slow
def test_a_run_goes_on_with_the_state_in_its_latest_checkpoint(nemo, tmp_path, caplog):
    logger, first = Logger(), Monitor()
    integration.attach(logger, resumable(tmp_path), monitor=first)
    manager = nemo.checkpoint.CheckpointManager(tmp_path)
    for number in range(12):
        if number in (8, 10):
            manager.finalize_checkpoint(manager.init_tmp_checkpoint(number + 1, {}))
        step(nemo.grpo, logger, number)
    second = Monitor()
    integration.attach(Logger(), resumable(tmp_path), monitor=second)
    assert second.step == 11  # with the row that was logged after the checkpoint
    assert (first.state_dict()["rows"], second.state_dict()["rows"]) == (200, 200)
    assert "begin anew" not in caplog.text
    (tmp_path / "step_11" / "tracker_diag_0.json").unlink()
    third = Monitor()
    integration.attach(Logger(), resumable(tmp_path), monitor=third)
    assert third.step is None
    assert sum("begin anew" in one for one in caplog.messages) == 1


def test_a_changed_interface_is_told(nemo, caplog):
    class Changed(LoggerInterface):
        @abstractmethod
        def log_table(self, table): ...

    nemo.logger.LoggerInterface = Changed
    integration.attach(Logger(), monitor=Monitor())
    assert "asks for log_table" in caplog.text


@pytest.mark.parametrize(
    ("policy", "every"),
    [
        ({"dtensor_cfg": {"tensor_parallel_size": 2, "context_parallel_size": 4}}, 8),
        ({"megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 2, "context_parallel_size": 1},
          "dtensor_cfg": {"tensor_parallel_size": 8}}, 2),
        ({}, 1),
    ],
)  # fmt: skip
def test_of_ranks_with_the_same_tokens_one_counts(nemo, monkeypatch, policy, every):
    made = []

    def workers(monitor, **given):
        made.append(given)
        return Workers(monitor, **given)

    monkeypatch.setattr(integration, "Workers", workers)
    integration.attach(Logger(), {"policy": policy})
    assert made == [{"each": True, "every": every}]
