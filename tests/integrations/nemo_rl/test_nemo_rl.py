import sys
from abc import ABC, abstractmethod
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
import tracker_diag_nemo_rl as integration
from tracker_diag_nemo_rl import workers as of_workers

from tests.integrations.conformance import (
    KnowsTheSettings,
    Resumes,
    SameWithUs,
    SketchesLosses,
    SurvivesWhatIsGone,
    counted,
)
from tracker_diag import Monitor
from tracker_diag.attach.workers import Workers

pytestmark = pytest.mark.nightly  # with stand-ins of its modules; by day ROLL alone is tried so

# Signatures as in NVIDIA-NeMo/RL at 7ea279a: nemo_rl/utils/logger.py (LoggerInterface, Logger),
# nemo_rl/algorithms/grpo.py (compute_and_apply_seq_logprob_error_masking, and the calls of grpo_train).


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
        self.logged = []

    def log_metrics(self, *given, **named):
        self.logged.append((given, named))

    def log_hyperparams(self, params):
        self.logged.append(params)

    def log_histogram(self, histogram, step, name): ...

    def log_plot(self, figure, step, name): ...

    def finish(self):
        self.logged.append("finished")


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
def nemo(module):
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


def resumable(folder):
    return Config().model_dump() | {
        "checkpointing": {"checkpoint_dir": str(folder)}, "grpo": {"max_num_steps": 200},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "sync"])
def test_tokens_and_metrics_of_a_step_before_rejection(nemo, trainer):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, Config(), monitor=monitor)
    for number in range(5):
        data = step(getattr(nemo, trainer), logger, number, threshold=1.5)
        assert data["sample_mask"].tolist() == [0, 1, 1, 1]
    summary = monitor.close()
    assert (summary.steps, summary.first_step, summary.last_step) == (5, 1, 5)
    assert not +monitor.health
    for pair in ("mismatch", "reference"):
        tokens = counted(monitor, pair)
        assert (tokens["text_only"], tokens["post_tool"]) == (5 * 4 * 6, 5 * 2 * 4)
    assert counted(monitor, "policy") == {}
    assert "no series reward" not in {str(reason) for reasons in summary.blind.values() for reason in reasons}


def test_it_is_closed_before_the_trackers(nemo):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, monitor=monitor)
    logger.loggers[-1].finish = lambda: monitor.log({}, 1)
    step(nemo.grpo, logger, 0)
    logger.finish()
    assert monitor.health["after_close"] == 1


def test_a_reference_that_was_skipped_is_no_reference(nemo):
    logger, monitor = Logger(), Monitor()
    integration.attach(logger, monitor=monitor)
    step(nemo.grpo, logger, 0, reference=False)
    assert counted(monitor, "reference") == {}


def test_a_run_without_signal_is_reported(nemo, caplog):
    integration.attach(Logger(), Config())
    assert not caplog.records
    integration.attach(Logger(), {"loss_fn": {"force_on_policy_ratio": True}})
    assert "Set force_on_policy_ratio=false" in caplog.text


class TestConformance(SameWithUs, KnowsTheSettings, Resumes, SurvivesWhatIsGone):
    STEPS = [1, 2, 3]
    CLIP, CONFIG = (0.2, 0.28), {"loss_fn.ratio_clip_max": 0.28}
    KEPT, ROWS = 11, (200, 189)  # the row of the checkpoint is logged after it
    GONE = {
        (None, "nemo_rl.algorithms.grpo"): True, (None, "nemo_rl.utils.logger"): False,
        (None, "nemo_rl.utils.checkpoint"): True, ("grpo", integration.FUNCTION): True,
        ("logger", "LoggerInterface"): False, ("checkpoint", "CheckpointManager"): True,
        ("manager", "init_tmp_checkpoint"): True, ("manager", "_rename_checkpoint"): True,
        ("config", "model_dump"): True,
    }  # fmt: skip

    @pytest.fixture(autouse=True)
    def modules(self, nemo):
        nemo.checkpoint.CheckpointManager = nemo.manager = CheckpointManager
        self.nemo = nemo

    def owners(self, training):
        return vars(self.nemo) | {"config": Config}

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
        return training.loggers[-1].logged

    def begin(self, folder, monitor):
        logger, manager = Logger(), CheckpointManager(folder)
        integration.attach(logger, resumable(folder), monitor=monitor)
        for number in range(12):
            if number in (8, 10):
                manager.finalize_checkpoint(manager.init_tmp_checkpoint(number + 1, {}))
            step(self.nemo.grpo, logger, number)

    def resume(self, folder, monitor):
        integration.attach(Logger(), resumable(folder), monitor=monitor)


def test_an_interface_that_asks_for_more_is_reported(nemo, caplog):
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


class ClippedPGLossFn:
    """nemo_rl/algorithms/loss/loss_functions.py; `train` of nemo_rl/models/policy/workers calls it."""

    force_on_policy_ratio, ratio_clip_min, ratio_clip_max = False, 0.05, 0.15

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks):
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        loss = ((next_token_logprobs - data["prev_logprobs"][:, 1:]).exp() * mask).mean()
        return loss, {"num_valid_samples": 1}


class TestWorkers(SketchesLosses):
    WORKERS, KIND, TOKENS = of_workers, {"each": True}, (416, 128)

    @pytest.fixture(autouse=True)
    def loss(self, monkeypatch):
        self.kind = type("ClippedPGLossFn", (ClippedPGLossFn,), {})
        module = SimpleNamespace(ClippedPGLossFn=self.kind)
        monkeypatch.setitem(sys.modules, "nemo_rl.algorithms.loss.loss_functions", module)

    def update(self, times):
        """A step of the optimiser for each of a batch's parts, and an evaluation amid it."""
        rows, loss_fn = 64, self.kind()
        mask, kept = torch.zeros(rows, 24), torch.ones(rows)
        mask[:, 6:12] = mask[::2, 16:20] = 1  # half of the sequences have a second turn
        kept[3::4] = 0
        old = torch.linspace(-3, -0.1, rows * 24).reshape(rows, 24)
        data = {"token_mask": mask, "sample_mask": kept, "prev_logprobs": old, "advantages": torch.ones(rows, 24)}
        losses, optimizer = [], torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
        for update in range(times):
            new = (data["prev_logprobs"][:, 1:] + 0.1 * update).requires_grad_()
            loss, _ = loss_fn(data=data, global_valid_seqs=1, global_valid_toks=1, next_token_logprobs=new)
            loss.backward()
            with torch.no_grad():
                loss_fn(data=data, global_valid_seqs=1, global_valid_toks=1, next_token_logprobs=new * 1)
            optimizer.step()
            losses.append((loss.item(), new.grad))
        return losses

    def test_a_ratio_that_is_forced_to_be_1_is_none(self, watched):
        self.kind.force_on_policy_ratio = True
        self.put()
        self.update(2)
        assert counted(watched(), "policy") == {}

    @pytest.mark.parametrize("name", ["__call__", "ratio_clip_min", "force_on_policy_ratio"])
    def test_whatever_is_gone_is_reported_once_and_the_worker_continues(self, watched, caplog, monkeypatch, name):
        with monkeypatch.context() as gone:
            gone.delattr(ClippedPGLossFn, name)
            self.put()
            if name != "__call__":
                assert len(self.update(2)) == 2
        assert len(self.update(2)) == 2
        assert sum("is not a tested version" in text or "integration_errors: " in text for text in caplog.messages) == 1


def test_what_has_come_is_of_the_row_that_is_logged_after_the_update():
    taken = []
    workers = SimpleNamespace(take_in=lambda: taken.append(True))
    logger = integration.DiagnosticsLogger(Monitor(), workers=workers)
    logger.log_metrics({"seconds": 1.0}, 1, prefix="timing/train")
    assert not taken
    logger.log_metrics({"loss": 1.0}, 1, prefix="train")
    assert taken
