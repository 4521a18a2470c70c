"""What the integration does in AReaL's own modules; `test_areal.py` runs this in a process that can import them."""

import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import tracker_diag_areal
import wandb
from areal.api import FinetuneSpec, StepInfo
from areal.api.alloc_mode import ModelAllocation
from areal.api.cli_args import GRPOConfig, PPOActorConfig, RecoverConfig, StatsLoggerConfig, TrackioConfig, WandBConfig
from areal.trainer.ppo import actor as ppo
from areal.utils import environ, stats_tracker
from areal.utils.data import pack_tensor_dict
from areal.utils.recover import RecoverHandler
from areal.utils.stats_logger import StatsLogger
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the group "fake"

from tests.integrations.conformance import LeavesNoHook, SameWithUs, SurvivesWhatIsGone, WatchedOnce
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

ROWS, PROMPT, RESPONSE = 32, 4, 24
VERSION = 5
AN_ENGINE = {"data_parallel_rank": 0, "data_parallel_world_size": 1, "is_data_parallel_head": lambda: True}


def made(rng, post=0.02, text=0.02):
    """Trajectories as a workflow of AReaL returns them, right-padded; a tool result amid half of them."""
    width = PROMPT + RESPONSE
    at = torch.arange(width)
    lengths = torch.tensor([width - row % 3 for row in range(ROWS)])
    attention = at < lengths[:, None]
    tool = (torch.arange(ROWS) < ROWS // 2)[:, None] & (at >= PROMPT + 8) & (at < PROMPT + 12)
    model = attention & (at >= PROMPT) & ~tool
    after = (torch.arange(ROWS) < ROWS // 2)[:, None] & (at >= PROMPT + 12)
    versions = torch.where(after, VERSION, VERSION - 2)  # the policy was exchanged while the tool worked
    proximal = torch.tensor(rng.uniform(-3, -0.1, (ROWS, width)), dtype=torch.float32)
    noise = torch.tensor(rng.normal(size=(ROWS, width)), dtype=torch.float32)
    behaviour = proximal - torch.where(after, post, text) * noise
    return {
        "input_ids": torch.ones(ROWS, width, dtype=torch.long),
        "attention_mask": attention,
        "loss_mask": model.long(),
        "logprobs": torch.where(model, behaviour, 0.0),
        "versions": torch.where(model, versions, -1).int(),
        "rewards": (torch.arange(ROWS) % 2).float(),
        "prox_logp": torch.roll(proximal, -1, -1),  # of the trainer's forward pass, which predicts the next token
        "ref_logp": torch.roll(proximal, -1, -1) - 0.1,
    }


class Engine:
    """In place of a model on GPUs: its new log-probabilities are the proximal ones, moved by `drift`."""

    drift = 0.0

    def get_version(self):
        return VERSION

    def train(self):
        pass

    def train_batch(self, batch, loss_fn, loss_weight_fn):
        packed = pack_tensor_dict(batch)
        new = (packed["prox_logp"] + self.drift).requires_grad_()
        loss = loss_fn(new, torch.ones_like(new), packed)
        loss.backward()
        assert new.grad is not None
        return {"loss": loss.item()}


def an_actor(**settings):
    given = {"use_decoupled_loss": True, "ppo_n_minibatches": 2, "experiment_name": "agent", "trial_name": "run"}
    return ppo.PPOActor(PPOActorConfig(**given | settings), Engine())


def one_step(actor, batch):
    """`compute_advantages` and `ppo_update` of the real actor."""
    actor._ppo_update(actor._compute_advantages(batch))
    return stats_tracker.export()


def a_trainer(curves=None, project=None, **wandb):
    here = str(Path.cwd())  # W&B's own process may have begun in another folder
    stats = StatsLoggerConfig(experiment_name="agent", trial_name="run", fileroot=here, wandb=WandBConfig(**wandb))
    stats.tensorboard.path = curves
    if project:
        stats.trackio = TrackioConfig(mode="local", project=project)
    config = GRPOConfig(experiment_name="agent", trial_name="run", stats_logger=stats)
    config.actor.eps_clip, config.actor.eps_clip_higher = 0.1, 0.3
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=100, train_batch_size=1)
    recover = RecoverConfig(experiment_name="agent", trial_name="run", fileroot=here, mode="on", freq_steps=2)
    return SimpleNamespace(
        config=config, stats_logger=StatsLogger(config, spec), recover_handler=RecoverHandler(recover, spec),
        recover_info=None, actor=SimpleNamespace(**AN_ENGINE),
        actor_alloc=ModelAllocation.from_str("fsdp:d1", name="actor"),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder_with_spmd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AREAL_SPMD_MODE", "1")
    yield
    wandb.finish()
    wandb.teardown()  # it remembers the folder that it began in, and a run that nobody finished


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def watched():
    captured = CapturingTracker()
    monitor = Monitor([captured])
    trainer = a_trainer(mode="disabled")
    tracker_diag_areal.attach(trainer, monitor=monitor)

    def counts(pair):
        monitor.close()
        (table,) = (one for one in captured.tables if one.name == "diag/slices")
        at = table.columns.index("count")
        return {row[1]: row[at] for row in table.rows if row[0] == pair}

    yield SimpleNamespace(trainer=trainer, monitor=monitor, captured=captured, counts=counts)
    monitor.close()
    if hasattr(ppo.grpo_loss_fn, "__wrapped__"):
        ppo.grpo_loss_fn = ppo.grpo_loss_fn.__wrapped__


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (ppo, "grpo_loss_fn", ["logprobs", "entropy", "input_data", "eps_clip"]),
        (StatsLogger, "commit", ["self", "epoch", "step", "global_step", "data"]),
        (StatsLogger, "close", ["self"]),
    ],
)
def test_the_functions_that_are_looked_at_take_what_they_did(owner, name, parameters):
    assert list(inspect.signature(getattr(owner, name)).parameters)[: len(parameters)] == parameters


def test_packed_tokens_are_sliced_by_context_and_by_the_version_that_sampled_them(watched, rng):
    actor, batch = an_actor(), made(rng)
    actor.engine.drift = 0.01
    one_step(actor, batch)
    found = watched.counts("mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert found["text_only"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert found["post_tool"] == found["policy_lag:0"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert found["policy_lag:2"] == found["text_only"]
    assert found["advantage:positive"] + found["advantage:negative"] <= found["all"]
    assert watched.counts("policy") == watched.counts("reference") == found


def test_tokens_that_rejection_takes_out_of_the_loss_are_seen(watched, rng):
    actor, batch = an_actor(m2_threshold=0.001), made(rng, post=1.0)
    sampled = int(batch["loss_mask"].sum())
    stats = one_step(actor, batch)
    assert stats["update/n_valid_tokens"] < sampled
    assert watched.counts("mismatch")["all"] == sampled


def test_without_a_decoupled_loss_there_is_a_policy_pair_alone(watched, rng):
    actor = an_actor(use_decoupled_loss=False, recompute_logprob=False)
    actor.engine.drift = 0.01
    batch = made(rng)
    del batch["prox_logp"], batch["ref_logp"]
    one_step(actor, batch)
    assert watched.counts("mismatch") == watched.counts("reference") == {}
    assert watched.counts("policy")["post_tool"] > 0


def test_an_interpolated_proximal_policy_is_not_taken_for_a_real_one(watched, rng):
    batch = made(rng)
    del batch["prox_logp"], batch["ref_logp"]
    data = {**pack_tensor_dict(batch), "prox_logp": None}
    tracker_diag_areal.observe({"input_data": data, "logprobs": data["logprobs"]}, watched.monitor)
    assert watched.counts("policy") == watched.counts("mismatch") == {}


def test_what_is_committed_goes_to_the_monitor_with_its_global_step(watched):
    data = [{"ppo_actor/task_reward/avg": 0.5, "ppo_actor/n__count": 3}, {"rollout/reward": 0.25}]
    watched.trainer.stats_logger.commit(0, 7, 7, data)
    watched.monitor.close()
    assert watched.captured.own == {7: {"ppo_actor/task_reward/avg": 0.5, "rollout/reward": 0.25}}


def test_the_default_monitor_knows_the_settings():
    trainer = a_trainer(mode="disabled")
    monitor = tracker_diag_areal.attach(trainer)
    assert monitor.clip == (0.1, 0.3)
    assert monitor.config["actor.eps_clip_higher"] == 0.3
    trainer.stats_logger.close()


@pytest.fixture
def told():
    """What is logged; AReaL puts another root in place of that which pytest listens to."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    tracker_diag_areal._log.addHandler(handler)
    yield messages
    tracker_diag_areal._log.removeHandler(handler)


def test_a_single_controller_is_told_as_no_signal(monkeypatch, told):
    monkeypatch.delenv("AREAL_SPMD_MODE")
    tracker_diag_areal.attach(a_trainer(mode="disabled"), monitor=Monitor()).close()
    assert ["no signal" in message for message in told] == [True]
    assert not hasattr(ppo.grpo_loss_fn, "__wrapped__")


def test_an_areal_that_has_changed_is_told_and_training_goes_on(monkeypatch, told):
    monkeypatch.setattr(ppo, "grpo_loss_fn", lambda logprobs, batch: None)
    trainer = a_trainer(mode="disabled")
    tracker_diag_areal.attach(trainer, monitor=Monitor()).close()
    assert ["takes no input_data" in message for message in told] == [True]
    assert "commit" in vars(trainer.stats_logger)  # which is as it was


class TestConformance(SameWithUs, WatchedOnce, LeavesNoHook, SurvivesWhatIsGone):
    STEPS = [0]
    GONE = {
        ("trainer", "actor"): True, ("trainer", "actor_alloc"): True, ("trainer", "stats_logger"): False,
        ("trainer", "recover_handler"): True, ("trainer", "recover_info"): True, ("logger", "commit"): False,
        ("logger", "close"): False, ("ppo", "grpo_loss_fn"): True, ("environ", "is_single_controller"): True,
        ("handler", "dump"): True, ("config", "actor"): True, (None, "areal.trainer.ppo.actor"): True,
    }  # fmt: skip
    BY_DEFAULT = {"actor", "actor_alloc"}

    @pytest.fixture
    def messages(self, told):
        return lambda: told

    @pytest.fixture(autouse=True)
    def loss(self, monkeypatch):
        """AReaL's own afterwards, where the end of a training was not heard."""
        monkeypatch.setattr(ppo, "grpo_loss_fn", ppo.grpo_loss_fn)

    def owners(self, training):
        return {"trainer": training, "logger": StatsLogger, "ppo": ppo, "environ": environ, "handler": RecoverHandler,
                "config": training.config}  # fmt: skip

    def make(self):
        return a_trainer(mode="disabled")

    def attach(self, training, monitor=None):
        return tracker_diag_areal.attach(training, monitor=monitor)

    def train(self, training):
        stats = one_step(an_actor(), made(np.random.default_rng(3), post=0.5))
        training.stats_logger.commit(0, 0, 0, stats)
        training.stats_logger.close()
        return stats

    def hooked(self, training):
        return [ppo.grpo_loss_fn]


def test_a_training_that_is_recovered_goes_on_with_the_state_beside_its_checkpoint(monkeypatch, told):
    monkeypatch.setattr(RecoverHandler, "_save_checkpoint", lambda self, *given, **named: None)
    monkeypatch.setattr(RecoverHandler, "_load_checkpoint", lambda self, *given, **named: None)
    parts = {name: SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
             for name in ("saver", "evaluator", "dataloader")}  # fmt: skip

    def begin(monitor):
        trainer = a_trainer(mode="disabled")
        handler = trainer.recover_handler
        monkeypatch.setattr(handler, "_is_gateway_train_controller", lambda engine: False, raising=False)
        trainer.recover_info = handler.load(None, stats_logger=trainer.stats_logger, **parts)
        tracker_diag_areal.attach(trainer, monitor=monitor)
        return trainer

    first = Monitor()
    trainer = begin(first)
    assert first.state_dict()["rows"] == 100
    for step in range(4):
        info = StepInfo(epoch=0, epoch_step=step, global_step=step, steps_per_epoch=100)
        trainer.recover_handler.dump(None, info, stats_logger=trainer.stats_logger, **parts)
        trainer.stats_logger.commit(0, step, step, {"ppo_actor/task_reward/avg": 0.5})
    trainer.stats_logger.close()
    again = Monitor()
    trainer = begin(again)
    assert again.step == trainer.recover_info.last_step_info.global_step == 3
    assert not [one for one in told if "begin anew" in one]
    trainer.stats_logger.close()
    (kept,) = Path.cwd().rglob("tracker_diag_0.json")
    kept.unlink()
    anew = Monitor()
    begin(anew).stats_logger.close()
    assert anew.step is None
    assert len([one for one in told if "begin anew" in one]) == 1


def train(trainer, rng):
    """Forty-five steps; from the thirtieth on the tail after tools is wider."""
    for step in range(45):
        stats = one_step(an_actor(), made(rng, post=0.02 if step < 30 else 0.5))
        trainer.stats_logger.commit(0, step, step, stats)
    trainer.stats_logger.close()


@pytest.fixture
def job():
    """This process as one rank of a job of four, of whose others nobody knows: torch's own fake group."""

    def become(trainer, rank, *, data, head=True, stages=1):
        dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=4)
        trainer.actor.data_parallel_rank, trainer.actor.data_parallel_world_size = data
        trainer.actor.is_data_parallel_head = lambda: head
        trainer.actor_alloc = ModelAllocation.from_str(f"megatron:d{data[1]}p{stages}", name="actor")

    yield become
    dist.destroy_process_group()


def hooked(trainer):
    return hasattr(ppo.grpo_loss_fn, "__wrapped__"), "commit" in vars(trainer.stats_logger)


@pytest.mark.parametrize(("rank", "data"), [(0, (0, 2)), (1, (0, 2)), (2, (1, 2)), (3, (1, 2))])
def test_of_ranks_that_have_the_same_sequences_the_first_is_looked_at(monkeypatch, job, rank, data):
    monkeypatch.setenv("RANK", str(rank))
    trainer = a_trainer(mode="disabled")
    job(trainer, rank, data=data, head=rank % 2 == 0)
    monitor = tracker_diag_areal.attach(trainer)
    assert hooked(trainer) == (rank % 2 == 0, rank % 2 == 0)
    assert [one.name for one in monitor.trackers] == (["jsonl"] if rank == 0 else [])
    if rank % 2 == 0:
        ranks = monitor._intake._ranks
        assert (ranks._rank, len(ranks._others)) == (data[0], 1 if rank == 0 else 0)
        trainer.stats_logger.close()
    assert hooked(trainer) == (False, False)


def test_with_pipeline_parallelism_no_signal_is_told_by_the_rank_that_logs(monkeypatch, job, told):
    trainer = a_trainer(mode="disabled")
    job(trainer, 0, data=(0, 2), stages=2)
    tracker_diag_areal.attach(trainer)
    trainer.stats_logger.close()
    assert ["leave the actor in one stage" in message for message in told] == [True]


@pytest.mark.parametrize("name", ["data_parallel_rank", "data_parallel_world_size", "is_data_parallel_head"])
def test_an_engine_that_says_nothing_of_its_share_costs_the_other_ranks_alone(job, told, without, rng, name):
    trainer = a_trainer(mode="disabled")
    job(trainer, 0, data=(0, 2))
    monitor = without(trainer.actor, name, lambda: tracker_diag_areal.attach(trainer))
    assert "tokens of other ranks than the first are not seen" in without.told_once(told)
    trainer.stats_logger.commit(0, 0, 0, one_step(an_actor(), made(rng)))
    trainer.stats_logger.close()
    assert {row[1] for row in monitor.slices_table().rows} >= {"text_only", "post_tool"}


@pytest.mark.nightly
def test_two_ranks_are_seen_as_one_process_would_see_them_and_train_as_without_us(tmp_path, alerted):
    """AReaL's own FSDP engine, actor, loss and logger on two processes with gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, Path(__file__).with_name("ranks.py"), tmp_path], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for rank in (first, second):
        assert rank["plain"] == rank["watched"]  # losses and weights to the bit, collectives and groups
        assert rank["plain"]["collectives"] > 12
        assert rank["failures"] == []
        assert not rank["hooked"]
    assert first["plain"]["losses"] != second["plain"]["losses"]  # each of its own tokens
    assert first["missing"] == 0
    assert second["backends"] == []

    given = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    one = Monitor(window=len(given[0]))
    for step, batches in enumerate(zip(*given, strict=True)):
        for batch in (*batches[0], *batches[1]):
            tracker_diag_areal.observe(batch, one)
        one.log({}, step)
    one.close()
    table = one.slices_table()
    assert counted(first["table"]) == counted(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert {("mismatch", "post_tool"), ("policy", "all")} <= set(counted(first["table"]))
    assert alerted("POL001") == {"wandb", "webhook"}
    assert [one["title"].split()[0] for one in alerted.told].count("POL001") == 1  # by one process


def counted(rows):
    """Of each slice how many tokens there are, and the tail."""
    return {(row["pair"], row["slice"]): (row["count"], row["p50"], row["p95"]) for row in rows if row["count"]}


@pytest.mark.matrix("areal", "real modules, made tensors")
def test_findings_and_series_reach_the_wandb_run_that_areal_started(tmp_path, rng, read_wandb, alerted, underway):
    with underway("mlflow"):  # of which AReaL knows nothing
        trainer = a_trainer(mode="offline", curves=str(tmp_path / "curves"), project=alerted.project)
        monitor = tracker_diag_areal.attach(trainer)
        train(trainer, rng)
    (file,) = tmp_path.rglob("run-*.wandb")
    rows = [record["history"]["item"] for record in read_wandb(file) if record["type"] == "history"]
    rewards = [row for row in rows if any(key.endswith("task_reward/avg") for key in row)]
    assert [int(row["_step"]) for row in rewards] == list(range(45))
    assert sum("diag/mismatch/post_tool/p95" in row for row in rows) > 40
    fired = {(found.slice, found.onset) for found in monitor.summary().findings if found.fired is not None}
    assert "post_tool" in {name for name, _ in fired}
    assert all(onset >= 25 for _, onset in fired)
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    assert monitor.health["integration_errors"] == monitor.health["rejected_batches"] == 0


@pytest.mark.matrix("areal", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    trainer = a_trainer(mode="disabled")
    tracker_diag_areal.attach(trainer)
    train(trainer, rng)
    assert alerted("POL001") == {"jsonl", "webhook"}
