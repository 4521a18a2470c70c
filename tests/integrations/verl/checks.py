"""What the integration does in verl's own modules; `test_verl.py` runs this in a process where verl can be imported."""

import inspect
import json
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import loops
import mlflow
import numpy as np
import pytest
import torch
import tracker_diag_verl
import verl  # noqa: F401  # loads the plugin, as it does in each process of a run
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from tracker_diag_verl.checkpoints import Checkpoints
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import ray_trainer, rollout_corr_helper
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import metrics as debug_metrics
from verl.utils.skip import SkipManager
from verl.utils.tracking import Tracking

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

CONFIG = {
    "trainer": {"project_name": "agent"},
    "algorithm": {"adv_estimator": "grpo"},
    "actor_rollout_ref": {
        "actor": {"clip_ratio": 0.2, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
        "rollout": {"calculate_log_probs": True},
    },
}
REJECT = RolloutCorrectionConfig(
    rollout_is="token", rollout_is_threshold=2.0, rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0"
)
ROWS, PROMPT, RESPONSE = 64, 4, 24


def made(rng, post=0.02, text=0.02, version=0):
    """A batch as the agent loop of verl lays it out: a tool result amid half of the responses, padding at both ends."""
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.int64)
    mask[: ROWS // 2, 8:12] = 0
    attention = torch.ones(ROWS, PROMPT + RESPONSE, dtype=torch.int64)
    attention[:, 0] = attention[:, -2:] = 0
    mask[:, -2:] = 0
    after = torch.zeros(ROWS, RESPONSE)
    after[: ROWS // 2, 12:] = 1
    old = torch.tensor(rng.uniform(-3, -0.1, (ROWS, RESPONSE)), dtype=torch.float32)
    noise = torch.tensor(rng.normal(size=(ROWS, RESPONSE)), dtype=torch.float32)
    scores = torch.zeros(ROWS, RESPONSE)
    scores[:, 21] = torch.arange(ROWS) % 2
    return DataProto.from_dict(
        tensors={
            "responses": torch.ones(ROWS, RESPONSE, dtype=torch.int64),
            "attention_mask": attention,
            "response_mask": mask,
            "old_log_probs": old * mask,
            "rollout_log_probs": (old - torch.where(after == 1, post, text) * noise) * mask,  # 0.0 on tool tokens
            "ref_log_prob": old - 0.1,
            "token_level_scores": scores,
            "token_level_rewards": scores,
        },
        non_tensors={
            "uid": np.array([str(row // 4) for row in range(ROWS)], dtype=object),
            "data_source": np.array(["search" if row < ROWS // 2 else "maths" for row in range(ROWS)], dtype=object),
            "min_global_steps": np.array([version - row % 2 for row in range(ROWS)], dtype=object),
            "max_global_steps": np.array([version] * ROWS, dtype=object),
        },
    )


def v0_step(tracking, step, batch, correction=REJECT):
    """The calls of `RayPPOTrainer.fit` in their order, with its lazy imports."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    metrics = calculate_debug_metrics(batch)
    if correction is not None:
        batch, found = compute_rollout_correction_and_add_to_batch(batch, correction)
        metrics.update(found)
    batch = ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    metrics["critic/score/mean"] = 0.5
    tracking.log(data=metrics, step=step)
    return metrics


@pytest.fixture
def tracking():
    made = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    capturing = CapturingTracker()
    made.diag.add(capturing)
    made.captured = capturing
    yield made
    made.finish()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def slices(tracking):
    (table,) = (one for one in tracking.captured.tables if one.name == "diag/slices")
    return table


def counts(tracking, pair):
    """Tokens by slice of what was observed and has no step yet, or of the step that is underway."""
    tracking.diag.close()
    table = slices(tracking)
    at = table.columns.index
    return {row[at("slice")]: row[at("count")] for row in table.rows if row[at("pair")] == pair}


def test_the_entry_point_gives_each_tracking_a_monitor_that_knows_its_settings(tracking):
    assert isinstance(tracking.diag, Monitor)
    assert tracking.diag.config["algorithm.adv_estimator"] == "grpo"
    assert tracking.diag.clip == (0.1, 0.3)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (debug_metrics, "calculate_debug_metrics", ["data"]),
        (trainer_base, "calculate_debug_metrics", ["data"]),
        (ray_trainer, "compute_advantage", ["data", "adv_estimator"]),
        (trainer_base, "compute_advantage_for_multi_trajectories", ["data", "batch_keys"]),
        (trainer_base.PPOTrainer, "_compute_advantage", ["self", "batch", "metrics"]),
        (rollout_corr_helper, "compute_rollout_correction_and_add_to_batch", ["batch", "rollout_corr_config"]),
        (ray_trainer.RayPPOTrainer, "_save_checkpoint", ["self"]),
        (ray_trainer.RayPPOTrainer, "_load_checkpoint", ["self"]),
        (trainer_base.PPOTrainer, "_save_checkpoint", ["self"]),
        (trainer_base.PPOTrainer, "_load_checkpoint", ["self"]),
        (Tracking, "log", ["self", "data", "step"]),
        (Tracking, "finish", ["self"]),
    ],
)
def test_the_functions_that_are_looked_at_take_what_they_did(owner, name, parameters):
    assert list(inspect.signature(getattr(owner, name)).parameters)[: len(parameters)] == parameters


def test_tokens_are_sliced_by_the_mask_before_rejection(tracking, rng):
    batch = made(rng, post=0.8)
    metrics = v0_step(tracking, 1, batch)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] > 0.05  # verl has thrown tokens out of its mask
    found = counts(tracking, "mismatch")
    assert found["text_only"] == ROWS // 2 * 8 + ROWS // 2 * 22
    assert found["post_tool"] == ROWS // 2 * 10
    assert found["env:search"] == ROWS // 2 * 18
    assert counts(tracking, "reference")["all"] == found["all"]
    assert "policy" not in {row[0] for row in slices(tracking).rows}


def test_attached_twice_each_step_is_heard_once_and_another_monitor_takes_its_place(tracking, rng):
    of_plugin = tracking.diag
    assert tracker_diag_verl.attach(tracking) is of_plugin
    v0_step(tracking, 1, made(rng))
    assert counts(tracking, "mismatch")["all"] == int(made(rng).batch["response_mask"].sum())
    own = Monitor([kept := CapturingTracker()])
    again = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    of_plugin = again.diag
    assert tracker_diag_verl.attach(again, monitor=own) is own is again.diag
    v0_step(again, 1, made(rng))
    again.finish()
    assert list(kept.own) == [1]
    assert (of_plugin.step, +of_plugin.health) == (None, {})


def test_rejected_tokens_have_no_advantage_and_count_as_modified(tracking, rng):
    batch = made(rng, post=0.8)
    before = int(batch.batch["response_mask"].sum())
    v0_step(tracking, 1, batch)
    kept = int(batch.batch["response_mask"].sum())
    found = counts(tracking, "mismatch")
    assert kept < before == found["all"]
    assert found["advantage:positive"] + found["advantage:negative"] == kept
    table = slices(tracking)
    shares = {row[1]: row[table.columns.index("modified_fraction")] for row in table.rows if row[0] == "mismatch"}
    assert shares["post_tool"] > 0.3
    assert shares["text_only"] < 0.01


def test_the_lag_is_between_the_oldest_policy_of_a_sequence_and_the_last_logged_step(tracking, rng):
    tracking.log({"val": 0.1}, step=4)
    v0_step(tracking, 5, made(rng, version=4))
    found = counts(tracking, "mismatch")
    assert found["policy_lag:0"] + found["policy_lag:1"] == found["all"]
    assert found["policy_lag:1"] == found["all"] // 2


def test_a_trainer_that_makes_its_advantages_elsewhere_is_seen_by_the_debug_metrics_alone(tracking, rng):
    batch = made(rng)
    tracking.log(debug_metrics.calculate_debug_metrics(batch), 1)
    assert counts(tracking, "mismatch")["all"] == int(batch.batch["response_mask"].sum())


def test_scores_and_what_the_reward_function_told_are_of_each_sequence(tracking, rng):
    batch = made(rng)
    batch.non_tensor_batch["acc"] = np.array([row % 2 == 1 for row in range(ROWS)])
    batch.non_tensor_batch["format"] = np.array([0.5] * ROWS)
    batch.non_tensor_batch["__num_turns__"] = np.array([2 + row % 3 for row in range(ROWS)], dtype=np.int32)
    batch.non_tensor_batch["reward_model"] = np.array([{"ground_truth": "4"}] * ROWS, dtype=object)
    v0_step(tracking, 1, batch)
    found = {k.removeprefix("diag/samples/"): v for k, v in tracking.captured.scalars(1).items() if "/samples/" in k}
    assert (found["reward"], found["success_rate"], found["reward_component:format"]) == (0.5, 0.5, 0.5)
    assert found["turns"] == pytest.approx(np.mean([2 + row % 3 for row in range(ROWS)]))
    assert (found["effective_groups"], found["zero_std_share"]) == (ROWS // 4, 0.0)
    assert (found["response_length"], found["truncated_share"]) == (RESPONSE - 2, 0.0)
    assert found["advantage_success_correlation"] > 0.99
    assert not {name for name in found if "component" in name} - {
        "reward_component:format",
        "reward_component_std:format",
    }
    assert tracking.diag.failures == []


def test_what_verl_computes_is_as_without_us(tracking, rng):
    watched, alone = made(np.random.default_rng(1), post=0.8), made(np.random.default_rng(1), post=0.8)
    state = torch.get_rng_state()
    ours = v0_step(tracking, 1, watched)
    assert torch.equal(state, torch.get_rng_state())
    tracking.finish()  # takes the hooks off
    assert not hasattr(ray_trainer.compute_advantage, "__wrapped__")
    assert v0_step(SimpleNamespace(log=lambda data, step: None), 1, alone) == ours
    assert all(torch.equal(watched.batch[name], value) for name, value in alone.batch.items())


class Meta(SimpleNamespace):
    """Keys and tags of a batch, as `transfer_queue.KVBatchMeta` has them."""

    def __len__(self):
        return len(self.keys)


class Store:
    """Stands in for TransferQueue: the fields of a batch, ragged, in this process."""

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
    found = counts(tracking, "mismatch")
    later = 0 if outputs == 1 else ROWS // 4 * 8 + ROWS // 4 * 22  # of odd rows, what comes before any gap
    assert found["post_tool"] == ROWS // 2 * 10 + later
    assert found["text_only"] == ROWS // 2 * 30 - later
    assert found["policy_lag:1"] == found["all"]
    assert counts(tracking, "reference")["all"] == found["all"]


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_and_series_reach_the_trackers_that_verl_started(
    tmp_path, rng, monkeypatch, new_mlflow_store, alerted
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_mlflow_store(tmp_path))
    monkeypatch.chdir(tmp_path)
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    tracking = Tracking(alerted.project, "run", default_backend=trackers, config=CONFIG)
    run = mlflow.active_run().info.run_id
    monitor = tracking.diag
    for step in range(1, 46):
        v0_step(tracking, step, made(rng, post=0.02 if step < 30 else 0.5, version=step - 1))
    del tracking  # as when fit returns: verl finishes what is freed, and we are before it
    client = mlflow.MlflowClient()
    assert client.get_run(run).info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run, "critic/score/mean")] == list(range(1, 46))
    p95 = {m.step: m.value for m in client.get_metric_history(run, "diag/mismatch/post_tool/p95")}
    assert set(p95) == set(range(2, 46))  # the first step has too few tokens after tools
    assert p95[45] > 4 * p95[25]
    findings = json.loads(mlflow.artifacts.load_text(f"{client.get_run(run).info.artifact_uri}/diag/findings.json"))
    fired = [found for found in findings["findings"] if found["state"] == "firing"]
    assert "post_tool" in {found["slice"] for found in fired}
    assert all(found["onset"] >= 20 for found in fired)
    assert alerted("POL001") == {*trackers, "webhook"}
    assert monitor.health["integration_errors"] == monitor.health["rejected_batches"] == 0


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    tracking = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    for step in range(1, 46):
        v0_step(tracking, step, made(rng, post=0.02 if step < 30 else 0.5, version=step - 1))
    tracking.finish()
    assert alerted("POL001") == {"jsonl", "webhook"}


def test_a_verl_that_has_changed_is_told_and_training_goes_on(tracking, rng, monkeypatch, caplog):
    tracking.finish()
    monkeypatch.setattr(ray_trainer, "compute_advantage", lambda batch, adv_estimator, num_repeat: batch)
    tracker_diag_verl.attach(tracking)
    assert "compute_advantage" in caplog.text
    assert "takes no data" in caplog.text
    assert not hasattr(debug_metrics.calculate_debug_metrics, "__wrapped__")
    v0_step(tracking, 1, made(rng))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"actor_rollout_ref": {"rollout": {"calculate_log_probs": False}}}, "calculate_log_probs=True"),
        ({"algorithm": {"rollout_correction": {"bypass_mode": True}}}, "bypass_mode=False"),
    ],
)
def test_settings_that_leave_no_signal_are_told_once(config, said, caplog):
    tracker_diag_verl.attach(SimpleNamespace(), config=config).close()
    tracker_diag_verl.CHECKPOINTS.leave()  # else what the next test loads would be of this run
    assert caplog.text.count(said) == 1


def test_a_batch_that_cannot_be_read_is_counted_and_training_goes_on(tracking, rng, caplog):
    batch = made(rng)
    batch.batch["rollout_log_probs"] = batch.batch["rollout_log_probs"][:, :-1].clone()
    ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    assert tracking.diag.health["integration_errors"] == 1
    assert "rollout_log" in caplog.text


@pytest.fixture(params=["v0", "v1"])
def fit(request, tmp_path, monkeypatch):
    """Trains by verl's own loop, with guards as a file; gives what was done, and the events of the diagnostics."""
    store = SimpleNamespace(kv_clear=lambda **given: None)
    monkeypatch.setattr(trainer_base, "tq", store)
    monkeypatch.setattr(trainer_base.PPOTrainer, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(SkipManager, "init", lambda config: None)  # it reads rollouts from files, if asked to

    def train(*guards, breaks=3, **settings):
        folder = Path(mkdtemp(dir=tmp_path))
        listed = [{"do": do, "on": {"rules": ["NUM004"]}, "act": True, **given} for do, given in guards]
        if guards:
            (folder / "guards.yaml").write_text(json.dumps({"guards": listed}))
        did = getattr(loops, request.param)(folder, breaks, settings)
        monitor = tracker_diag_verl._Watch.current._monitor
        assert monitor.failures == []
        did.events = [event for _, event in monitor.events]
        did.folder, did.register = folder, monitor.guards.checkpoints.table().rows
        return did

    return train


ALL = [*range(1, loops.STEPS + 1)]


@pytest.mark.parametrize("loop", ["v0", "v1"])
def test_a_training_that_is_resumed_goes_on_with_the_state_beside_the_checkpoint(tmp_path, monkeypatch, caplog, loop):
    monkeypatch.setattr(trainer_base, "tq", SimpleNamespace(kv_clear=lambda **given: None))
    monkeypatch.setattr(trainer_base.PPOTrainer, "_compute_advantage", lambda self, batch, metrics: batch)
    monkeypatch.setattr(SkipManager, "init", lambda config: None)
    train = getattr(loops, loop)

    def run(**settings):
        train(tmp_path, None, settings)
        monitor = tracker_diag_verl._Watch.current._monitor
        assert monitor.failures == []
        return monitor

    first = run(save_freq=4)
    kept = tmp_path / "global_step_4" / "tracker_diag_0.json"
    state = json.loads(kept.read_text())
    assert (state["rows"], state["framework_release"]) == (loops.STEPS, version("verl"))
    resume = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path / "global_step_4")}
    second = run(**resume)
    assert (first.summary().steps, second.summary().steps) == (8, 8)  # of which the first four are from the state
    assert "run begin anew" not in caplog.text
    kept.unlink()
    third = run(**resume)
    assert (third.summary().first_step, third.summary().steps) == (5, 4)
    assert third.state_dict()["rows"] == loops.STEPS - 4
    assert caplog.text.count("run begin anew") == 1
    assert next(event for _, event in third.events).endswith("the diagnostics of the resumed run begin anew")


@pytest.mark.parametrize(
    "gone",
    [
        (None, "verl.utils.debug.metrics"), (debug_metrics, "calculate_debug_metrics"),
        (trainer_base, "calculate_debug_metrics"), (ray_trainer, "compute_advantage"),
        (trainer_base, "compute_advantage_for_multi_trajectories"), (trainer_base.PPOTrainer, "_compute_advantage"),
        (ray_trainer, "RayPPOTrainer"), (ray_trainer.RayPPOTrainer, "_save_checkpoint"),
        (trainer_base.PPOTrainer, "_load_checkpoint"), (Tracking, "log"), (None, "verl.utils.tracking"),
    ],
)  # fmt: skip
def test_whatever_is_gone_is_told_once_and_training_goes_on(tracking, monkeypatch, caplog, without, gone):
    owner, name = gone
    tracking.finish()
    monkeypatch.setattr(tracker_diag_verl, "CHECKPOINTS", Checkpoints())
    monitor = Monitor()
    without(owner, name, lambda: tracker_diag_verl.attach(tracking, monitor=monitor))
    v0_step(tracking, 1, made(np.random.default_rng(0)))
    without.told_once(caplog.messages)
    assert monitor.step == (None if name in {"log", "verl.utils.tracking"} else 1)
    assert monitor.failures == []


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


def test_what_is_out_of_reach_is_told_and_a_healthy_training_is_as_without_guards(fit):
    did = fit(("scale_lr", {}), ("rollback", {}))
    assert did.updated == ALL
    assert sum("not within reach of this trainer" in event for event in did.events) == 2
    guards = [(do, {}) for do in ("stop_training", "save_state", "reevaluate", "skip_batch", "stop_update")]
    watched, alone = fit(*guards, breaks=None), fit(breaks=None)
    assert (watched.updated, watched.saved, watched.evaluated) == (ALL, [], [])
    assert watched.weights.equal(alone.weights)
