"""RLlib's PPO for real. Needs Ray."""

import logging

import pytest
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from torch.utils.tensorboard import SummaryWriter
from tracker_diag_rllib import DiagnosticsCallback, attach

from tracker_diag import DiagError, Monitor
from tracker_diag.testing import CapturingTracker

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOO_FAST = {"lr": 0.1, "clip_param": 1000.0}
"""A policy without the reward for entropy is certain after two steps. Its ratios are then all 1 and are no signal."""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def config(environments=16, **training):
    """A small PPO. A step of many environments costs little more than one of few."""
    settings = {"lr": 3e-4, "train_batch_size": 512, "minibatch_size": 128, "num_epochs": 4}
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=environments)
        .learners(num_learners=0)
        .training(**(settings | training))
        .debugging(seed=0)
    )


def train(built, iterations, **given):
    algorithm = built.build_algo()
    monitor = attach(algorithm, **given)
    for _ in range(iterations):
        algorithm.train()
    algorithm.stop()
    return monitor


@pytest.mark.nightly
def test_a_healthy_ppo_raises_nothing_and_its_last_epochs_are_counted():
    monitor = train(config(), 12, monitor=Monitor([kept := CapturingTracker()], algorithm="ppo"))
    assert [finding for finding in kept.summary.findings if finding.fired is not None] == []
    row = kept.scalars(12)
    assert row["diag/policy/text_only/p95"] > 0.01
    # The last epoch of each update alone: 8 iterations of 512 actions, and some that end a minibatch.
    assert 8 * 512 * 0.9 <= row["diag/policy/text_only/count"] <= 8 * 512 * 1.1
    assert monitor.summary().last_step == 12


@pytest.mark.matrix("ray", "run for real")
def test_a_learning_rate_that_is_too_high_is_reported_in_every_tracker_that_is_underway(tmp_path, underway, alerted):
    with underway("mlflow", "trackio", "wandb"), SummaryWriter(str(tmp_path / "curves")) as writer:
        monitor = train(config(**TOO_FAST), 6, writer=writer)
    assert monitor.failures == []
    assert alerted("POL010") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}


@pytest.mark.nightly
@pytest.mark.matrix("ray", "run for real")
def test_without_any_tracker_it_is_reported_in_files(alerted):
    assert train(config(**TOO_FAST), 6).failures == []
    assert alerted("POL010") == {"jsonl", "webhook"}


@pytest.mark.nightly
def test_as_a_callback_class_with_remote_learners_it_hears_the_metrics(caplog):
    built = config().learners(num_learners=1).callbacks(DiagnosticsCallback)
    with caplog.at_level("WARNING", logger="tracker_diag"):
        algorithm = built.build_algo()
    assert "the learners are remote" in caplog.text
    algorithm.train()
    algorithm.stop()
    (callback,) = (result for result in algorithm.callbacks if isinstance(result, DiagnosticsCallback))
    assert callback.monitor.summary().steps == 1


@pytest.mark.nightly
def test_an_algorithm_from_a_checkpoint_continues_with_the_state_in_it(tmp_path, caplog):
    first = config().callbacks(DiagnosticsCallback).build_algo()
    for _ in range(2):
        first.train()
    first.save_to_path(tmp_path)
    first.train()
    first.stop()

    def restored():
        algorithm = PPO.from_checkpoint(str(tmp_path))
        result = algorithm.callbacks if isinstance(algorithm.callbacks, list) else [algorithm.callbacks]
        (callback,) = (item for item in result if isinstance(item, DiagnosticsCallback))
        return algorithm, callback.monitor

    algorithm, monitor = restored()
    assert monitor.step == 2
    algorithm.train()
    assert monitor.summary().steps == 3
    assert "run start over" not in caplog.text
    algorithm.stop()
    (tmp_path / "tracker_diag_0.json").unlink()
    algorithm, monitor = restored()
    assert monitor.step is None
    assert attach(algorithm) is monitor  # the callback's
    monitor.close()
    late = attach(algorithm)  # and again, by itself: one that has trained already
    assert caplog.text.count("run start over") == 2
    algorithm.train()
    assert late.summary().first_step == 3
    algorithm.stop()


def test_attached_twice_each_step_is_heard_once():
    algorithm = config().build_algo()
    monitor = attach(algorithm, monitor=Monitor([kept := CapturingTracker()]))
    assert attach(algorithm) is monitor
    with pytest.raises(DiagError, match="monitor: another one given"):
        attach(algorithm, monitor=Monitor())
    algorithm.train()
    algorithm.stop()
    assert sum("Diagnostics" in type(item).__name__ for item in algorithm.callbacks) == 1
    assert list(kept.own) == [1]
    assert not +monitor.health


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("owner", "name"),
    [(PPO, "cleanup"), (PPO, "save_to_path"), (PPO, "restore_from_path"), (PPOTorchLearner, "compute_loss_for_module"),
     ("self", "config"), ("self", "iteration")],
)  # fmt: skip
def test_whatever_is_gone_is_reported_once_and_training_continues(caplog, monkeypatch, without, owner, name):
    algorithm = config().build_algo()
    at = algorithm if name in vars(algorithm) else next(
        kind for kind in (PPO if owner == "self" else owner).__mro__ if name in vars(kind)
    )  # fmt: skip
    with monkeypatch.context() as below:
        if name in {"cleanup", "save_to_path", "restore_from_path", "compute_loss_for_module"}:
            for kind in at.__mro__[1:]:
                if name in vars(kind):
                    below.delattr(kind, name)
        monitor = without(at, name, lambda: attach(algorithm, monitor=None if name == "config" else Monitor()))
    algorithm.train()
    algorithm.stop()
    without.reported_once(caplog.messages)
    assert monitor.step == 1
    assert monitor.failures == []
    monitor.close()
