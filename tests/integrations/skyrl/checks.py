"""What the integration does in SkyRL's own modules; `test_skyrl.py` runs this in a process that can import them."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_skyrl
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch, pad_training_input_batch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.workers import worker
from skyrl.train import trainer as skyrl_trainer
from skyrl.train.config import AlgorithmConfig, SkyRLTrainConfig
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import CallbackHandler, TrainingControl
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.trainer_utils import ResumeMode
from tracker_diag_skyrl import workers as of_workers

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
from tracker_diag.trackers.tokens.log import read_tokens

ROWS, RESPONSE = 64, 24


def made(rng, post=0.02):
    """A batch by SkyRL's own conversion: responses of several lengths, a tool result amid half of them."""
    model, old, sampled = responses(rng, ROWS, RESPONSE, post)
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    masks = [[int(item) for item in model[row, :n]] for row, n in enumerate(lengths)]
    rollout = [np.where(model, sampled, 0.0)[row, :n].tolist() for row, n in enumerate(lengths)]  # 0.0 on tool tokens
    prompts = [[5] * (4 + row % 5) for row in range(ROWS)]
    by_tokenizer = "tokenizer" in inspect.signature(convert_prompts_responses_to_batch_tensors).parameters  # up to 0.3
    sequences, attention, response, _, loss, logprobs, *_ = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0) if by_tokenizer else 0,
        prompts, [[6] * n for n in lengths], [[0.0] * n for n in lengths], masks, rollout,
    )  # fmt: skip
    action = torch.zeros(ROWS, RESPONSE)
    for row, n in enumerate(lengths):
        action[row, RESPONSE - n :] = torch.tensor(old[row, :n])
    batch = TrainingInputBatch({
        "sequences": sequences, "attention_mask": attention, "response_mask": response, "loss_mask": loss,
        "rollout_logprobs": logprobs, "action_log_probs": action, "base_action_log_probs": action - 0.1,
        "advantages": torch.where(torch.arange(ROWS) % 2 == 0, 1.0, -1.0)[:, None] * response,
    })  # fmt: skip
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
    trainer.train_critic_and_policy(batch)
    trainer.tracker.log({**trainer.all_metrics, "reward/avg_raw_reward": 0.5}, step=step, commit=True)


def an_async_step(trainer, step, batch):
    """What the asynchronous trainer does: it trains, and logs in several parts."""
    trainer.global_step = step
    trainer.train_critic_and_policy(batch)
    trainer.tracker.log(trainer.all_metrics, step=step, commit=False)
    trainer.tracker.log({"timing/eval": 0.1}, step=step, commit=True)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def attached(monitor, **settings):
    trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run"), **settings)
    assert tracker_diag_skyrl.attach(trainer, monitor=monitor) is monitor
    return trainer


def test_left_padded_tokens_are_sliced_by_loss_mask(rng):
    monitor = Monitor([captured := CapturingTracker()])
    batch = made(rng)
    sync_step(attached(monitor), 1, pad_training_input_batch(batch, 8))  # rows that only fill it up do not count
    tokens = counted(monitor, "mismatch")
    lengths = [RESPONSE - row % 3 for row in range(ROWS)]
    assert tokens["text_only"] == ROWS // 2 * 8 + sum(lengths[ROWS // 2 :])
    assert tokens["post_tool"] == sum(n - 12 for n in lengths[: ROWS // 2])
    assert tokens["advantage:positive"] + tokens["advantage:negative"] == tokens["all"] == int(batch["loss_mask"].sum())
    assert (counted(monitor, "reference"), counted(monitor, "policy")) == (tokens, {})
    assert captured.own[1] == {"policy/policy_entropy": 0.7, "reward/avg_raw_reward": 0.5}


def test_turns_in_rows_of_their_own_are_after_the_tool_from_the_second_on(rng):
    """As `step_wise_trajectories` has it: what the tool said to a turn is in the prompt of the next row."""
    trainer = attached(monitor := Monitor([captured := CapturingTracker()]))
    trainer.cfg.generator.step_wise_trajectories = True
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
    result, tokens = counted(monitor, "mismatch"), batch["loss_mask"].sum(1)
    assert (result["text_only"], result["post_tool"]) == (int(tokens[::2].sum()), int(tokens[1::2].sum()))
    row = captured.scalars(1)
    assert row["diag/samples/reward"] == 0.5  # of the last turns alone
    assert row["diag/samples/effective_groups"] == ROWS // 4
    assert monitor.failures == []


def test_a_loss_on_the_rollouts_log_probabilities_is_reported_once_as_no_signal(rng, caplog):
    trainer = attached(monitor := Monitor([captured := CapturingTracker()]))
    for step in (1, 2):
        batch = made(rng)
        batch["action_log_probs"] = None
        sync_step(trainer, step, batch)
    assert caplog.text.count("no signal") == 1
    assert counted(monitor, "mismatch") == {}
    assert set(captured.own) == {1, 2}


class TestConformance(SameWithUs, WatchedOnce, KnowsTheSettings, Resumes, SurvivesWhatIsGone):
    KIND, STEPS = RayPPOTrainer, [1]
    CLIP, CONFIG = (0.2, 0.28), {"trainer.algorithm.advantage_estimator": "grpo"}
    KEPT, ROWS = 3, (90, 87)
    GONE = dict.fromkeys((
        ("trainer", "cfg"), ("class", "train_critic_and_policy"),
        ("class", "compute_advantages_and_returns"), ("class", "save_checkpoints"), ("class", "load_checkpoints"),
    ), True) | {("trainer", "tracker"): False}  # fmt: skip
    BY_DEFAULT = {"cfg"}

    @pytest.fixture(autouse=True)
    def patch(self, monkeypatch):
        self.patch = monkeypatch

    def owners(self, training):
        return {"trainer": training, "class": RayPPOTrainer}

    def make(self, **settings):
        trainer = a_trainer(self.KIND, Tracking("agent", "run"), total_training_steps=90, **settings)
        trainer.cfg.trainer.algorithm.eps_clip_high = 0.28
        return trainer

    def attach(self, training, monitor=None):
        return tracker_diag_skyrl.attach(training, monitor=monitor)

    def step(self, training, step):
        sync_step(training, step, made(np.random.default_rng(0)))

    def train(self, training):
        self.step(training, 1)
        return training.all_metrics

    def at_checkpoints(self, folder, monitor):
        """One whose own `save_checkpoints` and `load_checkpoints` are called; the models are in other processes."""
        dispatch = SimpleNamespace(
            save_checkpoint=lambda *given: None, load_checkpoint=lambda *given, **named: None, get_node_ids=list,
            empty_cache=lambda: None,
        )  # fmt: skip
        loader = type("Loader", (list,), {"state_dict": lambda self: {}, "load_state_dict": lambda self, state: None})
        trainer = self.make(dispatch=dispatch, train_dataloader=loader([0]), has_critic=False)
        vars(trainer).update(tokenizer=None, _node_ids=[], resume_mode=ResumeMode.LATEST)
        trainer.cfg.trainer.ckpt_path = str(folder)
        self.patch.setattr(skyrl_trainer, "run_on_each_node", lambda *given: None)
        if self.KIND is FullyAsyncRayPPOTrainer:  # what it adds to a checkpoint is a file with the prompts used
            for name in ("save_checkpoints", "load_checkpoints"):
                self.patch.setattr(trainer, name, getattr(super(self.KIND, trainer), name))
        self.attach(trainer, monitor)
        return trainer

    def begin(self, folder, monitor):
        """The row of a step is logged after its checkpoint."""
        trainer = self.at_checkpoints(folder, monitor)
        trainer.load_checkpoints()  # none is there yet
        execute = trainer._execute_training_step

        def saving(model, data):
            if trainer.global_step == 3:
                trainer.save_checkpoints()
            return execute(model, data)

        trainer._execute_training_step = saving
        for step in range(1, 5):
            self.step(trainer, step)

    def resume(self, folder, monitor):
        self.at_checkpoints(folder, monitor).load_checkpoints()


class TestConformanceOfTheAsynchronous(TestConformance):
    KIND = FullyAsyncRayPPOTrainer
    REPORTED = {"save_checkpoints": 0, "load_checkpoints": 0}  # it has those of its own

    def make(self, **settings):
        consumed = SimpleNamespace(get_consumed_uids_list=list)
        return super().make(async_train_dataloader=consumed, **settings)

    def step(self, training, step):
        an_async_step(training, step, made(np.random.default_rng(0)))

    def test_it_is_seen_where_it_trains_and_logs(self):
        trainer, monitor = self.make(), Monitor([captured := CapturingTracker()])
        self.attach(trainer, monitor)
        for step in (1, 2):
            self.step(trainer, step)
        trainer.tracker.finish()
        assert captured.own[2] == {"policy/policy_entropy": 0.7, "timing/eval": 0.1}
        assert counted(monitor, "mismatch")["all"] == 2 * int(made(np.random.default_rng(0))["loss_mask"].sum())
        assert monitor.health["late_steps"] == 0


def test_what_cannot_be_read_is_counted_and_training_continues(rng):
    trainer, batch = attached(monitor := Monitor()), made(rng)
    del batch["response_mask"]
    sync_step(trainer, 1, batch)
    assert monitor.health["integration_errors"] == 1


@pytest.mark.matrix("skyrl", "real modules, made tensors")
@pytest.mark.parametrize("backend", ["mlflow", "tensorboard", "wandb", "console"])
def test_findings_reach_what_skyrl_logs_to_or_else_files(places, alerted, underway, backend):
    rng = np.random.default_rng(0)
    second = ["trackio"] if backend == "wandb" else []  # SkyRL logs to one tracker, which is never Trackio
    with underway(*second):
        trainer = a_trainer(RayPPOTrainer, Tracking("agent", "run", backend=backend, config=SkyRLTrainConfig()))
        monitor = tracker_diag_skyrl.attach(trainer)
        for step in range(1, 46):
            sync_step(trainer, step, made(rng, post=0.02 if step < 30 else 0.5))
        trainer.tracker.finish()
    assert names_the_tail(monitor)
    assert alerted("POL001") == {"jsonl" if backend == "console" else backend, *second, "webhook"}


class TestWorkers(SketchesLosses):
    """SkyRL's own loss, looked up as its worker does; the worker's model and optimiser are stand-ins."""

    WORKERS, KIND, TOKENS = of_workers, {"each": True}, (64 * 24 - 32 * 4, 32 * 12)

    @pytest.fixture(autouse=True)
    def put_back(self, monkeypatch):
        monkeypatch.setattr(worker.PolicyWorkerBase, "optim_step", lambda self: 1.0)
        monkeypatch.setattr(ppo_utils.PolicyLossRegistry, "get", ppo_utils.PolicyLossRegistry.get)

    def put(self):
        of_workers.losses(ppo_utils)
        of_workers.updates(worker)

    def update(self, times):
        config = AlgorithmConfig(policy_loss_type="regular", eps_clip_low=0.3, eps_clip_high=0.15)
        mask = torch.ones(64, 24)
        mask[:32, 8:12] = 0
        old = torch.linspace(-3, -0.1, 64 * 24).reshape(64, 24)
        loss, losses = ppo_utils.PolicyLossRegistry.get("regular"), []
        policy = object.__new__(worker.PolicyWorkerBase)
        policy.mesh_rank = SimpleNamespace(is_collection_dp_rank=lambda: True)
        for update in range(times):
            new = (old + 0.1 * update).requires_grad_()
            value, _ = loss(new, old, torch.ones_like(old), config=config, loss_mask=mask, rollout_logprobs=None)
            value.backward()
            losses.append((value.item(), new.grad))
            policy.optim_step()
        return losses

    def test_every_loss_of_skyrl_takes_what_is_looked_at(self):
        for loss in ppo_utils.PolicyLossRegistry._functions.values():
            assert set(of_workers.TAKES) <= set(inspect.signature(loss).parameters)


def test_a_replay_reads_what_skyrl_dumps(rng, tmp_path):
    """`trainer.dump_data_batch`, by SkyRL's own writer; nothing in the file is executed or imported."""
    batch = made(rng)
    batch["rollout_logprobs"] = batch["rollout_logprobs"].to(torch.bfloat16)
    batch.metadata = {"uids": ["a"], "metrics": {"reward": np.float32(1.0)}}
    trainer = SimpleNamespace(cfg=SimpleNamespace(trainer=SimpleNamespace(export_path=tmp_path)))
    RayPPOTrainer.dump_data(trainer, batch, "global_step_3_training_input")
    ((step, given),) = read_tokens(tmp_path / "dumped_data")
    assert step == 3
    columns = {"action_log_probs": "old_logprobs", "base_action_log_probs": "ref_logprobs", "loss_mask": "model_mask",
               "rollout_logprobs": "rollout_logprobs", "advantages": "advantages"}  # fmt: skip
    for theirs, ours in columns.items():
        np.testing.assert_array_equal(given[ours].reshape(ROWS, RESPONSE), batch[theirs].float().numpy())
