"""What the integration does in AReaL's own modules; `test_areal.py` runs this in a process that can import them."""

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

from tests.integrations.conformance import (
    KnowsTheSettings,
    LeavesNoHook,
    Resumes,
    SameWithUs,
    SurvivesWhatIsGone,
    WatchedOnce,
    counted,
    names_the_tail,
    responses,
)
from tracker_diag import Monitor
from tracker_diag.attach.shares import together
from tracker_diag.testing import CapturingTracker

ROWS, PROMPT, RESPONSE = 32, 4, 24
VERSION = 5
AN_ENGINE = {"data_parallel_rank": 0, "data_parallel_world_size": 1, "is_data_parallel_head": lambda: True}


def made(rng, post=0.02):
    """Trajectories as a workflow of AReaL returns them, right-padded; a tool result amid half of them."""
    model, old, sampled = (torch.tensor(values) for values in responses(rng, ROWS, RESPONSE, post))
    at = torch.arange(PROMPT + RESPONSE)
    attention = at < torch.tensor([len(at) - row % 3 for row in range(ROWS)])[:, None]
    model = attention & torch.nn.functional.pad(model, (PROMPT, 0))
    proximal, behaviour = (torch.nn.functional.pad(values, (PROMPT, 0)).float() for values in (old, sampled))
    after = (torch.arange(ROWS) < ROWS // 2)[:, None] & (at >= PROMPT + 12)
    versions = torch.where(after, VERSION, VERSION - 2)  # the policy was exchanged while the tool worked
    return {
        "input_ids": torch.ones(attention.shape, dtype=torch.long), "attention_mask": attention,
        "loss_mask": model.long(), "logprobs": torch.where(model, behaviour, 0.0),
        "versions": torch.where(model, versions, -1).int(), "rewards": (torch.arange(ROWS) % 2).float(),
        "prox_logp": torch.roll(proximal, -1, -1),  # of the trainer's forward pass, which predicts the next token
        "ref_logp": torch.roll(proximal, -1, -1) - 0.1,
    }  # fmt: skip


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
    monkeypatch.setattr(ppo, "grpo_loss_fn", ppo.grpo_loss_fn)  # its own afterwards, if an end was not heard
    yield
    wandb.finish()
    wandb.teardown()  # it remembers the folder that it began in, and a run that nobody finished


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def shown():
    """What is logged. Private: AReaL replaces the root, so nobody else can find the logger that we write to."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    tracker_diag_areal._log.addHandler(handler)
    yield messages
    tracker_diag_areal._log.removeHandler(handler)


@pytest.fixture
def monitor():
    given = Monitor()
    yield tracker_diag_areal.attach(a_trainer(mode="disabled"), monitor=given)
    given.close()


def test_packed_tokens_are_sliced_by_context_and_by_the_version_that_sampled_them(monitor, rng):
    actor = an_actor()
    actor.engine.drift = 0.01
    one_step(actor, made(rng))
    tokens = counted(monitor, "mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert tokens["text_only"] == tokens["policy_lag:2"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert tokens["post_tool"] == tokens["policy_lag:0"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert tokens["advantage:positive"] + tokens["advantage:negative"] <= tokens["all"]
    assert counted(monitor, "policy") == counted(monitor, "reference") == tokens


def test_tokens_that_rejection_takes_out_of_the_loss_are_seen(monitor, rng):
    batch = made(rng, post=1.0)
    sampled = int(batch["loss_mask"].sum())
    assert one_step(an_actor(m2_threshold=0.001), batch)["update/n_valid_tokens"] < sampled
    assert counted(monitor, "mismatch")["all"] == sampled


def test_without_a_decoupled_loss_there_is_a_policy_pair_alone(monitor, rng):
    actor, batch = an_actor(use_decoupled_loss=False, recompute_logprob=False), made(rng)
    actor.engine.drift = 0.01
    del batch["prox_logp"], batch["ref_logp"]
    one_step(actor, batch)
    assert counted(monitor, "mismatch") == counted(monitor, "reference") == {}
    assert counted(monitor, "policy")["post_tool"] > 0


def test_an_interpolated_proximal_policy_is_not_taken_for_a_real_one(monitor, rng):
    batch = made(rng)
    del batch["prox_logp"], batch["ref_logp"]
    data = {**pack_tensor_dict(batch), "prox_logp": None}
    tracker_diag_areal.observe({"input_data": data, "logprobs": data["logprobs"]}, monitor)
    assert counted(monitor, "policy") == counted(monitor, "mismatch") == {}


def test_what_is_committed_goes_to_the_monitor_without_its_counts():
    trainer, monitor = a_trainer(mode="disabled"), Monitor([captured := CapturingTracker()])
    tracker_diag_areal.attach(trainer, monitor=monitor)
    data = [{"ppo_actor/task_reward/avg": 0.5, "ppo_actor/n__count": 3}, {"rollout/reward": 0.25}]
    trainer.stats_logger.commit(0, 7, 7, data)
    trainer.stats_logger.close()
    assert captured.own == {7: {"ppo_actor/task_reward/avg": 0.5, "rollout/reward": 0.25}}


class TestConformance(SameWithUs, WatchedOnce, KnowsTheSettings, LeavesNoHook, Resumes, SurvivesWhatIsGone):
    STEPS = [0]
    CLIP, CONFIG = (0.1, 0.3), {"actor.eps_clip_higher": 0.3}
    KEPT, ROWS = 3, (100, 96)
    GONE = {
        ("trainer", "actor"): True, ("trainer", "actor_alloc"): True, ("trainer", "stats_logger"): False,
        ("trainer", "recover_handler"): True, ("trainer", "recover_info"): True, ("logger", "commit"): False,
        ("logger", "close"): False, ("ppo", "grpo_loss_fn"): True, ("environ", "is_single_controller"): True,
        ("handler", "dump"): True, ("config", "actor"): True, (None, "areal.trainer.ppo.actor"): True,
    }  # fmt: skip
    BY_DEFAULT = {"actor", "actor_alloc"}

    @pytest.fixture
    def messages(self, shown):
        return lambda: shown

    @pytest.fixture(autouse=True)
    def patch(self, monkeypatch):
        """Models and data are in other processes."""
        for name in ("_save_checkpoint", "_load_checkpoint"):
            monkeypatch.setattr(RecoverHandler, name, lambda self, *given, **named: None)
        gateway = "_is_gateway_train_controller"
        monkeypatch.setattr(RecoverHandler, gateway, lambda self, engine: False, raising=False)

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

    def recovered(self, monitor):
        """A trainer that has looked for a checkpoint, and what goes into one."""
        trainer = self.make()
        parts = {name: SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
                 for name in ("saver", "evaluator", "dataloader")} | {"stats_logger": trainer.stats_logger}  # fmt: skip
        trainer.recover_info = trainer.recover_handler.load(None, **parts)
        self.attach(trainer, monitor)
        return trainer, parts

    def begin(self, folder, monitor):
        """Every second step is due; the row of a step is logged after its checkpoint."""
        trainer, parts = self.recovered(monitor)
        for step in range(4):
            info = StepInfo(epoch=0, epoch_step=step, global_step=step, steps_per_epoch=100)
            trainer.recover_handler.dump(None, info, **parts)
            trainer.stats_logger.commit(0, step, step, {"ppo_actor/task_reward/avg": 0.5})
        trainer.stats_logger.close()

    def resume(self, folder, monitor):
        trainer, _ = self.recovered(monitor)
        trainer.stats_logger.close()


def test_a_single_controller_is_reported_as_no_signal(monkeypatch, shown):
    monkeypatch.delenv("AREAL_SPMD_MODE")
    tracker_diag_areal.attach(a_trainer(mode="disabled"), monitor=Monitor()).close()
    assert ["no signal" in message for message in shown] == [True]
    assert not hasattr(ppo.grpo_loss_fn, "__wrapped__")


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
    shares = []
    monkeypatch.setattr(tracker_diag_areal, "together", lambda *own: shares.append(own) or together(*own))
    monitor = tracker_diag_areal.attach(trainer)
    assert hooked(trainer) == (rank % 2 == 0, rank % 2 == 0)
    assert [tracker.name for tracker in monitor.trackers] == (["jsonl"] if rank == 0 else [])
    assert shares == [data] * (rank % 2 == 0)
    if rank % 2 == 0:
        trainer.stats_logger.close()
    assert hooked(trainer) == (False, False)


def test_with_pipeline_parallelism_no_signal_is_reported_by_the_rank_that_logs(monkeypatch, job, shown):
    trainer = a_trainer(mode="disabled")
    job(trainer, 0, data=(0, 2), stages=2)
    tracker_diag_areal.attach(trainer)
    trainer.stats_logger.close()
    assert ["leave the actor in one stage" in message for message in shown] == [True]


@pytest.mark.parametrize("name", ["data_parallel_rank", "data_parallel_world_size", "is_data_parallel_head"])
def test_an_engine_that_says_nothing_of_its_share_costs_the_other_ranks_alone(job, shown, without, rng, name):
    trainer = a_trainer(mode="disabled")
    job(trainer, 0, data=(0, 2))
    monitor = without(trainer.actor, name, lambda: tracker_diag_areal.attach(trainer))
    assert "tokens of other ranks than the first are not seen" in without.reported_once(shown)
    trainer.stats_logger.commit(0, 0, 0, one_step(an_actor(), made(rng)))
    trainer.stats_logger.close()
    assert {row[1] for row in monitor.slices_table().rows} >= {"text_only", "post_tool"}


def test_two_ranks_are_seen_as_one_process_would_see_them_and_train_as_without_us(tmp_path, alerted):
    """AReaL's own FSDP engine, actor, loss and logger on two processes with gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [Path(__file__).with_name("ranks.py"), tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for rank in (first, second):
        assert rank["plain"] == rank["watched"]  # losses and weights to the bit, collectives and groups
        assert rank["plain"]["collectives"] > 12
        assert (rank["failures"], rank["hooked"]) == ([], False)
    assert first["plain"]["losses"] != second["plain"]["losses"]  # each of its own tokens
    assert second["backends"] == []
    given = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    alone = Monitor(window=len(given[0]))
    for step, batches in enumerate(zip(*given, strict=True)):
        for batch in (*batches[0], *batches[1]):
            tracker_diag_areal.observe(batch, alone)
        alone.log({}, step)
    for pair in ("mismatch", "policy", "reference"):
        for column in ("count", "p50", "p95"):
            ours = {row["slice"]: row[column] for row in first["table"] if row["pair"] == pair and row["count"]}
            assert ours == {name: counted(alone, pair, column)[name] for name in ours}
    assert counted(alone, "mismatch")["post_tool"]
    assert alerted("POL001") == {"wandb", "webhook"}
    titles = [alert["title"] for alert in alerted.alerts]  # a later one says that the reward never rose
    assert titles.count("Token probabilities shift after tool results (POL001 post_tool)") == 1  # by one process


@pytest.mark.matrix("areal", "real modules, made tensors")
def test_findings_reach_every_tracker(tmp_path, rng, alerted, underway):
    with underway("mlflow"):  # of which AReaL knows nothing
        trainer = a_trainer(mode="offline", curves=str(tmp_path / "curves"), project=alerted.project)
        monitor = tracker_diag_areal.attach(trainer)
        train(trainer, rng)
    assert names_the_tail(monitor)
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}


@pytest.mark.matrix("areal", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    trainer = a_trainer(mode="disabled")
    tracker_diag_areal.attach(trainer)
    train(trainer, rng)
    assert alerted("POL001") == {"jsonl", "webhook"}
