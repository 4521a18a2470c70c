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
from openrlhf.trainer.ppo_trainer_async import TrainingActor
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.config import hierarchize
from openrlhf.utils.logging_utils import TensorboardLogger, WandbLogger

from tests.integrations.conformance import SameWithUs, WatchedOnce
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


def samples(rng, post=0.02, text=0.02):
    """Single rollouts by OpenRLHF's own conversion of action ranges; a tool result amid half of them."""
    made = []
    for row in range(ROWS):
        width = PROMPT + RESPONSE - row % 3
        ranges = [(PROMPT, PROMPT + 8), (PROMPT + 12, width)] if row < ROWS // 2 else [(PROMPT, width)]
        old, noise = rng.uniform(-3, -0.1, width), rng.normal(size=width)
        rollout = np.zeros(width)
        for turn, (start, end) in enumerate(ranges):
            rollout[start:end] = (old - (post if turn else text) * noise)[start:end]
        response = {
            "observation_tokens": [5] * width, "action_ranges": ranges, "reward": float(row % 2), "scores": 0.0,
            "rollout_log_probs": rollout.tolist(), "prompt": "p", "label": "l",
        }  # fmt: skip
        sample = SamplesGenerator._process_response_into_experience(SimpleNamespace(), response)
        sample.info["old"] = torch.tensor(old[1:], dtype=torch.float32)[None]  # for the stand-in of the actor
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


@pytest.fixture
def watched():
    captured = CapturingTracker()
    monitor = Monitor([captured])

    def counts(pair):
        monitor.close()
        (table,) = (one for one in captured.tables if one.name == "diag/slices")
        at = table.columns.index("count")
        return {row[1]: row[at] for row in table.rows if row[0] == pair}

    return SimpleNamespace(monitor=monitor, captured=captured, counts=counts)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (BasePPOTrainer, "__init__", ["self", "strategy"]),
        (BasePPOTrainer, "save_logs_and_checkpoints", ["self", "global_step", "logs_dict"]),
        (RemoteExperienceMaker, "make_experience_batch", ["self", "rollout_samples"]),
        (PolicyLoss, "forward", ["self", "log_probs", "old_log_probs", "advantages", "action_mask"]),
        (WandbLogger, "log_eval", ["self", "global_step", "logs_dict"]),
        (WandbLogger, "close", ["self"]),
        (TensorboardLogger, "log_eval", ["self", "global_step", "logs_dict"]),
        (TensorboardLogger, "close", ["self"]),
    ],
)
def test_the_functions_that_are_looked_at_take_what_they_did(owner, name, parameters):
    assert list(inspect.signature(getattr(owner, name)).parameters)[: len(parameters)] == parameters


def test_both_trainers_are_built_on_the_one_that_is_looked_at():
    for actor in (ppo_trainer.PPOTrainer, TrainingActor):
        assert issubclass(actor.__ray_metadata__.modified_class, BasePPOTrainer)


def test_tokens_are_sliced_by_the_action_ranges(a_trainer, watched, rng):
    trainer = a_trainer()
    tracker_diag_openrlhf.attach(trainer, monitor=watched.monitor)
    status = one_step(trainer, 1, samples(rng))
    found = watched.counts("mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert found["text_only"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert found["post_tool"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert found["advantage:positive"] + found["advantage:negative"] == found["all"]
    assert watched.counts("reference") == found
    assert watched.counts("policy") == {}
    assert watched.captured.own[1]["rollout/reward_mean"] == status["rollout/reward_mean"] == 0.5
    assert watched.captured.own[1]["ppo_kl"] == 0.01
    told = watched.captured.scalars(1)
    assert (told["diag/samples/reward"], told["diag/samples/truncated_share"]) == (0.5, 0.0)
    assert told["diag/samples/response_length"] > 0
    assert watched.monitor.failures == []


class TestConformance(SameWithUs, WatchedOnce):
    STEPS = [1]

    @pytest.fixture(autouse=True)
    def trainers(self, a_trainer):
        self.make = a_trainer

    def attach(self, training, monitor=None):
        return tracker_diag_openrlhf.attach(training, monitor=monitor)

    def train(self, training):
        status = one_step(training, 1, samples(np.random.default_rng(2)))
        return {name: value for name, value in status.items() if "timing" not in name}


def test_the_policy_ratio_is_seen_in_a_loss_of_ones_own_process(watched, rng):
    loss = PolicyLoss()
    off = tracker_diag_openrlhf.watch_loss(loss, watched.monitor)
    old = torch.tensor(rng.uniform(-3, -0.1, (ROWS, RESPONSE)), dtype=torch.float32)
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.bool)
    mask[: ROWS // 2, 8:12] = False
    new = (old + 0.05).requires_grad_()
    value = loss(new, old, torch.ones_like(old), action_mask=mask)[0]
    value.backward()
    off()
    assert torch.equal(value, PolicyLoss()(new, old, torch.ones_like(old), action_mask=mask)[0])
    assert new.grad.abs().sum() > 0
    assert watched.counts("policy")["post_tool"] == ROWS // 2 * 12


def test_the_default_monitor_knows_the_settings_but_no_key(a_trainer, caplog):
    trainer = a_trainer(**{CORRECTION: OFF})
    monitor = tracker_diag_openrlhf.attach(trainer)
    assert monitor.clip == (0.1, 0.3)
    assert monitor.config["algo.advantage.estimator"] == "group_norm"
    assert not any(name.startswith("logger.") for name in monitor.config)
    assert caplog.text.count("no signal") == 1
    assert f"Set --{CORRECTION}" in caplog.text
    monitor.close()


def test_an_openrlhf_that_has_changed_is_told_and_training_goes_on(a_trainer, watched, caplog):
    trainer = a_trainer()
    trainer.save_logs_and_checkpoints = lambda step: None
    tracker_diag_openrlhf.attach(trainer, monitor=watched.monitor)
    assert "takes no global_step, logs_dict" in caplog.text
    assert "save_logs_and_checkpoints" in vars(trainer)
    assert "make_experience_batch" in vars(trainer.experience_maker)  # which is as it was


def test_a_training_that_is_resumed_goes_on_with_the_state_beside_the_checkpoint(a_trainer, rng, tmp_path, caplog):
    flags = {"ckpt.path": str(tmp_path), "ckpt.save_steps": 2, "ckpt.load_enable": True}

    def begin(done, monitor):
        """`init_checkpoint_states`, as `fit` calls it; what the actors have saved is in `done`."""
        trainer = a_trainer(**flags)
        trainer.max_steps = 90
        group, states = trainer.actor_model_group, {"global_step": done, "episode": 0}
        run = group.async_run_method
        group.async_run_method = lambda method_name, **given: (
            [states] if method_name == "get_checkpoint_states" else run(method_name, **given)
        )
        tracker_diag_openrlhf.attach(trainer, monitor=monitor)
        assert trainer.init_checkpoint_states()["global_step"] == done
        return trainer

    first = Monitor()
    trainer = begin(0, first)
    assert first.state_dict()["rows"] == 90
    for step in range(1, 4):
        (tmp_path / "_actor" / "global_step2").mkdir(parents=True, exist_ok=True)  # by the actors, of the same disk
        one_step(trainer, step, samples(rng))
    again = Monitor()
    begin(2, again)
    assert again.step == 2
    assert "run begin anew" not in caplog.text
    (tmp_path / "_actor" / "global_step2" / "tracker_diag_0.json").unlink()
    anew = Monitor()
    begin(2, anew)
    assert (anew.step, anew.state_dict()["rows"]) == (None, 88)
    assert caplog.text.count("begin anew") == 1


def test_where_the_actors_have_a_disk_of_their_own_no_folder_is_made(a_trainer, watched, rng, tmp_path):
    trainer = a_trainer(**{"ckpt.path": str(tmp_path), "ckpt.save_steps": 1, "ckpt.load_enable": True})
    tracker_diag_openrlhf.attach(trainer, monitor=watched.monitor)
    one_step(trainer, 1, samples(rng))
    assert list(tmp_path.iterdir()) == []  # else OpenRLHF would take it for a checkpoint of its own
    assert watched.monitor.failures == []


@pytest.mark.parametrize(
    "gone",
    [
        ("trainer", "args"), ("trainer", "wandb_logger"), ("trainer", "tensorboard_logger"),
        ("trainer", "experience_maker"), ("class", "save_logs_and_checkpoints"), ("class", "init_checkpoint_states"),
        ("maker", "make_experience_batch"), ("args", "ckpt"), ("actor", "eps_clip_low_high"),
    ],
)  # fmt: skip
def test_whatever_is_gone_is_told_and_training_goes_on(a_trainer, rng, caplog, without, gone):
    trainer, (owner, name) = a_trainer(), gone
    owners = {"trainer": trainer, "class": BasePPOTrainer, "maker": RemoteExperienceMaker,
              "args": trainer.args, "actor": trainer.args.actor}  # fmt: skip
    monitor = without(owners[owner], name, lambda: tracker_diag_openrlhf.attach(trainer))
    one_step(trainer, 1, samples(rng))
    told = [one for one in caplog.messages if "than was tested" in one]
    # Settings are for two parts, and so is the function that logs and saves.
    assert len(told) == len({*told}) == (2 if name in {"args", "save_logs_and_checkpoints"} else 1)
    heard = name not in {"wandb_logger", "tensorboard_logger", "save_logs_and_checkpoints"}
    assert monitor.step == (1 if heard else None)
    assert monitor.failures == []
    monitor.close()


def test_what_cannot_be_read_is_counted_and_training_goes_on(a_trainer, watched, rng):
    trainer = a_trainer()
    trainer.experience_maker.make_experience_batch = lambda rollout_samples: [None]
    tracker_diag_openrlhf.attach(trainer, monitor=watched.monitor)
    assert trainer.experience_maker.make_experience_batch([]) == [None]
    assert watched.monitor.health["integration_errors"] == 1


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


@pytest.mark.matrix("openrlhf", "real modules, made tensors")
def test_findings_reach_the_wandb_run_that_openrlhf_started_and_its_rows_stay(
    tmp_path, a_trainer, read_wandb, alerted, underway
):
    rows = {}
    for name, steps in (("plain", 20), ("watched", 45)):
        before = set(tmp_path.rglob("run-*.wandb"))
        rng = np.random.default_rng(4)
        curves = {"logger.tensorboard_dir": str(tmp_path / "curves")} if name == "watched" else {}
        trainer = a_trainer(**{"logger.wandb.key": "0" * 40} | curves)
        with underway(*(["mlflow", "trackio"] if curves else [])):  # of which OpenRLHF knows nothing
            monitor = tracker_diag_openrlhf.attach(trainer) if curves else None
            for step in range(1, steps + 1):
                status = one_step(trainer, step, samples(rng, post=0.02 if step < 30 else 0.5))
                assert "reward" in status or status["rollout/num_samples"] == ROWS
            trainer.wandb_logger.log_eval(steps, {"eval_maths_pass1": 0.5})
            trainer.wandb_logger.close()
            if curves:
                trainer.tensorboard_logger.close()
        (file,) = set(tmp_path.rglob("run-*.wandb")) - before
        records = read_wandb(file)
        rows[name] = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert own(rows["watched"][:40]) == own(rows["plain"][:40])
    assert sum("train/policy_loss" in row for row in rows["watched"]) == 45
    assert sum("diag/mismatch/post_tool/p95" in row for row in rows["watched"]) > 40
    fired = {(found.slice, found.onset) for found in monitor.summary().findings if found.fired is not None}
    assert "post_tool" in {name for name, _ in fired}
    assert all(onset >= 25 for _, onset in fired)
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    assert monitor.health["integration_errors"] == monitor.health["rejected_batches"] == 0


@pytest.mark.matrix("openrlhf", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(a_trainer, rng, alerted):
    trainer = a_trainer()
    monitor = tracker_diag_openrlhf.attach(trainer)
    for step in range(1, 46):
        one_step(trainer, step, samples(rng, post=0.02 if step < 30 else 0.5))
    monitor.close()  # without a logger it ends with the process
    assert alerted("POL001") == {"jsonl", "webhook"}


def own(rows):
    """OpenRLHF's part of the rows, without times."""
    left_out = ("diag/", "_runtime", "_timestamp", "train/timing", "train/generated_samples")
    return [{key: value for key, value in row.items() if not key.startswith(left_out)} for row in rows]


def test_the_actors_losses_are_sketched_and_sent_and_a_first_update_apart(monkeypatch):
    """OpenRLHF's own loss in the loop of its actor's trainer, whose model and optimiser are stand-ins."""
    import copy

    from openrlhf.trainer.ray import ppo_actor
    from tracker_diag_openrlhf import workers as of_workers

    from tracker_diag.attach.workers import Recorder, Workers

    kind = ppo_actor.ActorPPOTrainer
    assert list(inspect.signature(kind.training_step).parameters)[:4] == ["self", "experience", "kl_ctl", "step"]
    assert list(inspect.signature(kind.ppo_train).parameters)[:1] == ["self"]
    watched = Monitor([CapturingTracker()], clip=(0.05, 0.3))
    workers = Workers(watched)
    recorder = Recorder(0, 1, workers.receive)
    monkeypatch.setattr(of_workers, "RECORDER", recorder)
    loss = ppo_actor.PolicyLoss(clip_eps_low=0.05, clip_eps_high=0.3)
    rng, mask = np.random.default_rng(0), torch.ones(ROWS, RESPONSE, dtype=torch.int64)
    mask[: ROWS // 2, 8:12] = 0
    old = torch.tensor(rng.uniform(-3, -0.1, mask.shape), dtype=torch.float32)

    def step(self, experience, kl_ctl, step, loss_batch_info=None):
        new = (old + 0.1 * step).requires_grad_()
        found, *_ = loss(new, old, torch.ones_like(old), action_mask=mask)
        found.backward()
        return found.item(), new.grad

    def train(self, kl_ctl):
        return [self.training_step(None, kl_ctl, at) for at in range(4)]

    forward = inspect.unwrap(ppo_actor.PolicyLoss.forward)  # another test may have had `install` put the hooks on
    monkeypatch.setattr(ppo_actor.PolicyLoss, "forward", forward)
    monkeypatch.setattr(kind, "training_step", step)
    monkeypatch.setattr(kind, "ppo_train", train)
    trainer = object.__new__(kind)
    trainer.args = SimpleNamespace(train=SimpleNamespace(dynamic_batch_enable=False))
    trainer.strategy = SimpleNamespace(accumulated_gradient=2, ring_attn_size=1, ds_tensor_parallel_size=1)
    alone = copy.deepcopy(trainer.ppo_train(0.0))
    of_workers.put(ppo_actor)
    ours = trainer.ppo_train(0.0)
    assert all(a == b and torch.equal(c, d) for (a, c), (b, d) in zip(alone, ours, strict=True))
    recorder.close(60)
    workers.take_in()
    watched.log({}, 1)
    table = watched.slices_table()
    at = table.columns.index
    counts = {row[at("slice")]: row[at("count")] for row in table.rows if row[at("pair")] == "policy"}
    clipped = {row[at("slice")]: row[at("gradient_clipped")] for row in table.rows if row[at("pair")] == "policy"}
    assert counts["all"] == 2 * int(mask.sum())  # of two updates the second, of two micro-batches
    assert clipped["all"] == pytest.approx(np.exp(0.3) / (np.exp(0.2) + np.exp(0.3)))  # of which the second is clipped
    assert counts["post_tool"] == 2 * ROWS // 2 * (RESPONSE - 12)
    assert watched.health["rank_errors"] == 0
