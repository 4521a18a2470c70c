import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_roll as integration
from tracker_diag_roll import workers as of_workers

from tests.integrations.conformance import (
    KnowsTheSettings,
    Resumes,
    SameWithUs,
    SketchesLosses,
    SurvivesWhatIsGone,
    counted,
)
from tracker_diag import Monitor

# Signatures and order of calls as in alibaba/ROLL at 8eb27cc: roll/utils/tracking.py (BaseTracker, tracker_registry,
# create_tracker), roll/utils/train_infer_corrections.py (both functions; the filter changes the batch's mask in
# place), roll/pipeline/base_pipeline.py, roll/pipeline/base_worker.py (ActorWorker) and
# roll/pipeline/agentic/agentic_pipeline.py.
CORRECTIONS = """
import torch

def compute_train_infer_correction(
    cfg, response_mask, old_log_probs, infer_log_probs, global_valid_samples=None, global_valid_tokens=None
):
    weight = torch.exp(old_log_probs - infer_log_probs).clamp(max=cfg)
    kept = torch.ones_like(response_mask)
    kept[0] = 0
    return weight, kept, {"actor/train_infer_final_mask_mean": 0.9}

def apply_train_infer_correction_to_batch(pipeline_config, batch, stat_mask_key="response_mask", update_mask_keys=None):
    mask = batch.batch[stat_mask_key][:, 1:].long()
    weight, kept, metrics = compute_train_infer_correction(
        cfg=2.0, response_mask=mask, old_log_probs=batch.batch["old_log_probs"],
        infer_log_probs=batch.batch["infer_logprobs"], global_valid_samples=None, global_valid_tokens=None,
    )
    batch.batch["train_infer_is_weight"] = weight
    batch.batch[stat_mask_key][:, 1:] *= kept
    return batch, metrics
"""


class WorkerState:
    """roll/utils/worker_state.py: of the pipeline and of each worker, distinguished by a tag."""

    step = 9

    def save_to_json(self, save_dir, tag):
        Path(save_dir).mkdir(parents=True, exist_ok=True)

    @classmethod
    def load_from_json(cls, load_dir, tag):
        return cls()


class ActorWorker:
    """roll/pipeline/base_worker.py: a loss asks for the old log-probabilities, which may be its own."""

    def __init__(self, config, updates=2):
        self.pipeline_config, self.updates = config, updates
        self.rank_info = SimpleNamespace(tp_rank=0, cp_rank=0)

    def get_old_log_probs_with_cache(self, data, log_probs):
        return data.batch["old_log_probs"] if self.pipeline_config.enable_old_logprobs_recompute else log_probs.detach()

    def train_step(self, data):
        result, model = [], torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for update in range(self.updates):
            new = (data.batch["old_log_probs"] + 0.1 * update).requires_grad_()
            loss = (new - self.get_old_log_probs_with_cache(data, new)).exp().mean()
            loss.backward()
            optimizer.step()
            result.append((loss.item(), new.grad))
        return result


class Quiet:
    """A tracker of one's own registered with ROLL, as its documentation tells."""

    def __init__(self, config, **kwargs):
        self.logged = []

    def log(self, values, step, **kwargs):
        self.logged.append((dict(values), step))

    def finish(self):
        self.logged.append("finished")


@pytest.fixture
def roll(module):
    for name in ("roll", "roll.utils", "roll.pipeline", "roll.pipeline.agentic"):
        module(name)
    corrections = module(integration.CORRECTIONS, CORRECTIONS)
    pipeline = module(
        integration.PIPELINES[0],
        apply_train_infer_correction_to_batch=corrections.apply_train_infer_correction_to_batch,
    )
    tracking = module("roll.utils.tracking", tracker_registry={"quiet": Quiet})
    state = type("State", (WorkerState,), {})
    worker_state = module("roll.utils.worker_state", WorkerState=state)
    return SimpleNamespace(
        tracking=tracking, corrections=corrections, pipeline=pipeline, worker_state=worker_state, state=state
    )


class Config:
    enable_old_logprobs_recompute = True
    track_with = "quiet"
    pg_clip, use_pg_clip_range, pg_clip_low, pg_clip_high = 0.2, True, 0.2, 0.28

    def __init__(self, **others):
        self.enable_reference = False
        vars(self).update(others)

    def to_dict(self):
        return {"adv_estimator": "grpo", "actor_train": {"lr": 1e-6}} | {
            name: getattr(self, name) for name in ("pg_clip", "use_pg_clip_range", "pg_clip_low", "pg_clip_high")
        }


def batch(number, size=6):
    generator = torch.Generator().manual_seed(number)
    mask = torch.zeros(size, 25, dtype=torch.long)  # long, so that ROLL's own slice is a view of the batch's
    mask[:, 7:13] = mask[: size // 2, 17:21] = 1
    old = torch.randn(size, 24, generator=generator) - 2
    noise = torch.randn(size, 24, generator=generator) * 0.05
    tensors = {
        "response_mask": mask,
        "old_log_probs": old,
        "infer_logprobs": old - noise,
        "ref_log_probs": old - 0.1,
        "advantages": torch.ones(size, 24),
    }
    return SimpleNamespace(
        batch=tensors, non_tensor_batch={"tags": np.array(["sokoban", "shop"] * (size // 2), object)}
    )


def train(roll, config, steps, size=6):
    """As BasePipeline and AgenticPipeline.run: the tracker is made, then a batch and a row a step."""
    tracker = roll.tracking.tracker_registry[config.track_with](config.to_dict(), project="p")
    for step in range(steps):
        data = batch(step, size)
        data, metrics = roll.pipeline.apply_train_infer_correction_to_batch(config, data, update_mask_keys=None)
        assert data.batch["response_mask"][0].sum() == 0
        tracker.log(values=metrics | {"actor/pg_loss@sum": 0.1, "critic/score/mean": 0.5}, step=step)
    return tracker


def test_tokens_before_filters_and_metrics_with_their_step(roll):
    monitor = integration.attach(Config(enable_reference=True), monitor=Monitor())
    tracker = train(roll, Config(), 5)
    assert monitor.step == 4
    assert monitor.summary().steps == 5
    assert not +monitor.health
    for pair in ("mismatch", "reference"):
        tokens = counted(monitor, pair)
        assert tokens["text_only"] == 5 * 6 * 6
        assert tokens["post_tool"] == 5 * 3 * 4
        assert tokens["env:shop"] == 5 * (3 * 6 + 4)
    assert counted(monitor, "policy") == {}
    assert tracker.logged[0][0]["actor/pg_loss@sum"] == 0.1


def test_without_a_reference_rolls_copy_of_the_old_policy_is_none(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    train(roll, Config(), 1)
    assert (counted(monitor, "reference"), counted(monitor, "mismatch") != {}) == ({}, True)


def test_it_is_closed_before_the_tracker(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    train(roll, Config(), 3).finish()
    monitor.log({}, 3)
    assert monitor.health["after_close"] == 1


def test_history_of_a_resumed_run_is_not_reported_again(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    tracker = roll.tracking.tracker_registry["quiet"]({})
    thread = threading.Thread(target=lambda: tracker.log(values={"critic/score/mean": 1.0}, step=3))
    thread.start()
    thread.join()
    assert tracker.logged == [({"critic/score/mean": 1.0}, 3)]
    assert monitor.step is None


def test_what_gives_no_signal_is_reported(roll, caplog):
    integration.attach(Config())
    assert not caplog.records
    integration.attach(Config(enable_old_logprobs_recompute=False, track_with=""))
    assert "set enable_old_logprobs_recompute: true" in caplog.text
    assert "Set track_with" in caplog.text


class TestConformance(SameWithUs, KnowsTheSettings, Resumes, SurvivesWhatIsGone):
    STEPS = [0, 1, 2]
    CLIP, CONFIG = (0.2, 0.28), {"actor_train.lr": 1e-6}
    KEPT, ROWS = 9, (200, 200)
    GONE = {
        (None, integration.CORRECTIONS): True, (None, "roll.utils.tracking"): False,
        (None, "roll.utils.worker_state"): True, ("corrections", "compute_train_infer_correction"): True,
        ("corrections", "apply_train_infer_correction_to_batch"): True,
        ("pipeline", "apply_train_infer_correction_to_batch"): True, ("tracking", "tracker_registry"): False,
        ("worker_state", "WorkerState"): True, ("config", "to_dict"): True,
    }  # fmt: skip
    BY_DEFAULT = {"to_dict"}

    @pytest.fixture(autouse=True)
    def modules(self, roll):
        self.roll = roll

    def owners(self, training):
        return vars(self.roll) | {"config": Config}

    def make(self):
        return Config(max_steps=200)

    def attach(self, training, monitor=None):
        return integration.attach(training, monitor=monitor)

    def train(self, training, steps=3):
        tracker = train(self.roll, training, steps)
        tracker.finish()
        return tracker.logged

    def begin(self, folder, monitor):
        """The row of the checkpoint is logged after it; workers keep states of their own."""
        self.attach(self.make(), monitor)
        tracker = train(self.roll, self.make(), 9)
        self.roll.state().save_to_json(save_dir=str(folder), tag="pipeline")
        self.roll.state().save_to_json(save_dir=str(folder / "worker"), tag="actor_train-0")
        tracker.log(values={"critic/score/mean": 0.5}, step=9)
        assert [file.name for file in folder.rglob("tracker_diag_*")] == ["tracker_diag_0.json"]

    def resume(self, folder, monitor):
        self.attach(self.make(), monitor)
        self.roll.state.load_from_json(load_dir=str(folder), tag="pipeline")


class TestWorkers(SketchesLosses):
    WORKERS, TOKENS = of_workers, (256, 64)

    @pytest.fixture(autouse=True)
    def actor(self, monkeypatch):
        self.kind = type("ActorWorker", (ActorWorker,), {})
        monkeypatch.setitem(sys.modules, "roll.pipeline.base_worker", SimpleNamespace(ActorWorker=self.kind))

    def update(self, times):
        return self.kind(Config(use_pg_clip_range=True, pg_clip_high=0.15), times).train_step(batch(0, 32))

    def test_an_actor_that_makes_no_old_log_probabilities_is_compared_with_the_engine(self, watched):
        self.put()
        self.kind(Config(enable_old_logprobs_recompute=False), 1).train_step(batch(0, 32))
        tokens = counted(monitor := watched(), "mismatch")
        assert (tokens["all"], tokens["post_tool"], counted(monitor, "policy")) == (*self.TOKENS, {})

    def test_of_ranks_with_the_same_tokens_one_sends(self, watched):
        self.put()
        actor = self.kind(Config())
        actor.rank_info.tp_rank = 1
        actor.train_step(batch(0, 32))
        assert counted(watched(), "policy") == {}

    @pytest.mark.parametrize("gone", ["get_old_log_probs_with_cache", "train_step", "rank_info", "advantages"])
    def test_whatever_is_gone_is_reported_once_and_it_continues(self, watched, caplog, without, gone):
        data = batch(0, 32)
        if gone in vars(ActorWorker):
            without(ActorWorker, gone, self.put)
        else:
            self.put()
        actor = self.kind(Config())
        vars(actor).pop(gone, None)
        data.batch.pop(gone, None)
        assert len(actor.train_step(data)) == 2
        assert sum("is not a tested version" in text or "integration_errors" in text for text in caplog.messages) == 1


@pytest.mark.parametrize(
    ("recompute", "kind", "gaps"),
    [(True, "token", False), (True, "sequence", True), (False, "token", True)],
)
def test_where_filters_take_tokens_out_before_the_workers_gaps_tell_nothing(monkeypatch, roll, recompute, kind, gaps):
    made = []
    monkeypatch.setattr(integration, "Workers", lambda monitor, **given: made.append(given))
    filters = [SimpleNamespace(enabled=True, agg_type=kind)]
    correction = SimpleNamespace(filters=filters)
    integration.attach(Config(enable_old_logprobs_recompute=recompute, train_infer_correction=correction))
    assert made == [{"fresh": recompute, "gaps": gaps}]
