"""Run the losses of a verl that is on the path: `released.py` does, for each release.

A step is what the trainer calls on the driver, in its order, and then the actor's loss of two mini-batches, with its
gradients. Log-probabilities are made; model, optimiser and rollout engine do not run. Without our hooks it runs in a
process of its own, since verl loads them on its import.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import released
import torch
import transformers

PLAIN = "PLAIN"
"""In the environment of the process without our hooks."""

STEPS, ROWS, PROMPT, RESPONSE = 50, 128, 2, 16
MODULES = (
    "verl.trainer.ppo.core_algos", "verl.workers.utils.losses", "verl.trainer.ppo.rollout_corr_helper",
    "verl.trainer.ppo.ray_trainer", "verl.utils.tracking",
)  # fmt: skip
CONFIG = {
    "actor_rollout_ref": {
        "rollout": {"calculate_log_probs": True}, "actor": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
    },
    "trainer": {"project_name": "released"},
}  # fmt: skip

for name in os.environ["STAND_INS"].split():  # of transformers 4; verl 0.7.0 imports it, and its losses do not reach it
    setattr(transformers, name.rpartition(".")[2], object)

if os.environ["BACKENDS"] == "0":
    sys.modules.update(dict.fromkeys(released.ABSENT))  # accelerate, which verl imports, asks whether they are there


def made(rng, step):
    """Half of the responses have a tool's result amid; the tail of the mismatch after it is wide from step 30 on."""
    from verl.protocol import DataProto

    mask = torch.ones(ROWS, RESPONSE, dtype=torch.int64)
    mask[: ROWS // 2, 6:8] = 0
    spread = torch.full(mask.shape, 0.02)
    spread[: ROWS // 2, 8:] = 0.02 if step < 30 else 0.5
    old = torch.tensor(rng.uniform(-3, -0.1, mask.shape), dtype=torch.float32)
    noise = torch.tensor(rng.normal(size=mask.shape), dtype=torch.float32)
    scores = torch.zeros(mask.shape)
    scores[:, -1] = torch.arange(ROWS) % 2
    tensors = {
        "prompts": torch.ones(ROWS, PROMPT, dtype=torch.int64), "responses": torch.ones_like(mask),
        "attention_mask": torch.ones(ROWS, PROMPT + RESPONSE, dtype=torch.int64), "response_mask": mask,
        "old_log_probs": old * mask, "rollout_log_probs": (old - spread * noise) * mask,
        "token_level_scores": scores, "token_level_rewards": scores,
    }  # fmt: skip
    uids = np.array([str(row // 4) for row in range(ROWS)], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})


def driven(batch):
    """The calls of `RayPPOTrainer.fit` in their order, with its lazy imports."""
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    metrics = calculate_debug_metrics(batch)
    batch, result = compute_rollout_correction_and_add_to_batch(batch, RolloutCorrectionConfig(rollout_is="token"))
    ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    return batch, metrics | result


def updated(batch, rng, actor):
    """The actor's loss of two mini-batches, the first on-policy; gives each loss and its gradient."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import ppo_loss

    names = ("prompts", "responses", "attention_mask", "response_mask", "old_log_probs", "advantages",
             "rollout_is_weights")  # fmt: skip
    data = TensorDict({name: batch.batch[name] for name in names}, batch_size=[ROWS])
    tokens = int(data["response_mask"].sum())
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=ROWS)
    for moved in (0.0, 0.05):
        step = torch.tensor(moved * rng.normal(size=(ROWS, RESPONSE)), dtype=torch.float32)
        response = data["old_log_probs"] + step
        new = torch.cat([torch.zeros(ROWS, PROMPT - 1), response, torch.zeros(ROWS, 1)], 1).flatten().requires_grad_()
        loss, _ = ppo_loss(config=actor, model_output={"log_probs": new}, data=data.clone())
        loss.backward()
        yield loss.detach(), new.grad


def train(log, mini_batch, update):
    """A digest of all that verl computes, bit by bit; `mini_batch` and `update` come after each."""
    from verl.workers.config import FSDPActorConfig

    actor = FSDPActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=8, use_kl_loss=False,
        clip_ratio=0.2, clip_ratio_low=0.1, clip_ratio_high=0.3,
    )  # fmt: skip
    rng, seen = np.random.default_rng(3), hashlib.sha256()
    for step in range(1, STEPS + 1):
        batch, metrics = driven(made(rng, step))
        for _, values in sorted(batch.batch.items()):
            seen.update(values.contiguous().numpy().tobytes())
        for loss, gradient in updated(batch, rng, actor):
            seen.update(loss.numpy().tobytes() + gradient.numpy().tobytes())
            mini_batch()
        update()
        seen.update(json.dumps(metrics, sort_keys=True, default=str).encode())
        log(metrics, step)
    return seen.hexdigest()


def plain():
    """Without hooks, in this process."""
    sys.modules["tracker_diag_verl.plugin"] = ModuleType("tracker_diag_verl.plugin")  # a verl with plugins looks for it
    return train(lambda *_: None, lambda: None, lambda: None)


def main():
    if PLAIN in os.environ:
        Path(sys.argv[2]).write_text(json.dumps(plain()))
        return
    command = [sys.executable, "-W", "ignore", __file__, sys.argv[1], "plain.json"]
    subprocess.run(command, env=os.environ | {PLAIN: "1"}, check=True)
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "tracker_diag_verl.plugin"
    import verl  # noqa: F401  # loads it
    from tracker_diag_verl import _Watch
    from tracker_diag_verl.workers import RECORDER
    from verl.utils.tracking import Tracking

    tracker = "mlflow" if os.environ["BACKENDS"] == "1" else "console"
    tracking = Tracking("released", "run", default_backend=[tracker], config=CONFIG)
    # Private: a worker's process and the driver's are one here, and there is no Ray job with a mailbox.
    RECORDER._post = _Watch.current._workers.receive

    def update():
        RECORDER.send()
        RECORDER.close(60)

    hooked = train(tracking.log, RECORDER.updated, update)
    monitor = tracking.diag
    seen = {row[:2] for row in monitor.slices_table().rows}
    assert {("mismatch", "post_tool"), ("policy", "post_tool"), ("policy", "text_only")} <= seen, seen
    monitor.close()
    released.keep(monitor, MODULES, same=json.loads(Path("plain.json").read_text()) == hooked)


if __name__ == "__main__":
    main()
