"""Run the loss of a NeMo-RL that is on the path, in two remote workers: `released.py` does, for each release.

NeMo-RL's own functions compare the batch and log here; its own policy workers, which Ray has started, train. Model,
optimiser and what is between the two are stand-ins.
"""

import os
import sys

import ray
import released
import remote
import torch
import tracker_diag_nemo_rl
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.utils.logger import Logger

from tracker_diag import Monitor

if os.environ["BACKENDS"] == "0":  # NeMo-RL itself has to import them
    sys.modules.update(dict.fromkeys(released.ABSENT))

STEPS, ROWS, WIDTH = 50, 48, 32
SETTINGS = {
    "disable_ppo_ratio": False, "token_level_loss": True, "sequence_level_importance_ratios": False,
    "ratio_clip_min": 0.1, "ratio_clip_max": 0.3, "ratio_clip_c": None, "reference_policy_kl_penalty": 0.01,
    "reference_policy_kl_type": "k3", "kl_input_clamp_value": 20.0, "kl_output_clamp_value": 10.0,
    "use_kl_in_reward": False, "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None, "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None, "use_on_policy_kl_approximation": False,
    "force_on_policy_ratio": False, "use_cispo": False, "positive_example_nll_weight": 0.0,
}  # fmt: skip


def batch(step, generator):
    """As NeMo-RL has it before the update; the policy's tail after a tool is wide from step 30 on."""
    tokens = torch.randint(0, remote.VOCABULARY, (ROWS, WIDTH), generator=generator)
    mask = torch.ones(ROWS, WIDTH)
    mask[:, :4] = mask[::2, 12:16] = 0
    new = remote.Model()(tokens).logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2).detach()
    new = torch.nn.functional.pad(new, (1, 0))
    spread = torch.full(new.shape, 0.02)
    spread[::2, 16:] = 0.02 if step < 30 else 0.5
    old = new - spread * torch.randn(new.shape, generator=generator)
    generated = old - 0.02 * torch.randn(new.shape, generator=generator)
    tensors = {
        "input_ids": tokens, "input_lengths": torch.full((ROWS,), WIDTH), "token_mask": mask,
        "sample_mask": torch.ones(ROWS), "prev_logprobs": old, "generation_logprobs": generated,
        "reference_policy_logprobs": old, "advantages": torch.randn(new.shape, generator=generator),
    }  # fmt: skip
    return BatchedDataDict(tensors)


def losses(hook):
    """A digest of each worker's losses and gradients over all steps, without us or with us; and what we have seen."""
    loss, generator = remote.Loss(ClippedPGLossConfig(**SETTINGS)), torch.Generator().manual_seed(3)
    off = dict.fromkeys([f"{item}_enabled" for item in ("wandb", "swanlab", "tensorboard", "mlflow")], False)
    logger = Logger(off | {"monitor_gpus": False, "log_dir": "logs", "num_val_samples_to_print": 0})
    with released.job(remote.Actor, remote.WORLD, hook=hook) as actors:
        alone, messages = Monitor([], clip=(0.1, 0.3)), released.Messages()
        monitor = tracker_diag_nemo_rl.attach(logger, {"loss_fn": SETTINGS, "grpo": {}}) if hook else None
        for step in range(STEPS):
            data = batch(step, generator)
            grpo.compute_and_apply_seq_logprob_error_masking(data, torch.zeros(ROWS), None)
            made = train(actors, loss, data)
            if hook:
                messages.wait(actors, each=2)
            for new, old, mask, advantages in (item for worker in made for item in worker[2:]):
                alone.observe(logprobs=new, old_logprobs=old, model_mask=mask, advantages=advantages)
            alone.log({}, step)
            logger.log_metrics({"loss": 0.1}, step + 1, prefix="train")
        if hook:
            assert released.pair(monitor, "policy") == released.pair(alone, "policy")
        digests = ray.get([actor.seen.remote() for actor in actors])
    return digests, monitor


def train(actors, loss, data):
    """One step of the workers: two updates of two micro-batches each; what their losses were made of, by worker."""
    shares = [data.slice(at, at + ROWS // 2) for at in range(0, ROWS, ROWS // 2)]
    pairs = zip(actors, shares, strict=True)
    return ray.get([actor.trained.remote(share, loss, ROWS // 2, ROWS // 8) for actor, share in pairs])


if __name__ == "__main__":
    released.compare(losses, "tracker_diag_nemo_rl.install", (
        "nemo_rl.algorithms.grpo", "nemo_rl.algorithms.loss.loss_functions", "nemo_rl.utils.logger",
        "nemo_rl.models.policy.workers.dtensor_policy_worker",
    ))  # fmt: skip
