"""verl's own `fit` of both trainers, with workers, rollouts and store in this process: its loop is what is tested."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

PROMPTS, GROUP, LENGTH, STEPS = 4, 4, 6, 8


def config(folder, **trainer):
    own = {
        "project_name": "agent", "experiment_name": "run", "logger": ["console"], "val_before_train": False,
        "total_epochs": 1, "critic_warmup": 0, "save_freq": -1, "test_freq": -1, "esi_redundant_time": 0,
        "balance_batch": False, "default_local_dir": str(folder), "default_hdfs_dir": None, "resume_mode": "disable",
        "del_local_ckpt_after_load": False,
    }  # fmt: skip
    return OmegaConf.create(
        {
            "trainer": own | trainer,
            "global_profiler": {"steps": None, "profile_continuous_steps": False},
            "algorithm": {
                "adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": True, "kl_penalty": "kl",
                "kl_ctrl": {"type": "fixed", "kl_coef": 0.001},
            },
            "actor_rollout_ref": {
                "rollout": {"temperature": 1.0, "n": GROUP, "calculate_log_probs": True},
                "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "checkpoint": {}},
            },
            "data": {"train_batch_size": PROMPTS},
        }
        | ({"tracker_diag": {"guards": str(guards)}} if (guards := folder / "guards.yaml").exists() else {})
    )  # fmt: skip


class Did:
    """What the workers of `trainer` had to do, and the weights that its updates move."""

    def __init__(self, trainer, breaks):
        self.trainer, self.breaks = trainer, breaks
        self.weights = torch.zeros(3)
        self.updated, self.saved, self.evaluated, self.kl_coef = [], [], [], {}

    def update(self):
        step = self.trainer.global_steps
        self.updated.append(step)
        self.kl_coef[step] = self.trainer.kl_ctrl_in_reward.value
        self.weights += step
        return {"actor/pg_loss": float("nan") if step == self.breaks else 1.0}

    def save_checkpoint(self, folder, remote, step, max_ckpt_to_keep):
        self.saved.append(step)
        Path(folder).mkdir(parents=True)
        torch.save(self.weights, f"{folder}/model.pt")

    def evaluate(self):
        self.evaluated.append(self.trainer.global_steps)
        return {"val-core/reward": 0.5}


def made(kind, folder, breaks, settings):
    """A trainer of `kind` without its set-up, which starts a cluster."""
    trainer = object.__new__(kind)
    did = Did(trainer, breaks)
    trainer.config = config(folder, **settings)
    trainer.total_training_steps, trainer.global_steps = STEPS, 0
    trainer.use_critic = trainer.use_rm = trainer.use_reference_policy = False
    trainer.kl_ctrl_in_reward = core_algos.get_kl_controller(trainer.config.algorithm.kl_ctrl)
    trainer._dump_executor, trainer._dump_futures = ThreadPoolExecutor(1), []
    trainer.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None, sleep_replicas=lambda: None)
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
    trainer.actor_rollout_wg = SimpleNamespace(
        save_checkpoint=did.save_checkpoint, load_checkpoint=lambda *given, **named: None
    )
    trainer._validate = did.evaluate
    return trainer, did


class Loader(list):
    """Batches of prompts, with the state that a checkpoint has of them."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def v0(folder, breaks, settings):
    """`RayPPOTrainer.fit`, done; each rollout is made up, and an update adds the step to the weights."""
    trainer, did = made(ray_trainer.RayPPOTrainer, folder, breaks, settings)
    trainer.train_dataset, rng = None, np.random.default_rng(0)
    trainer.train_dataloader = Loader({"index": torch.arange(PROMPTS)} for _ in range(STEPS))

    def generate(batch):
        rows = len(batch)
        old = torch.tensor(rng.uniform(-3, -0.1, (rows, LENGTH)), dtype=torch.float32)
        scores = torch.zeros(rows, LENGTH)
        scores[:, -1] = torch.arange(rows) % 2
        ones = torch.ones(rows, LENGTH, dtype=torch.int64)
        return DataProto.from_dict(
            tensors={
                "prompts": ones, "responses": ones, "response_mask": ones.clone(), "rm_scores": scores,
                "attention_mask": torch.ones(rows, 2 * LENGTH, dtype=torch.int64), "rollout_log_probs": old,
                "ref_log_prob": old - 0.1,
            },
            non_tensors={"multi_modal_inputs": np.array([{} for _ in range(rows)], dtype=object)},
            meta_info={"timing": {}},
        )  # fmt: skip

    def old_log_prob(batch):
        old = batch.batch["rollout_log_probs"]
        return DataProto.from_dict(tensors={"old_log_probs": old + 0.01, "entropys": old * 0}), 0.0

    trainer.async_rollout_manager = SimpleNamespace(generate_sequences=generate)
    trainer._compute_old_log_prob = old_log_prob
    trainer._update_actor = lambda batch: DataProto(meta_info={"metrics": {k: [v] for k, v in did.update().items()}})
    trainer.fit()
    return did


def v1(folder, breaks, settings):
    """`PPOTrainerSync.fit`, done, without tensors: what makes them is left out of its steps."""
    trainer, did = made(PPOTrainerSync, folder, breaks, settings)
    trainer.train_dataloader, trainer.steps_per_epoch = Loader(), STEPS
    batch = SimpleNamespace(keys=["0"], tags=[{"min_global_steps": 0}], partition_id="train", extra_info={})
    trainer.parameter_sync_step, trainer.trainer_mode = 1, "sync"
    trainer.checkpoint_callback = SimpleNamespace(on_save=lambda **given: None)
    trainer.replay_buffer = SimpleNamespace(sample=lambda **given: (batch, {}))
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    for name in ("_balance_batch", "_compute_old_log_prob"):
        setattr(trainer, name, lambda batch, metrics: batch)

    def update(batch, metrics):
        metrics.update(did.update())
        return batch

    trainer._update_actor = update
    trainer._reissue_inflight_prompts, trainer.prepare_step = lambda: None, dict
    trainer._compute_metrics = lambda batch, metrics, timing, **given: metrics.update({"training/epoch": 0})
    trainer._load_checkpoint()  # when its workers are made, before `fit`
    trainer.fit(None)
    return did
