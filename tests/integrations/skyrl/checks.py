"""What the integration does in SkyRL's own modules; `test_skyrl.py` runs this in a process that can import them."""

import inspect
import json
from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
import torch
import tracker_diag_skyrl
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch
from skyrl.train import trainer as skyrl_trainer
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import CallbackHandler, CallbackInput, TrainingCallback, TrainingControl
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.trainer_utils import ResumeMode

from tests.integrations.conformance import SameWithUs, WatchedOnce
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

ROWS, RESPONSE = 64, 24


def made(rng, post=0.02, text=0.02):
    """A batch by SkyRL's own conversion: responses of several lengths, a tool result amid half of them."""
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    masks = [[0 if row < ROWS // 2 and 8 <= at < 12 else 1 for at in range(n)] for row, n in enumerate(lengths)]
    old = [rng.uniform(-3, -0.1, n) for n in lengths]
    rollout = [np.zeros(n) for n in lengths]
    for row, (values, mask) in enumerate(zip(old, masks, strict=True)):
        after = (row < ROWS // 2) & (np.arange(len(mask)) >= 12)
        noise = np.where(after, post, text) * rng.normal(size=len(mask))
        rollout[row] = np.where(np.array(mask) == 1, values - noise, 0.0)  # 0.0 on tool tokens
    prompts = [[5] * (4 + row % 5) for row in range(ROWS)]
    responses, rewards = [[6] * n for n in lengths], [[0.0] * n for n in lengths]
    by_tokenizer = "tokenizer" in inspect.signature(convert_prompts_responses_to_batch_tensors).parameters  # up to 0.3
    tokenizer = SimpleNamespace(pad_token_id=0) if by_tokenizer else 0
    sequences, attention, response, rewards, loss, logprobs, *_ = convert_prompts_responses_to_batch_tensors(
        tokenizer, prompts, responses, rewards, masks, [row.tolist() for row in rollout]
    )
    action = torch.zeros(ROWS, RESPONSE)
    for row, values in enumerate(old):
        action[row, RESPONSE - len(values) :] = torch.tensor(values)
    batch = TrainingInputBatch(
        {
            "sequences": sequences,
            "attention_mask": attention,
            "response_mask": response,
            "loss_mask": loss,
            "rollout_logprobs": logprobs,
            "action_log_probs": action,
            "base_action_log_probs": action - 0.1,
            "advantages": torch.where(torch.arange(ROWS) % 2 == 0, 1.0, -1.0)[:, None] * response,
        }
    )
    batch.metadata = {}
    return batch


def a_trainer(kind, tracker, **settings):
    """One whose loop is in the test; its events, its handler and its training step are SkyRL's."""
    trainer = object.__new__(kind)
    vars(trainer).update(
        cfg=SkyRLTrainConfig(), tracker=tracker, train_dataloader=[0], total_training_steps=100, global_step=0,
        _current_epoch=0, _training_control=TrainingControl(), _callback_handler=CallbackHandler(), all_metrics={},
        all_timings={}, dispatch=SimpleNamespace(empty_cache=lambda: None),
        _execute_training_step=lambda model, data: {"policy_entropy": 0.7},
    )  # fmt: skip
    vars(trainer).update(settings)
    return trainer


def sync_step(trainer, step, batch):
    """What `RayPPOTrainer.train` does around a step, in its order, with what it takes out of the batch."""
    trainer.global_step = step
    if "uids" in batch.metadata:
        batch = trainer.compute_advantages_and_returns(batch)
        batch.pop("rewards")
        batch.metadata.pop("uids")
        batch.metadata.pop("is_last_step", None)
    status = trainer.train_critic_and_policy(batch)
    trainer._fire("on_step_end", batch=batch, metrics=status)
    logs = {**trainer.all_metrics, "reward/avg_raw_reward": 0.5}
    trainer._fire("on_log", logs=logs)
    trainer.tracker.log(logs, step=step, commit=True)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def watched():
    """A monitor, and a way to count its tokens by slice when all is observed."""
    captured = CapturingTracker()
    monitor = Monitor([captured])

    def counts(pair):
        monitor.close()
        (table,) = (one for one in captured.tables if one.name == "diag/slices")
        at = table.columns.index("count")
        return {row[1]: row[at] for row in table.rows if row[0] == pair}

    return SimpleNamespace(monitor=monitor, counts=counts, captured=captured)


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (TrainingCallback, "on_step_end", ["self", "trainer", "callback_input", "control"]),
        (TrainingCallback, "on_log", ["self", "trainer", "callback_input", "control"]),
        (TrainingCallback, "on_train_end", ["self", "trainer", "callback_input", "control"]),
        (RayPPOTrainer, "add_callback", ["self", "callback"]),
        (RayPPOTrainer, "compute_advantages_and_returns", ["self", "data"]),
        (RayPPOTrainer, "train_critic_and_policy", ["self", "data"]),
        (FullyAsyncRayPPOTrainer, "train_critic_and_policy", ["self", "data"]),
        (Tracking, "log", ["self", "data", "step", "commit"]),
        (Tracking, "finish", ["self"]),
    ],
)
def test_the_functions_that_are_looked_at_take_what_they_did(owner, name, parameters):
    assert list(inspect.signature(getattr(owner, name)).parameters)[: len(parameters)] == parameters


def test_the_callback_input_has_what_is_read():
    given = CallbackInput(global_step=1, epoch=0, total_steps=1, steps_per_epoch=1)
    assert given.batch is given.logs is None


def test_left_padded_tokens_are_sliced_by_loss_mask(watched, rng):
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"))
    assert tracker_diag_skyrl.attach(trainer, monitor=watched.monitor) is watched.monitor
    batch = made(rng)
    sync_step(trainer, 1, pad_training_input_batch(batch, 8))  # rows that only fill the batch up do not count
    found = watched.counts("mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert found["text_only"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert found["post_tool"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert found["advantage:positive"] + found["advantage:negative"] == found["all"] == int(batch["loss_mask"].sum())
    assert watched.counts("reference") == found
    assert watched.counts("policy") == {}
    assert watched.captured.own[1] == {"policy/policy_entropy": 0.7, "reward/avg_raw_reward": 0.5}


def test_turns_in_rows_of_their_own_are_after_the_tool_from_the_second_on(watched, rng):
    """As `step_wise_trajectories` has it: what the tool said to a turn stands in the prompt of the next row."""
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"))
    trainer.cfg.generator.step_wise_trajectories = True
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    batch = made(rng)
    batch["values"] = None
    batch["loss_mask"] = batch["response_mask"].clone()  # no row has a gap
    batch["rewards"] = torch.zeros(batch["loss_mask"].shape)
    batch["rewards"][:, -1] = torch.tensor([float(row % 4 == 3) for row in range(ROWS)])
    batch.metadata = {
        "is_last_step": [row % 2 == 1 for row in range(ROWS)],
        "uids": [str(row // 4) for row in range(ROWS)],
        "avg_response_length": 1.0,
    }
    sync_step(trainer, 1, batch)
    found = watched.counts("mismatch")
    tokens = batch["loss_mask"].sum(1)
    assert (found["text_only"], found["post_tool"]) == (int(tokens[::2].sum()), int(tokens[1::2].sum()))
    told = watched.captured.scalars(1)
    assert told["diag/samples/reward"] == 0.5  # of the last turns alone
    assert told["diag/samples/effective_groups"] == ROWS // 4
    assert watched.monitor.failures == []


def test_the_fully_asynchronous_trainer_is_seen_where_it_trains_and_logs(watched, rng):
    tracker = Tracking("agent", "run")
    trainer = a_trainer(FullyAsyncRayPPOTrainer, tracker, async_train_dataloader=None)
    with pytest.raises(NotImplementedError, match="Callbacks"):
        trainer.add_callback(TrainingCallback())
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    for step in (1, 2):
        trainer.global_step = step
        status = trainer.train_critic_and_policy(made(rng))
        assert status == {"policy_entropy": 0.7}
        tracker.log(trainer.all_metrics, step=step, commit=False)
        tracker.log({"timing/eval": 0.1}, step=step, commit=True)
    tracker.finish()
    assert watched.captured.own[2] == {"policy/policy_entropy": 0.7, "timing/eval": 0.1}
    assert watched.counts("mismatch")["all"] == 2 * int(made(rng)["loss_mask"].sum())
    assert watched.monitor.health["late_steps"] == 0


def test_a_loss_on_the_rollouts_log_probabilities_is_told_once_as_no_signal(watched, rng, caplog):
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"))
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    for step in (1, 2):
        batch = made(rng)
        batch["action_log_probs"] = None
        sync_step(trainer, step, batch)
    assert caplog.text.count("no signal") == 1
    assert watched.counts("mismatch") == {}
    assert set(watched.captured.own) == {1, 2}


class TestConformance(SameWithUs, WatchedOnce):
    STEPS = [1]
    KIND = RayPPOTrainer

    def make(self):
        return a_trainer(self.KIND, Tracking("agent", "run"))

    def attach(self, training, monitor=None):
        return tracker_diag_skyrl.attach(training, monitor=monitor)

    def train(self, training):
        training._fire("on_train_start")
        sync_step(training, 1, made(np.random.default_rng(0)))
        training._fire("on_train_end")
        return training.all_metrics


class TestConformanceOfTheAsynchronous(TestConformance):
    KIND = FullyAsyncRayPPOTrainer

    def make(self):
        return a_trainer(self.KIND, Tracking("agent", "run"), async_train_dataloader=None)

    def train(self, training):
        training.global_step = 1
        training.train_critic_and_policy(made(np.random.default_rng(0)))
        training.tracker.log(training.all_metrics, step=1, commit=True)
        return training.all_metrics


def test_a_callback_beside_attach_leaves_it_to_that(watched, rng, caplog):
    callback = tracker_diag_skyrl.DiagnosticsCallback()
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"), _callback_handler=CallbackHandler([callback]))
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    trainer._fire("on_train_start")
    sync_step(trainer, 1, made(rng))
    trainer._fire("on_train_end")
    assert callback.monitor is None
    assert caplog.text.count("watched already") == 1
    assert watched.counts("mismatch")["all"] == int(made(rng)["loss_mask"].sum())


def test_the_default_monitor_knows_the_settings():
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"))
    trainer.cfg.trainer.algorithm.eps_clip_high = 0.28
    monitor = tracker_diag_skyrl.attach(trainer)
    assert monitor.clip == (0.2, 0.28)
    assert monitor.config["trainer.algorithm.advantage_estimator"] == "grpo"
    monitor.close()


def test_the_callback_alone_makes_its_monitor_when_training_starts(rng):
    callback = tracker_diag_skyrl.DiagnosticsCallback()
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"), _callback_handler=CallbackHandler([callback]))
    trainer._fire("on_train_start")
    sync_step(trainer, 1, made(rng))
    trainer._fire("on_train_end")
    assert callback.monitor.summary().steps == 1


def test_what_cannot_be_read_is_counted_and_training_goes_on(watched, rng):
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"))
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    batch = made(rng)
    del batch["response_mask"]
    sync_step(trainer, 1, batch)
    assert watched.monitor.health["integration_errors"] == 1


def test_a_skyrl_that_has_changed_is_told_and_training_goes_on(watched, rng, caplog):
    tracker = Tracking("agent", "run")
    trainer = a_trainer(
        FullyAsyncRayPPOTrainer, tracker, async_train_dataloader=None, train_critic_and_policy=lambda batch: batch
    )
    tracker_diag_skyrl.attach(trainer, monitor=watched.monitor)
    assert "takes no data" in caplog.text
    assert "log" in vars(tracker)  # which is as it was


KINDS = [RayPPOTrainer, FullyAsyncRayPPOTrainer]


def at_checkpoints(kind, folder, monkeypatch, monitor):
    """One whose own `save_checkpoints` and `load_checkpoints` are called; the models are in other processes."""
    dispatch = SimpleNamespace(
        save_checkpoint=lambda *given: None, load_checkpoint=lambda *given, **named: None, get_node_ids=list,
        empty_cache=lambda: None,
    )  # fmt: skip

    class Loader(list):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    loader = Loader([0])
    trainer = a_trainer(kind, Tracking("agent", "run"), dispatch=dispatch, train_dataloader=loader, has_critic=False)
    vars(trainer).update(tokenizer=None, _node_ids=[], resume_mode=ResumeMode.LATEST, total_training_steps=90)
    trainer.cfg.trainer.ckpt_path = str(folder)
    monkeypatch.setattr(skyrl_trainer, "run_on_each_node", lambda *given: None)
    if kind is FullyAsyncRayPPOTrainer:
        trainer.async_train_dataloader = SimpleNamespace(get_consumed_uids_list=list)
        for name in ("save_checkpoints", "load_checkpoints"):  # what they add is a file with the prompts used
            monkeypatch.setattr(trainer, name, getattr(super(kind, trainer), name))
    tracker_diag_skyrl.attach(trainer, monitor=monitor)
    return trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_resumed_goes_on_with_the_state_in_its_checkpoint(tmp_path, rng, monkeypatch, caplog, kind):
    def step(trainer, number, monitor):
        trainer.global_step = number
        trainer.train_critic_and_policy(made(rng))
        if number == 3:
            trainer.save_checkpoints()
        if kind is RayPPOTrainer:
            trainer._fire("on_log", logs={"reward/avg_raw_reward": 0.5})
        trainer.tracker.log({"reward/avg_raw_reward": 0.5}, step=number, commit=True)
        assert monitor.failures == []

    monitor = Monitor()
    trainer = at_checkpoints(kind, tmp_path, monkeypatch, monitor)
    trainer.load_checkpoints()  # none is there yet
    assert monitor.state_dict()["rows"] == 90
    for number in range(1, 5):
        step(trainer, number, monitor)
    again = Monitor()
    at_checkpoints(kind, tmp_path, monkeypatch, again).load_checkpoints()
    assert again.step == 3  # with the row that was logged after the checkpoint
    assert "begin anew" not in caplog.text
    (tmp_path / "global_step_3" / "tracker_diag_0.json").unlink()
    anew = Monitor()
    at_checkpoints(kind, tmp_path, monkeypatch, anew).load_checkpoints()
    assert (anew.step, anew.state_dict()["rows"]) == (None, 87)
    assert caplog.text.count("begin anew") == 1


@pytest.mark.parametrize("name", ["tracker", "train_critic_and_policy", "compute_advantages_and_returns",
                                  "save_checkpoints", "load_checkpoints", "cfg"])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_gone_is_told_once_and_training_goes_on(caplog, without, monkeypatch, kind, name):
    rng = np.random.default_rng(0)
    trainer = a_trainer(kind, Tracking("agent", "run"), total_training_steps=90)
    if kind is FullyAsyncRayPPOTrainer:
        trainer.async_train_dataloader = None
    sync = kind is RayPPOTrainer
    owner = trainer if name in vars(trainer) else next(one for one in kind.__mro__ if name in vars(one))
    if owner is kind and hasattr(RayPPOTrainer, name) and not sync:  # the one below it is gone as well
        monkeypatch.delattr(RayPPOTrainer, name)
    monitor = without(owner, name, lambda: tracker_diag_skyrl.attach(trainer))
    monkeypatch.undo()
    if sync:
        sync_step(trainer, 1, made(rng))
    else:
        trainer.train_critic_and_policy(made(rng))
        trainer.tracker.log({"reward/avg_raw_reward": 0.5}, step=1, commit=True)
    # By callbacks the synchronous trainer gives its tensors and metrics without any hook.
    silent = (name == "train_critic_and_policy" and sync) or (name == "tracker" and sync)
    assert sum("is not a tested version" in one for one in caplog.messages) == (not silent)
    assert monitor.step == (None if name == "tracker" and not sync else 1)
    assert monitor.failures == []
    monitor.close()


@pytest.mark.matrix("skyrl", "real modules, made tensors")
def test_findings_and_series_reach_the_mlflow_run_that_skyrl_started(
    tmp_path, rng, monkeypatch, new_mlflow_store, alerted
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_mlflow_store(tmp_path))
    monkeypatch.chdir(tmp_path)
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run", backend="mlflow", config=SkyRLTrainConfig()))
    run = mlflow.active_run().info.run_id
    monitor = tracker_diag_skyrl.attach(trainer)
    for step in range(1, 46):
        sync_step(trainer, step, made(rng, post=0.02 if step < 30 else 0.5))
    trainer._fire("on_train_end")
    trainer.tracker.finish()
    client = mlflow.MlflowClient()
    assert client.get_run(run).info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run, "reward/avg_raw_reward")] == list(range(1, 46))
    p95 = {m.step for m in client.get_metric_history(run, "diag/mismatch/post_tool/p95")}
    assert p95 == set(range(2, 46))  # the first step has too few tokens after tools
    findings = json.loads(mlflow.artifacts.load_text(f"{client.get_run(run).info.artifact_uri}/diag/findings.json"))
    fired = [found for found in findings["findings"] if found["state"] == "firing"]
    assert "post_tool" in {found["slice"] for found in fired}
    assert all(found["onset"] >= 20 for found in fired)
    assert alerted("POL001") == {"mlflow", "webhook"}
    assert monitor.health["integration_errors"] == monitor.health["rejected_batches"] == 0


@pytest.mark.matrix("skyrl", "real modules, made tensors")
@pytest.mark.by_day("wandb")
@pytest.mark.parametrize("backend", ["tensorboard", "wandb", "console"])
def test_findings_reach_what_skyrl_logs_to_or_else_files(tmp_path, monkeypatch, alerted, underway, backend):
    rng = np.random.default_rng(0)
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "curves"))
    beside = ["trackio"] if backend == "wandb" else []  # SkyRL logs to one tracker, which is never Trackio
    with underway(*beside):
        trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run", backend=backend, config=SkyRLTrainConfig()))
        tracker_diag_skyrl.attach(trainer)
        for step in range(1, 46):
            sync_step(trainer, step, made(rng, post=0.02 if step < 30 else 0.5))
        trainer._fire("on_train_end")
        trainer.tracker.finish()
    assert alerted("POL001") == {"jsonl" if backend == "console" else backend, *beside, "webhook"}


@pytest.mark.parametrize("updates", [1, 3])
def test_the_policy_workers_losses_are_sketched_and_sent_after_each_update(monkeypatch, updates):
    """SkyRL's own loss, looked up as its worker does; the worker's model and optimiser are stand-ins."""
    import inspect

    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.backends.skyrl_train.workers import worker
    from skyrl.train.config import AlgorithmConfig
    from tracker_diag_skyrl import workers as of_workers

    from tracker_diag.attach.workers import Recorder, Workers

    kind = worker.PolicyWorkerBase
    assert list(inspect.signature(kind.optim_step).parameters) == ["self"]
    assert list(inspect.signature(ppo_utils.PolicyLossRegistry.get).parameters) == ["name"]
    config = AlgorithmConfig(policy_loss_type="regular", eps_clip_low=0.3, eps_clip_high=0.15)
    watched = Monitor([], clip=(0.3, 0.15))
    workers = Workers(watched, each=True)
    recorder = Recorder(0, 1, workers.receive)
    monkeypatch.setattr(of_workers, "RECORDER", recorder)
    rows, width = 16, 24
    mask = torch.ones(rows, width)
    mask[: rows // 2, 8:12] = 0
    old = torch.linspace(-3, -0.1, rows * width).reshape(rows, width)

    def step(self):
        return 1.0

    def train():
        loss, found = ppo_utils.PolicyLossRegistry.get("regular"), []
        policy = object.__new__(kind)
        policy.mesh_rank = SimpleNamespace(is_collection_dp_rank=lambda: True)
        for update in range(updates):
            new = (old + 0.1 * update).requires_grad_()
            of, _ = loss(new, old, torch.ones_like(old), config=config, loss_mask=mask, rollout_logprobs=None)
            of.backward()
            found.append((of.item(), new.grad))
            policy.optim_step()
        return found

    monkeypatch.setattr(kind, "optim_step", step)
    alone = train()
    monkeypatch.setattr(ppo_utils.PolicyLossRegistry, "get", ppo_utils.PolicyLossRegistry.get)
    of_workers.losses(ppo_utils)
    of_workers.updates(worker)
    ours = train()
    assert all(a == b and torch.equal(c, d) for (a, c), (b, d) in zip(alone, ours, strict=True))
    recorder.close(60)
    workers.take_in()
    watched.log({}, 1)
    table = watched.slices_table()
    at = table.columns.index
    counts = {row[at("slice")]: row[at("count")] for row in table.rows if row[at("pair")] == "policy"}
    clipped = {row[at("slice")]: row[at("gradient_clipped")] for row in table.rows if row[at("pair")] == "policy"}
    assert counts["all"] == max(updates - 1, 1) * int(mask.sum())
    last = np.exp(0.2) / (np.exp(0.1) + np.exp(0.2))  # of the second and third update, of which the third is clipped
    assert clipped["all"] == (pytest.approx(last) if updates == 3 else None)  # whose ratios alone differ from 1
    assert watched.health["rank_errors"] == 0
    for loss in ppo_utils.PolicyLossRegistry._functions.values():
        assert set(of_workers.TAKES) <= set(inspect.signature(loss).parameters)
