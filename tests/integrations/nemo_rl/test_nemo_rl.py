import sys
from abc import ABC, abstractmethod
from collections import UserDict
from types import ModuleType, SimpleNamespace

import pytest
import torch
import tracker_diag_nemo_rl as integration
from tracker_diag_nemo_rl import workers as of_workers

from tracker_diag import Monitor
from tracker_diag.attach.workers import Recorder, Workers
from tracker_diag.errors import MissingExtra

# Signatures as in NVIDIA-NeMo/RL at 7ea279a: nemo_rl/utils/logger.py (LoggerInterface, Logger),
# nemo_rl/algorithms/grpo.py (compute_and_apply_seq_logprob_error_masking, and the calls of grpo_train),
# nemo_rl/algorithms/loss/loss_functions.py (ClippedPGLossFn), nemo_rl/models/policy/workers. `source.py` runs the real
# ones, by the command of `released.py`.


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


class ClippedPGLossFn:
    force_on_policy_ratio, ratio_clip_min, ratio_clip_max = False, 0.2, 0.28

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks):
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        loss = ((next_token_logprobs - data["prev_logprobs"][:, 1:]).exp() * mask).mean()
        return loss, {"num_valid_samples": 1}


class PolicyWorkerImpl:
    """nemo_rl/models/policy/workers: a step of the optimiser for each of a batch's parts."""

    def __init__(self, **place):
        self.place = {"tensor_parallel": 0, "context_parallel": 0} | place

    def _local_coords(self):
        return self.place

    def train(self, data, loss_fn, eval_mode=False, gbs=None):
        found, model = [], torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for update in range(gbs):
            new = (data["prev_logprobs"][:, 1:] + 0.1 * update).requires_grad_()
            loss, _ = loss_fn(data=data, global_valid_seqs=1, global_valid_toks=1, next_token_logprobs=new)
            if not eval_mode:
                loss.backward()
                optimizer.step()
            found.append((loss.item(), new.grad))
        return found


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


def test_the_trackers_rows_are_as_without_us(nemo):
    rows = []
    for watched in (True, False):
        logger = Logger()
        if watched:
            integration.attach(logger, monitor=Monitor())
        step(nemo.grpo, logger, 0)
        logger.log_hyperparams({"grpo": {"lr": 1.0}})
        logger.log_plot(None, 0, "plot")
        logger.log_histogram([1.0], 0, "histogram")
        logger.finish()
        rows.append(logger.loggers[-1].told)
    assert rows[0] == rows[1]


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


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (None, "nemo_rl.algorithms.grpo"), (None, "nemo_rl.utils.logger"), (None, "nemo_rl.utils.checkpoint"),
        ("grpo", integration.FUNCTION), ("logger", "LoggerInterface"), ("checkpoint", "CheckpointManager"),
        ("manager", "init_tmp_checkpoint"), ("manager", "_rename_checkpoint"),
    ],
)  # fmt: skip
def test_whatever_is_gone_is_told_once_and_training_goes_on(nemo, caplog, place, name, without):
    logger, monitor = Logger(), Monitor()
    nemo.manager = CheckpointManager
    nemo.checkpoint.CheckpointManager = CheckpointManager
    own = None if place is None else getattr(nemo, place)
    without(own, name, lambda: integration.attach(logger, Config(), monitor=monitor))
    step(nemo.grpo, logger, 0)
    logger.finish()
    without.told_once(caplog.messages)
    assert len(logger.loggers[-1].told) == 4
    assert monitor.step == (None if "ogger" in name else 1)


def test_settings_that_cannot_be_read_are_told_once(nemo, caplog, without):
    integration.attach(Logger(), SimpleNamespace())
    assert "the run's settings are not known" in without.told_once(caplog.messages)


def resumable(folder, steps=200):
    settings = Config().model_dump()
    return settings | {"checkpointing": {"checkpoint_dir": str(folder)}, "grpo": {"max_num_steps": steps}}


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


@pytest.fixture
def worker(monkeypatch):
    """The modules of NeMo-RL's workers with our hooks, whose recorder sends to a monitor of this process."""
    watched = Monitor(clip=(0.2, 0.28))
    workers = Workers(watched)
    recorder = Recorder(0, 1, workers.receive)
    monkeypatch.setattr(of_workers, "RECORDER", recorder)
    loss, kind = type("Loss", (ClippedPGLossFn,), {}), type("Impl", (PolicyWorkerImpl,), {})

    def put():
        of_workers._guarded(of_workers.losses)(SimpleNamespace(ClippedPGLossFn=loss))
        of_workers._guarded(of_workers.updates)(kind)

    def sketched():
        recorder.close(60)
        workers.take_in()
        watched.log({}, 1)
        return {name: count for name, count in counts(watched).items() if name[1] in {"all", "post_tool"}}

    def train(updates=2, eval_mode=False, calls=1, **place):
        data, one = train_data(torch.Generator().manual_seed(0)), kind(**place)
        data["advantages"] = torch.ones(4, 24)
        return [one.train(data, loss(), eval_mode, updates) for _ in range(calls)]

    return SimpleNamespace(put=put, sketched=sketched, train=train, watched=watched, loss=loss, workers=workers)


@pytest.mark.parametrize("updates", [1, 3])
def test_the_workers_losses_are_sketched_and_sent_and_a_first_update_apart(worker, updates):
    (plain,) = worker.train(updates)
    worker.put()
    (ours,) = worker.train(updates)
    assert all(a == b and torch.equal(c, d) for (a, c), (b, d) in zip(plain, ours, strict=True))
    counted = max(updates - 1, 1)
    assert worker.sketched() == {("policy", "all"): counted * 32, ("policy", "post_tool"): counted * 8}
    assert worker.watched.health["rank_errors"] == 0


def test_of_ppos_epochs_the_first_update_is_apart(nemo, monkeypatch):
    made = []
    monkeypatch.setattr(
        integration, "Workers", lambda monitor, **given: made.append(given) or Workers(monitor, **given)
    )
    integration.attach(Logger(), {"ppo": {"num_prompts_per_step": 4}})
    integration.attach(Logger(), Config())
    assert made == [{"each": True}, {"each": False}]


@pytest.mark.parametrize(
    "setting", [{"tensor_parallel": 1}, {"context_parallel": 1}, {"eval_mode": True}, {"updates": 0}]
)
def test_of_ranks_with_the_same_tokens_one_sends_and_of_an_evaluation_none(worker, setting):
    worker.put()
    worker.train(**setting)
    assert worker.sketched() == {}


def test_a_ratio_that_is_forced_to_be_1_is_none(worker):
    worker.loss.force_on_policy_ratio = True
    worker.put()
    worker.train()
    assert worker.sketched() == {}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ClippedPGLossFn, "__call__"), (ClippedPGLossFn, "ratio_clip_min"), (PolicyWorkerImpl, "train"),
        (PolicyWorkerImpl, "_local_coords"),
    ],
)  # fmt: skip
def test_whatever_is_gone_of_a_worker_is_told_once_and_it_goes_on(worker, caplog, monkeypatch, owner, name):
    with monkeypatch.context() as gone:
        gone.delattr(owner, name)
        worker.put()
        if name not in {"__call__", "train"}:  # without which it would not train
            worker.train()
    (found,) = worker.train()
    assert len(found) == 2
    assert sum("than was tested" in text or "integration_errors: " in text for text in caplog.messages) == 1


def test_what_workers_have_sent_is_of_the_row_that_is_logged_when_they_have_trained(nemo, worker):
    worker.put()
    worker.train()
    of_workers.RECORDER.close(60)
    one = integration.DiagnosticsLogger(worker.watched, workers=worker.workers)
    one.log_metrics({"seconds": 1.0}, 1, prefix="timing/train")
    assert counts(worker.watched) == {}
    one.log_metrics({"loss": 1.0}, 1, prefix="train")
    assert counts(worker.watched)["policy", "all"] == 32


def test_without_nemo_rl_what_needs_it_asks_for_it():
    with pytest.raises(MissingExtra, match="nemo-rl"):
        integration.attach(Logger())
