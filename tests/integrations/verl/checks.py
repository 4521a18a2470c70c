"""What the integration does in verl's own modules; `test_verl.py` runs this in a process where verl can be imported."""

import inspect
import json
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import loops
import numpy as np
import pytest
import torch
import tracker_diag_verl
import verl  # noqa: F401  # loads the plugin, as it does in each process of a run
from batches import PROMPT, RESPONSE, ROWS, TestWorkers, begun, made, train, v0_step  # noqa: F401  # a class of tests
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from tracker_diag_verl.checkpoints import Checkpoints
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import metrics as debug_metrics
from verl.utils.skip import SkipManager
from verl.utils.tracking import Tracking

from tests.integrations.conformance import (
    KnowsTheSettings,
    LeavesNoHook,
    SameWithUs,
    SurvivesWhatIsGone,
    counted,
    names_the_tail,
)
from tracker_diag import Monitor
from tracker_diag.errors import SourceError
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.files.records import read_records
from tracker_diag.trackers.tokens.log import TokenLog

REJECT = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}


@pytest.fixture
def tracking():
    """One that the plugin watches."""
    made = begun()
    made.diag.add_tracker(capturing := CapturingTracker())
    made.captured = capturing
    yield made
    made.finish()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_tokens_are_sliced_by_the_mask_before_rejection_whose_tokens_count_as_modified(tracking, rng):
    batch = made(rng, post=0.8)
    before = int(batch.batch["response_mask"].sum())
    v0_step(tracking, 1, batch, **REJECT)
    kept = int(batch.batch["response_mask"].sum())
    result = counted(tracking.diag, "mismatch")
    assert kept < 0.95 * before  # verl has thrown tokens out of its mask
    assert before == result["all"] == counted(tracking.diag, "reference")["all"]
    assert result["text_only"] == ROWS // 2 * 8 + ROWS // 2 * 22
    assert result["post_tool"] == ROWS // 2 * 10
    assert result["env:search"] == ROWS // 2 * 18
    assert counted(tracking.diag, "policy") == {}
    assert result["advantage:positive"] + result["advantage:negative"] == kept  # rejected tokens have none
    shares = counted(tracking.diag, "mismatch", "modified_fraction")
    assert shares["post_tool"] > 0.3
    assert shares["text_only"] < 0.01


def test_attached_twice_each_step_is_heard_once_and_another_monitor_takes_its_place(tracking, rng):
    of_plugin, own = tracking.diag, Monitor([kept := CapturingTracker()])
    assert tracker_diag_verl.attach(tracking) is of_plugin
    assert tracker_diag_verl.attach(tracking, monitor=own) is own is tracking.diag
    v0_step(tracking, 1, made(rng))
    tracking.finish()
    assert list(kept.own) == [1]
    assert (of_plugin.step, +of_plugin.health) == (None, {})


def test_the_lag_is_between_the_oldest_policy_of_a_sequence_and_the_last_logged_step(tracking, rng):
    tracking.log({"val": 0.1}, step=4)
    v0_step(tracking, 5, made(rng, version=4))
    result = counted(tracking.diag, "mismatch")
    assert result["policy_lag:0"] == result["policy_lag:1"] == result["all"] // 2


def test_a_trainer_that_makes_its_advantages_elsewhere_is_seen_by_the_debug_metrics_alone(tracking, rng):
    batch = made(rng)
    tracking.log(debug_metrics.calculate_debug_metrics(batch), 1)
    assert counted(tracking.diag, "mismatch")["all"] == int(batch.batch["response_mask"].sum())


class TestConformance(SameWithUs, KnowsTheSettings, LeavesNoHook, SurvivesWhatIsGone):
    """The plugin has attached when a `Tracking` is there; what is attached here takes its place."""

    STEPS = [1]
    CLIP, CONFIG = (0.1, 0.3), {"algorithm.adv_estimator": "grpo"}
    GONE = {
        (None, "verl.utils.debug.metrics"): True, ("metrics", "calculate_debug_metrics"): True,
        ("v1", "calculate_debug_metrics"): True, ("v0", "compute_advantage"): True,
        ("v1", "compute_advantage_for_multi_trajectories"): True, ("trainer v1", "_compute_advantage"): True,
        ("v0", "RayPPOTrainer"): True, ("trainer v0", "_save_checkpoint"): True,
        ("trainer v1", "_load_checkpoint"): True, ("tracking", "log"): False,
    }  # fmt: skip

    def owners(self, training):
        return {"metrics": debug_metrics, "v0": ray_trainer, "v1": trainer_base, "tracking": Tracking,
                "trainer v0": ray_trainer.RayPPOTrainer, "trainer v1": trainer_base.PPOTrainer}  # fmt: skip

    @pytest.fixture(autouse=True)
    def checkpoints(self, monkeypatch):
        """As at the start of the process; the plugin has put hooks on for checkpoints."""
        monkeypatch.setattr(tracker_diag_verl, "CHECKPOINTS", Checkpoints())
        for kind in (ray_trainer.RayPPOTrainer, trainer_base.PPOTrainer):
            for name in ("_save_checkpoint", "_load_checkpoint"):
                monkeypatch.setattr(kind, name, inspect.unwrap(getattr(kind, name)))

    def make(self):
        training = begun()
        training.finish()  # takes the hooks of the plugin off
        return training

    def attach(self, training, monitor=None):
        if monitor is None:
            return training.diag
        tracker_diag_verl.CHECKPOINTS.__init__()
        return tracker_diag_verl.attach(training, monitor=monitor)

    def train(self, training):
        batch = made(np.random.default_rng(1), post=0.8)
        metrics = v0_step(training, 1, batch, **REJECT)
        training.finish()
        return metrics, dict(batch.batch.items())

    def hooked(self, training):
        return [ray_trainer.compute_advantage, debug_metrics.calculate_debug_metrics]

    def plain(self):
        self.make()
        batch = made(np.random.default_rng(1), post=0.8)
        return v0_step(SimpleNamespace(log=lambda data, step: None), 1, batch, **REJECT), dict(batch.batch.items())


def test_scores_and_what_the_reward_function_reported_are_of_each_sequence(tracking, rng):
    batch = made(rng)
    batch.non_tensor_batch["acc"] = np.array([row % 2 == 1 for row in range(ROWS)])
    batch.non_tensor_batch["format"] = np.array([0.5] * ROWS)
    batch.non_tensor_batch["__num_turns__"] = np.array([2 + row % 3 for row in range(ROWS)], dtype=np.int32)
    batch.non_tensor_batch["reward_model"] = np.array([{"ground_truth": "4"}] * ROWS, dtype=object)
    v0_step(tracking, 1, batch)
    result = {k.removeprefix("diag/samples/"): v for k, v in tracking.captured.scalars(1).items() if "/samples/" in k}
    assert (result["reward"], result["success_rate"], result["reward_component:format"]) == (0.5, 0.5, 0.5)
    assert result["turns"] == pytest.approx(np.mean([2 + row % 3 for row in range(ROWS)]))
    assert (result["effective_groups"], result["zero_std_share"]) == (ROWS // 4, 0.0)
    assert (result["response_length"], result["truncated_share"]) == (RESPONSE - 2, 0.0)
    assert result["advantage_success_correlation"] > 0.99
    assert not {name for name in result if "component" in name} - {
        "reward_component:format",
        "reward_component_std:format",
    }
    assert tracking.diag.failures == []


class Meta(SimpleNamespace):
    """Keys and tags of a batch, as `transfer_queue.KVBatchMeta` has them."""

    def __len__(self):
        return len(self.keys)


class Store:
    """Replaces TransferQueue: the fields of a batch, ragged, in this process."""

    def __init__(self, rows):
        self.rows = rows

    def kv_batch_get(self, keys, partition_id, select_fields):
        rows = [self.rows[key] for key in keys]
        fields = {}
        for name in (name for name in select_fields if name in rows[0]):
            values = [row[name] for row in rows]
            ragged = isinstance(values[0], torch.Tensor)
            fields[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged) if ragged else values
        uid = fields.pop("uid", None)
        data = TensorDict(fields, batch_size=len(rows))
        if uid is not None:
            data["uid"] = NonTensorStack(*uid)
        return data

    def kv_batch_put(self, keys, partition_id, fields):
        for name in fields.keys():  # noqa: SIM118  # a TensorDict
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value
        return Meta(keys=keys, partition_id=partition_id, tags=self.tags, extra_info={})


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_trainer_v1_itself_is_seen(tracking, rng, monkeypatch, outputs):
    """`_compute_old_log_prob` and `_compute_advantage` of the real trainer; store and workers are stand-ins.

    With several outputs a session, as where an agent loop makes its context anew, later ones follow what tools said.
    """
    padded = made(rng, post=0.8)
    ends = padded.batch["attention_mask"][:, -RESPONSE:].sum(1).tolist()
    names = {"rm_scores": "token_level_scores"} | {
        name: name for name in ("responses", "response_mask", "rollout_log_probs", "ref_log_prob")
    }
    rows = {
        f"{row // 4}_{row % 4 // outputs}_{row % outputs}": {
            ours: padded.batch[name][row, : ends[row]] for ours, name in names.items()
        }
        | {"uid": str(row // 4), "old": padded.batch["old_log_probs"][row, : ends[row]]}
        for row in range(ROWS)
    }
    for row in rows.values():  # the actor's answer has the prompt too, and each token's is one place earlier
        row["log_probs"] = torch.cat([torch.zeros(PROMPT - 1), row["old"], torch.zeros(1)])
        row["entropy"] = torch.ones_like(row["log_probs"])
    store = Store(rows)
    store.tags = [{"min_global_steps": 6, "max_global_steps": 7, "is_padding": False}] * ROWS
    monkeypatch.setattr(trainer_base, "tq", store)
    trainer = object.__new__(PPOTrainerSync)
    trainer.config = OmegaConf.create(
        {
            "algorithm": {
                "adv_estimator": "grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0,
                "rollout_correction": {
                    "rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0",
                },
            },
            "actor_rollout_ref": {
                "rollout": {"temperature": 1.0, "calculate_log_probs": True, "n": 4},
                "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
            },
        }
    )  # fmt: skip
    trainer.actor_rollout_wg = SimpleNamespace(compute_log_prob=lambda batch: list(batch.keys))
    batch = Meta(keys=list(rows), partition_id="train", tags=store.tags, extra_info={})
    metrics = {}
    tracking.log({"val": 0.1}, step=7)
    batch = trainer._compute_old_log_prob(batch, metrics)
    trainer._compute_advantage(batch, metrics)
    tracking.log(data=metrics, step=8)
    assert metrics["training/rollout_probs_diff_valid"] == 1
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] > 0.05
    result = counted(tracking.diag, "mismatch")
    later = 0 if outputs == 1 else ROWS // 4 * 8 + ROWS // 4 * 22  # of odd rows, what comes before any gap
    assert result["post_tool"] == ROWS // 2 * 10 + later
    assert result["text_only"] == ROWS // 2 * 30 - later
    assert result["policy_lag:1"] == result["all"]
    assert counted(tracking.diag, "reference")["all"] == result["all"]


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_reach_every_tracker(places, rng, alerted):
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    tracking = begun(*trackers, project=alerted.project)
    monitor = tracking.diag
    train(tracking, rng)
    del tracking  # as when fit returns: verl finishes what is freed, and we are before it
    assert names_the_tail(monitor)
    assert alerted("POL001") == {*trackers, "webhook"}


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    tracking = begun()
    train(tracking, rng)
    tracking.finish()
    assert alerted("POL001") == {"jsonl", "webhook"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}}, "calculate_log_probs=True"),
        ({"algorithm": {"rollout_correction": {"bypass_mode": True}}}, "bypass_mode=False"),
    ],
)
def test_settings_that_leave_no_signal_are_reported_once(config, message, caplog):
    tracker_diag_verl.attach(SimpleNamespace(), config=config).close()
    tracker_diag_verl.CHECKPOINTS.leave()  # else what the next test loads would be of this run
    assert caplog.text.count(message) == 1


def test_a_batch_that_cannot_be_read_is_counted_and_training_continues(tracking, rng, caplog):
    batch = made(rng)
    batch.batch["rollout_log_probs"] = batch.batch["rollout_log_probs"][:, :-1].clone()
    ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    assert tracking.diag.health["integration_errors"] == 1
    assert "rollout_log" in caplog.text


@pytest.fixture(params=["v0", "v1"])
def loop(request, monkeypatch):
    """verl's own loop of one of its trainers; gives what was done, and the monitor."""
    monkeypatch.setattr(trainer_base, "tq", SimpleNamespace(kv_clear=lambda **given: None))
    monkeypatch.setattr(trainer_base.PPOTrainer, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(SkipManager, "init", lambda config: None)  # it reads rollouts from files, if asked to

    def run(folder, breaks=None, **settings):
        did = getattr(loops, request.param)(folder, breaks, settings)
        monitor = tracker_diag_verl._Watch.current._monitor  # private: `fit` gives no Tracking away
        assert monitor.failures == []
        return did, monitor

    return run


@pytest.fixture
def fit(loop, tmp_path):
    """Trains with guards as a file; gives what was done, and the events of the diagnostics."""

    def train(*guards, breaks=3, **settings):
        folder = Path(mkdtemp(dir=tmp_path))
        listed = [{"do": do, "on": {"rules": ["NUM004"]}, "act": True, **given} for do, given in guards]
        if guards:
            (folder / "guards.yaml").write_text(json.dumps({"guards": listed}))
        did, monitor = loop(folder, breaks, **settings)
        did.events = [event for _, event in monitor.events]
        did.folder, did.register = folder, monitor.guards.checkpoints.table().rows
        return did

    return train


def test_a_training_that_is_resumed_has_the_state_next_to_the_checkpoint(loop, tmp_path, caplog):
    """By the plugin, which makes the monitors."""
    _, first = loop(tmp_path, save_freq=4)
    kept = tmp_path / "global_step_4" / "tracker_diag_0.json"
    resume = {"resume_mode": "resume_path", "resume_from_path": str(kept.parent)}
    _, second = loop(tmp_path, **resume)
    assert (first.summary().steps, second.summary().steps) == (8, 8)  # of which the first four are from the state
    assert "run start over" not in caplog.text
    kept.unlink()
    _, third = loop(tmp_path, **resume)
    assert (third.summary().first_step, third.summary().steps) == (5, 4)
    assert (first.state_dict()["rows"], third.state_dict()["rows"]) == (loops.STEPS, loops.STEPS - 4)
    assert caplog.text.count("run start over") == 1


ALL = [*range(1, loops.STEPS + 1)]


def test_a_guard_stops_training_with_the_step_after_which_is_saved_and_evaluated_as_the_last(fit):
    did = fit(("stop_training", {}), save_freq=100, test_freq=100)
    assert (did.updated, did.saved, did.evaluated) == ([1, 2, 3, 4], [4], [4])


def test_a_state_is_saved_and_registered_and_an_evaluation_made_with_the_step_after(fit):
    did = fit(("save_state", {}), ("reevaluate", {}))
    assert (did.updated, did.saved, did.evaluated) == (ALL, [4], [4])
    assert [(row[0], row[1]) for row in did.register] == [(4, str(did.folder / "global_step_4"))]


def test_updates_are_left_out_and_a_state_is_saved_when_there_is_one_again(fit):
    assert fit(("skip_batch", {})).updated == [1, 2, 3, 5, 6, 7, 8]
    did = fit(("stop_update", {"hold": 2}), ("save_state", {}))
    assert (did.updated, did.saved) == ([1, 2, 3, 6, 7, 8], [6])


def test_the_weight_of_the_kl_in_the_reward_is_set_while_the_incident_lasts(fit):
    did = fit(("kl_cap", {"bounds": [0.5, 0.5], "target": 0.01, "hold": 2}))
    assert did.kl_coef == {step: 0.5 if step in (4, 5) else 0.001 for step in ALL}


def test_what_is_out_of_reach_is_reported_and_a_healthy_training_is_as_without_guards(fit):
    did = fit(("scale_lr", {}), ("rollback", {}))
    assert did.updated == ALL
    assert sum("not within reach of this trainer" in event for event in did.events) == 2
    guards = [(do, {}) for do in ("stop_training", "save_state", "reevaluate", "skip_batch", "stop_update")]
    watched, alone = fit(*guards, breaks=None), fit(breaks=None)
    assert (watched.updated, watched.saved, watched.evaluated) == (ALL, [], [])
    assert watched.weights.equal(alone.weights)


def test_a_replay_of_what_verl_dumps_points_to_audit(tmp_path):
    """`trainer.rollout_data_dir`, by verl's own writer: texts and scores, no log-probabilities."""
    ray_trainer.RayPPOTrainer._write_generations(["q"], ["a"], ["a"], [1.0], {"acc": [1]}, tmp_path, 3)
    with pytest.raises(SourceError, match=r"no log-probabilities, .*`tracker-diag audit` looks at texts and rewards"):
        TokenLog(tmp_path)
    assert [sample["reward"] for sample in read_records(tmp_path / "3.jsonl")[0]] == [1.0]
