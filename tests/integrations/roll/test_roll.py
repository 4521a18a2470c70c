import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mlflow
import numpy as np
import pytest
import torch
import tracker_diag_roll as integration
from tracker_diag_roll import workers as of_workers

from tests.integrations.conformance import SameWithUs, SurvivesWhatIsGone
from tracker_diag import Monitor
from tracker_diag.attach.workers import Recorder, Workers

# Signatures and order of calls as in alibaba/ROLL at 8eb27cc: roll/utils/tracking.py (BaseTracker, tracker_registry,
# create_tracker), roll/utils/train_infer_corrections.py (both functions; the filter changes the batch's mask in
# place), roll/pipeline/base_pipeline.py, roll/pipeline/base_worker.py (ActorWorker) and
# roll/pipeline/agentic/agentic_pipeline.py. `source.py` runs the real ones, by the command of `released.py`.
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
    """roll/utils/worker_state.py: of the pipeline and of each worker, told apart by a tag."""

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
        found, model = [], torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for update in range(self.updates):
            new = (data.batch["old_log_probs"] + 0.1 * update).requires_grad_()
            loss = (new - self.get_old_log_probs_with_cache(data, new)).exp().mean()
            loss.backward()
            optimizer.step()
            found.append((loss.item(), new.grad))
        return found


class Mlflow:
    """A tracker of one's own registered with ROLL, as its documentation tells; it starts the run."""

    def __init__(self, config, **kwargs):
        self.run = mlflow.start_run()
        self.told = []

    def log(self, values, step, **kwargs):
        self.told.append((dict(values), step))
        mlflow.log_metrics({name.partition("@")[0]: value for name, value in values.items()}, step=step)

    def finish(self):
        mlflow.end_run()


class Quiet(Mlflow):
    def __init__(self, config, **kwargs):
        self.told = []

    def log(self, values, step, **kwargs):
        self.told.append((dict(values), step))

    def finish(self):
        self.told.append("finished")


@pytest.fixture
def roll(monkeypatch):
    def module(name, source="", **contents):
        made = ModuleType(name)
        vars(made).update(contents)
        exec(source, vars(made))  # noqa: S102
        monkeypatch.setitem(sys.modules, name, made)
        return made

    for name in ("roll", "roll.utils", "roll.pipeline", "roll.pipeline.agentic"):
        module(name)
    corrections = module(integration.CORRECTIONS, CORRECTIONS)
    pipeline = module(
        integration.PIPELINES[0],
        apply_train_infer_correction_to_batch=corrections.apply_train_infer_correction_to_batch,
    )
    tracking = module("roll.utils.tracking", tracker_registry={"quiet": Quiet, "mlflow": Mlflow})
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


def batch(number, post=0.05, size=6):
    generator = torch.Generator().manual_seed(number)
    mask = torch.zeros(size, 25, dtype=torch.long)  # long, so that ROLL's own slice is a view of the batch's
    mask[:, 7:13] = mask[: size // 2, 17:21] = 1
    old = torch.randn(size, 24, generator=generator) - 2
    noise = torch.randn(size, 24, generator=generator) * 0.05
    noise[:, 16:] *= post / 0.05
    tensors = {
        "response_mask": mask,
        "old_log_probs": old,
        "infer_logprobs": old - noise,
        "ref_log_probs": old - 0.1,
        "advantages": torch.full((size, 24), 0.5),
    }
    return SimpleNamespace(
        batch=tensors, non_tensor_batch={"tags": np.array(["sokoban", "shop"] * (size // 2), object)}
    )


def train(roll, config, steps, tail=lambda step: 0.05, size=6):
    """As BasePipeline and AgenticPipeline.run: the tracker is made, then a batch and a row a step."""
    tracker = roll.tracking.tracker_registry[config.track_with](config.to_dict(), project="p")
    for step in range(steps):
        data = batch(step, tail(step), size)
        data, metrics = roll.pipeline.apply_train_infer_correction_to_batch(config, data, update_mask_keys=None)
        assert data.batch["response_mask"][0].sum() == 0
        tracker.log(values=metrics | {"actor/pg_loss@sum": 0.1, "critic/score/mean": 0.5}, step=step)
    return tracker


def counts(monitor):
    table = monitor.slices_table()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {(row["pair"], row["slice"]): row["count"] for row in rows}


def test_tokens_before_filters_and_metrics_with_their_step(roll):
    monitor = integration.attach(Config(enable_reference=True), monitor=Monitor())
    tracker = train(roll, Config(), 5)
    assert monitor.step == 4
    assert monitor.summary().steps == 5
    assert not +monitor.health
    found = counts(monitor)
    for pair in ("mismatch", "reference"):
        assert found[pair, "text_only"] == 5 * 6 * 6
        assert found[pair, "post_tool"] == 5 * 3 * 4
        assert found[pair, "env:shop"] == 5 * (3 * 6 + 4)
    assert ("policy", "all") not in found
    assert tracker.told[0][0]["actor/pg_loss@sum"] == 0.1
    assert [step for _, step in tracker.told] == list(range(5))


def test_without_a_reference_rolls_copy_of_the_old_policy_is_none(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    train(roll, Config(), 1)
    assert {pair for pair, _ in counts(monitor)} == {"mismatch"}


def test_it_is_closed_before_the_tracker(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    train(roll, Config(), 3).finish()
    assert monitor._summary is not None  # no public property says that a monitor is closed


def test_history_of_a_resumed_run_is_not_told_again(roll):
    monitor = integration.attach(Config(), monitor=Monitor())
    tracker = roll.tracking.tracker_registry["quiet"]({})
    thread = threading.Thread(target=lambda: tracker.log(values={"critic/score/mean": 1.0}, step=3))
    thread.start()
    thread.join()
    assert tracker.told == [({"critic/score/mean": 1.0}, 3)]
    assert monitor.step is None


@pytest.mark.nightly
def test_findings_arrive_in_the_run_that_roll_started(roll, mlflow_store):
    config = Config(track_with="mlflow")
    monitor = integration.attach(config)
    tracker = train(roll, config, 90, lambda step: 0.05 * (1 + max(step - 50, 0) / 5), size=64)
    run = tracker.run.info.run_id
    tracker.finish()
    found = mlflow.MlflowClient().get_run(run)
    assert found.info.status == "FINISHED"
    assert found.data.tags["diag.alert.state"] == "warn"
    assert found.data.tags["diag.first_break"]
    assert found.data.metrics["diag/mismatch/post_tool/p95"] > 0.3
    assert found.data.metrics["critic/score/mean"] == 0.5
    assert not +monitor.health


def test_settings_reach_the_monitor_and_what_gives_no_signal_is_told(roll, caplog):
    monitor = integration.attach(Config())
    assert monitor.clip == (0.2, 0.28)
    assert monitor.config["actor_train.lr"] == 1e-6
    assert not caplog.records
    integration.attach(Config(enable_old_logprobs_recompute=False, track_with=""))
    assert "set enable_old_logprobs_recompute: true" in caplog.text
    assert "Set track_with" in caplog.text


def test_a_changed_correction_is_told_and_no_ratio_is_seen(roll, caplog):
    before = roll.corrections.compute_train_infer_correction
    roll.pipeline.apply_train_infer_correction_to_batch = lambda data, masks: (data, {})
    integration.attach(Config(), monitor=Monitor())
    assert "takes no pipeline_config, batch" in caplog.text
    assert roll.corrections.compute_train_infer_correction is before
    assert roll.tracking.tracker_registry["quiet"] is not Quiet  # metrics are heard


class TestConformance(SameWithUs, SurvivesWhatIsGone):
    STEPS = [0, 1, 2]
    GONE = {
        (None, integration.CORRECTIONS): True, (None, "roll.utils.tracking"): False,
        (None, "roll.utils.worker_state"): True, ("corrections", "compute_train_infer_correction"): True,
        ("corrections", "apply_train_infer_correction_to_batch"): True,
        ("pipeline", "apply_train_infer_correction_to_batch"): True, ("tracking", "tracker_registry"): False,
        ("worker_state", "WorkerState"): True,
    }  # fmt: skip

    @pytest.fixture(autouse=True)
    def modules(self, roll):
        self.roll = roll

    def owners(self, training):
        return vars(self.roll)

    def make(self):
        return Config()

    def attach(self, training, monitor=None):
        return integration.attach(training, monitor=monitor)

    def train(self, training):
        tracker = train(self.roll, training, 3)
        tracker.finish()
        return tracker.told


def test_settings_that_cannot_be_read_are_told_once(roll, caplog, without):
    config = SimpleNamespace(enable_old_logprobs_recompute=True, track_with="quiet")
    integration.attach(config)
    assert "the run's settings are not known" in without.told_once(caplog.messages)


@pytest.mark.slow
def test_a_run_goes_on_with_the_state_in_the_pipelines_checkpoint(roll, tmp_path, caplog):
    monitor = integration.attach(Config(max_steps=200), monitor=Monitor())
    tracker = train(roll, Config(), 9)
    roll.state().save_to_json(save_dir=str(tmp_path), tag="pipeline")
    roll.state().save_to_json(save_dir=str(tmp_path / "worker"), tag="actor_train-0")
    tracker.log(values={"critic/score/mean": 0.5}, step=9)
    assert monitor.state_dict()["rows"] == 200
    assert [one.name for one in tmp_path.rglob("tracker_diag_*")] == ["tracker_diag_0.json"]
    again = integration.attach(Config(max_steps=200), monitor=Monitor())
    roll.state.load_from_json(load_dir=str(tmp_path), tag="pipeline")
    assert again.step == 9
    assert "begin anew" not in caplog.text
    (tmp_path / "tracker_diag_0.json").unlink()
    anew = integration.attach(Config(), monitor=Monitor())
    roll.state.load_from_json(load_dir=str(tmp_path), tag="pipeline")
    assert anew.step is None
    assert "begin anew" in caplog.text


@pytest.fixture
def worker(monkeypatch):
    """The module of ROLL's workers with our hooks, whose recorder sends to `Workers` of a monitor of this process."""
    kind = type("ActorWorker", (ActorWorker,), {})
    watched = Monitor(clip=(0.2, 0.28))
    workers = Workers(watched)
    recorder = Recorder(0, 1, workers.receive)
    monkeypatch.setattr(of_workers, "RECORDER", recorder)

    def sketched():
        recorder.close(60)
        workers.take_in()
        watched.log({}, 0)
        return {name: count for name, count in counts(watched).items() if name[1] in {"all", "post_tool"}}

    return SimpleNamespace(module=SimpleNamespace(ActorWorker=kind), kind=kind, watched=watched, sketched=sketched)


@pytest.mark.parametrize("updates", [1, 3])
def test_the_actors_losses_are_sketched_and_sent_and_a_first_update_apart(worker, updates):
    data = batch(0)
    plain = ActorWorker(Config(), updates).train_step(data)
    of_workers.put(worker.module)
    ours = worker.kind(Config(), updates).train_step(data)
    assert all(a == b and torch.equal(c, d) for (a, c), (b, d) in zip(plain, ours, strict=True))
    counted = max(updates - 1, 1)
    assert worker.sketched() == {("policy", "all"): counted * 48, ("policy", "post_tool"): counted * 12}
    assert worker.watched.health["rank_errors"] == 0


def test_an_actor_that_makes_no_old_log_probabilities_is_compared_with_the_engine(worker):
    of_workers.put(worker.module)
    worker.kind(Config(enable_old_logprobs_recompute=False), 1).train_step(batch(0))
    assert worker.sketched() == {("mismatch", "all"): 48, ("mismatch", "post_tool"): 12}


def test_of_ranks_with_the_same_tokens_one_sends(worker):
    of_workers.put(worker.module)
    one = worker.kind(Config())
    one.rank_info.tp_rank = 1
    one.train_step(batch(0))
    assert worker.sketched() == {}


@pytest.mark.parametrize("gone", ["get_old_log_probs_with_cache", "train_step", "rank_info", "advantages"])
def test_whatever_is_gone_of_a_worker_is_told_and_it_goes_on(worker, caplog, without, gone):
    data, own = batch(0), worker.kind
    if gone in vars(ActorWorker):
        without(ActorWorker, gone, lambda: of_workers.put(worker.module))
        without.told_once(caplog.messages)
    else:
        of_workers.put(worker.module)
    one = own(Config())
    vars(one).pop(gone, None)
    data.batch.pop(gone, None)
    assert len(one.train_step(data)) == 2
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
