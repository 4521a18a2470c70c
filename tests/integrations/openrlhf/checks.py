"""What the integration does in OpenRLHF's own modules; `test_openrlhf.py` runs this where they can be imported."""

import argparse
import inspect
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_openrlhf
from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.config import hierarchize
from tracker_diag_openrlhf import workers as of_workers

from tests.integrations.conformance import (
    KnowsTheSettings,
    Resumes,
    SameWithUs,
    SketchesLosses,
    SurvivesWhatIsGone,
    WatchedOnce,
    counted,
    names_the_tail,
    responses,
)
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

ROWS, PROMPT, RESPONSE, MICRO = 64, 4, 24, 16
BY_LEVEL = "is_correction_level" in inspect.signature(PolicyLoss.__init__).parameters
"""Since 0.11.2; before, the correction is on or off."""
CORRECTION, ON, OFF = (
    ("algo.advantage.is_correction_level", "token", "off")
    if BY_LEVEL
    else ("algo.advantage.is_correction_enable", True, False)
)
FLAGS = {
    CORRECTION: ON,
    "actor.eps_clip_low_high": (0.1, 0.3), "actor.policy_loss_type": "ppo", "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1, "algo.advantage.estimator": "group_norm", "algo.advantage.gamma": 1.0,
    "algo.advantage.lambd": 1.0, "algo.advantage.no_std_norm": False,
    "algo.kl.target": None, "algo.kl.init_coef": 0.01, "algo.kl.use_loss": True, "algo.kl.estimator": "k1",
    "ckpt.save_steps": float("inf"), "ckpt.path": "ckpt", "ckpt.load_enable": False,
    "critic.freezing_steps": -1, "ds.enable_sleep": False, "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1, "logger.wandb.key": None, "logger.wandb.org": None, "logger.wandb.project": "agent",
    "logger.wandb.group": None, "logger.wandb.run_name": "run", "logger.tensorboard_dir": None,
    "logger.logging_steps": 1, "reward.clip_range": (-10, 10), "reward.overlong_buffer_len": None,
    "reward.stop_properly_penalty_coef": None, "rollout.batch_size": 16, "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": MICRO, "train.colocate_all": False, "train.colocate_actor_ref": False,
    "train.colocate_critic_reward": False, "train.dynamic_batch_enable": False,
}  # fmt: skip


def samples(rng, post=0.02):
    """Single rollouts by OpenRLHF's own conversion of action ranges; a tool result amid half of them."""
    made, (_, old, sampled) = [], responses(rng, ROWS, RESPONSE, post)
    for row in range(ROWS):
        width = PROMPT + RESPONSE - row % 3
        ranges = [(PROMPT, PROMPT + 8), (PROMPT + 12, width)] if row < ROWS // 2 else [(PROMPT, width)]
        rollout = np.zeros(width)
        for start, end in ranges:
            rollout[start:end] = sampled[row, start - PROMPT : end - PROMPT]
        response = {
            "observation_tokens": [5] * width, "action_ranges": ranges, "reward": float(row % 2), "scores": 0.0,
            "rollout_log_probs": rollout.tolist(), "prompt": "p", "label": "l",
        }  # fmt: skip
        scores = np.concatenate([np.zeros(PROMPT), old[row, : width - PROMPT]])
        sample = SamplesGenerator._process_response_into_experience(SimpleNamespace(), response)
        sample.info["old"] = torch.tensor(scores[1:], dtype=torch.float32)[None]  # for the stand-in of the actor
        made.append(sample)
    return made


class Group:
    """In place of a group of actors on GPUs: what their methods would bring back."""

    def __init__(self, less=0.0):
        self.less = less

    def async_run_method_batch(self, method_name, action_mask=(), **given):
        return [[self.old[i][:, : mask.shape[1]] - self.less] for i, mask in enumerate(action_mask)]

    def async_run_method(self, method_name, **given):
        return [{"ppo_kl": 0.01, "policy_loss": 0.1}] if method_name == "fit" else []


@pytest.fixture
def a_trainer(monkeypatch):
    """OpenRLHF's trainer with its experience maker; Ray hands over at once what it is given."""
    at_once = SimpleNamespace(get=lambda given: given, put=lambda given: given)
    monkeypatch.setattr(ppo_trainer, "ray", at_once)
    monkeypatch.setattr(experience_maker, "ray", at_once)

    def made(actors=None, **flags):
        args = hierarchize(argparse.Namespace(**(FLAGS | flags)))
        tokenizer = SimpleNamespace(decode=lambda *given, **named: ["text"], pad_token_id=0)
        return BasePPOTrainer(SimpleNamespace(args=args), actors or Group(), None, None, Group(0.1), None, tokenizer)

    return made


def one_step(trainer, step, rollouts):
    """`train_step` and `save_logs_and_checkpoints` of the real trainer, as `fit` calls them."""
    batches = [rollouts[i : i + MICRO] for i in range(0, ROWS, MICRO)]
    old = [Experience._merge_item([sample.info["old"] for sample in batch]) for batch in batches]
    for sample in rollouts:
        del sample.info["old"]
    trainer.actor_model_group.old = trainer.reference_model_group.old = old
    status, after = trainer.train_step(rollouts, step - 1)
    trainer.save_logs_and_checkpoints(after, status)
    return status


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_tokens_are_sliced_by_the_action_ranges(a_trainer, rng):
    trainer, monitor = a_trainer(), Monitor([captured := CapturingTracker()])
    tracker_diag_openrlhf.attach(trainer, monitor=monitor)
    status = one_step(trainer, 1, samples(rng))
    tokens = counted(monitor, "mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert tokens["text_only"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert tokens["post_tool"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert tokens["advantage:positive"] + tokens["advantage:negative"] == tokens["all"]
    assert (counted(monitor, "reference"), counted(monitor, "policy")) == (tokens, {})
    assert captured.own[1]["rollout/reward_mean"] == status["rollout/reward_mean"] == 0.5
    row = captured.scalars(1)
    assert (row["diag/samples/reward"], row["diag/samples/truncated_share"]) == (0.5, 0.0)
    assert row["diag/samples/response_length"] > 0
    assert monitor.failures == []


class TestConformance(SameWithUs, WatchedOnce, KnowsTheSettings, Resumes, SurvivesWhatIsGone):
    STEPS = [1]
    CLIP, CONFIG, SECRET = (0.1, 0.3), {"algo.advantage.estimator": "group_norm"}, "logger."
    KEPT, ROWS = 2, (90, 88)
    GONE = {
        ("trainer", "args"): True, ("trainer", "wandb_logger"): False, ("trainer", "tensorboard_logger"): False,
        ("trainer", "experience_maker"): True, ("class", "save_logs_and_checkpoints"): False,
        ("class", "init_checkpoint_states"): True, ("maker", "make_experience_batch"): True, ("args", "ckpt"): True,
        ("actor", "eps_clip_low_high"): True,
    }  # fmt: skip
    BY_DEFAULT = {"args", "eps_clip_low_high"}
    REPORTED = {"args": 2, "save_logs_and_checkpoints": 2}  # each is for two parts

    @pytest.fixture(autouse=True)
    def trainers(self, a_trainer):
        self.make = a_trainer

    def owners(self, training):
        args = training.args
        return {"trainer": training, "class": BasePPOTrainer, "maker": RemoteExperienceMaker, "args": args,
                "actor": args.actor}  # fmt: skip

    def attach(self, training, monitor=None):
        return tracker_diag_openrlhf.attach(training, monitor=monitor)

    def train(self, training):
        status = one_step(training, 1, samples(np.random.default_rng(2)))
        return {name: value for name, value in status.items() if "timing" not in name}

    def started(self, folder, monitor, done):
        """`init_checkpoint_states`, as `fit` calls it; what the actors have saved is in `done`."""
        trainer = self.make(**{"ckpt.path": str(folder), "ckpt.save_steps": 2, "ckpt.load_enable": True})
        trainer.max_steps = 90
        group, states = trainer.actor_model_group, {"global_step": done, "episode": 0}
        run = group.async_run_method
        group.async_run_method = lambda method_name, **given: (
            [states] if method_name == "get_checkpoint_states" else run(method_name, **given)
        )
        self.attach(trainer, monitor)
        assert trainer.init_checkpoint_states()["global_step"] == done
        return trainer

    def begin(self, folder, monitor):
        """Where the actors have a disk of their own no folder is made: OpenRLHF would take it for a checkpoint."""
        trainer = self.started(folder, monitor, 0)
        one_step(trainer, 2, samples(np.random.default_rng(0)))
        assert list(folder.iterdir()) == []
        (folder / "_actor" / "global_step2").mkdir(parents=True)  # by the actors, of the same disk
        for step in (2, 3):
            one_step(trainer, step, samples(np.random.default_rng(0)))

    def resume(self, folder, monitor):
        self.started(folder, monitor, 2)


def test_a_run_without_the_correction_is_reported_to_have_no_signal(a_trainer, caplog):
    tracker_diag_openrlhf.attach(a_trainer(**{CORRECTION: OFF}))
    assert caplog.text.count("no signal") == 1
    assert f"Set --{CORRECTION}" in caplog.text


class TestWorkers(SketchesLosses):
    """OpenRLHF's own loss in the loop of its actor's trainer, whose model and optimiser are stand-ins."""

    WORKERS, TOKENS = of_workers, (2 * (ROWS * RESPONSE - ROWS // 2 * 4), 2 * ROWS // 2 * (RESPONSE - 12))

    @pytest.fixture(autouse=True)
    def actor(self, monkeypatch):
        kind, loss = ppo_actor.ActorPPOTrainer, ppo_actor.PolicyLoss(clip_eps_low=0.05, clip_eps_high=0.15)
        rng, mask = np.random.default_rng(0), torch.ones(ROWS, RESPONSE, dtype=torch.int64)
        mask[: ROWS // 2, 8:12] = 0
        old = torch.tensor(rng.uniform(-3, -0.1, mask.shape), dtype=torch.float32)

        def step(self, experience, kl_ctl, step, loss_batch_info=None):
            new = (old + 0.1 * (step // 2)).requires_grad_()  # of two micro-batches an update
            value, *_ = loss(new, old, torch.ones_like(old), action_mask=mask)
            value.backward()
            return value.item(), new.grad

        def train(self, times):
            return [self.training_step(None, 0.0, at) for at in range(2 * times)]

        # Another test may have had `install` put the hooks on.
        monkeypatch.setattr(ppo_actor.PolicyLoss, "forward", inspect.unwrap(ppo_actor.PolicyLoss.forward))
        monkeypatch.setattr(kind, "training_step", step)
        monkeypatch.setattr(kind, "ppo_train", train)
        self.trainer = object.__new__(kind)
        self.trainer.args = SimpleNamespace(train=SimpleNamespace(dynamic_batch_enable=False))
        self.trainer.strategy = SimpleNamespace(accumulated_gradient=2, ring_attn_size=1, ds_tensor_parallel_size=1)

    def update(self, times):
        return self.trainer.ppo_train(times)


def test_what_cannot_be_read_is_counted_and_training_continues(a_trainer):
    trainer, monitor = a_trainer(), Monitor()
    trainer.experience_maker.make_experience_batch = lambda rollout_samples: [None]
    tracker_diag_openrlhf.attach(trainer, monitor=monitor)
    assert trainer.experience_maker.make_experience_batch([]) == [None]
    assert monitor.health["integration_errors"] == 1


def test_a_trainer_that_is_made_after_install_is_attached_to(a_trainer, monkeypatch):
    seen = []
    monkeypatch.setattr(tracker_diag_openrlhf, "attach", seen.append)
    tracker_diag_openrlhf.install()
    trainer = a_trainer()
    assert seen == [trainer]
    BasePPOTrainer.__init__ = BasePPOTrainer.__init__.__wrapped__


WORKER = """
import json, runpy, sys
from importlib.machinery import ModuleSpec
def script(*given, **named):
    import ray
    ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": {"THEIRS": "1"}})  # as OpenRLHF's does
    @ray.remote
    def worker():
        import os, sys
        before = "openrlhf.trainer.ppo_trainer" in sys.modules
        from openrlhf.trainer.ppo_trainer import BasePPOTrainer
        return [before, hasattr(BasePPOTrainer.__init__, "__wrapped__"), os.environ["THEIRS"]]
    print("worker", json.dumps(ray.get(worker.remote())))
    ray.shutdown()
runpy.run_module = script
from tracker_diag_openrlhf.__main__ import main
main()
"""


@pytest.mark.nightly
def test_rays_worker_processes_wait_for_the_trainer(tmp_path):
    """A real worker of Ray, with the real import; the libraries of GPUs come from files here, not from a plugin."""
    for name in ("flash_attn", "deepspeed", "vllm"):
        (tmp_path / f"{name}.py").write_text("import stand_ins\nraise ImportError(name)\n")
    (tmp_path / "sitecustomize.py").write_text("import stand_ins\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])),
        "RAY_AUTH_MODE": "disabled",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER], env=environment, capture_output=True, text=True, check=False
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("worker ")] or [done.stderr]
    assert json.loads(line.removeprefix("worker ")) == [False, True, "1"]


def train(trainer):
    """Forty-five steps; from the thirtieth on the tail after tools is wider."""
    rng = np.random.default_rng(4)
    for step in range(1, 46):
        one_step(trainer, step, samples(rng, post=0.02 if step < 30 else 0.5))


@pytest.mark.matrix("openrlhf", "real modules, made tensors")
def test_findings_reach_every_tracker(tmp_path, a_trainer, alerted, underway):
    with underway("mlflow", "trackio"):  # of which OpenRLHF knows nothing
        trainer = a_trainer(**{"logger.wandb.key": "0" * 40, "logger.tensorboard_dir": str(tmp_path / "curves")})
        monitor = tracker_diag_openrlhf.attach(trainer)
        train(trainer)
        trainer.wandb_logger.close()
        trainer.tensorboard_logger.close()
    assert names_the_tail(monitor)
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}


@pytest.mark.matrix("openrlhf", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(a_trainer, alerted):
    trainer = a_trainer()
    monitor = tracker_diag_openrlhf.attach(trainer)
    train(trainer)
    monitor.close()  # without a logger it ends with the process
    assert alerted("POL001") == {"jsonl", "webhook"}
