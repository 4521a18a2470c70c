"""The canary in GRPO of TRL, whose rollouts come from a model of their own that is synced or is not."""

import runpy
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import trl
from datasets import Dataset
from tracker_diag_trl import attach
from transformers import PrinterCallback, Qwen2ForCausalLM, set_seed

from tracker_diag import Monitor
from tracker_diag.canary import Canary, scores_of_model
from tracker_diag.testing import CapturingTracker

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of transformers, about settings that TRL sets
    pytest.mark.filterwarnings("ignore:You are using .rollout_func:UserWarning"),
]

TASK = runpy.run_path(str(Path(__file__).parents[1] / "integrations" / "trl" / "task.py"))
STEPS, EVERY = 5, 2


def grpo(folder, *, synced, watched=True):
    """A run, its monitor, what it logged, and its weights at the end."""
    torch.set_num_threads(1)
    set_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(TASK["CHECKPOINT"], dtype=torch.float32)
    model.config.name_or_path = str(TASK["CHECKPOINT"])
    engine, words = deepcopy(model).eval(), TASK["tokenizer"]()

    def roll(messages, trainer):
        if synced:
            engine.load_state_dict(trainer.model.state_dict())
        text = [words.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in messages]
        given = words(text, return_tensors="pt", padding=True, padding_side="left")
        with torch.no_grad():
            said = engine.generate(**given, max_new_tokens=4, min_new_tokens=4, do_sample=True)[:, -4:]
        prompts = [row[m == 1].tolist() for row, m in zip(given["input_ids"], given["attention_mask"], strict=True)]
        return {"prompt_ids": prompts, "completion_ids": said.tolist(), "logprobs": [[-1.0] * 4] * len(prompts)}

    args = trl.GRPOConfig(
        str(folder), max_steps=STEPS, per_device_train_batch_size=8, num_generations=4, max_completion_length=4,
        learning_rate=1e-3, use_cpu=True, report_to=[], logging_steps=1, save_strategy="no", seed=0, beta=0.02,
        bf16=False, lr_scheduler_type="constant", disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model, TASK["judge"](errs=0.4), args=args, train_dataset=Dataset.from_list(TASK["prompts"](16)),
        processing_class=words, rollout_func=roll,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    monitor = attach(trainer, monitor=Monitor([tracker := CapturingTracker()]))
    if watched:
        texts = [" ".join(row["prompt"][-1]["content"] for row in TASK["prompts"](20, seed)) for seed in range(4)]
        ids = words(texts)["input_ids"]
        Canary(monitor, ids, trainer=scores_of_model(trainer.model), sampler=scores_of_model(engine), every=EVERY)
    trainer.train()
    return monitor, tracker, trainer.model.state_dict()


def test_a_canary_in_grpo_of_trl(tmp_path):
    stale, *_ = grpo(tmp_path, synced=False)
    (finding,) = [finding for finding in stale.summary().findings if finding.rule.id == "FRE007"]
    assert finding.fired <= 2 * EVERY + 1

    fresh, tracker, weights = grpo(tmp_path, synced=True)
    assert "FRE007" not in {finding.rule.id for finding in fresh.summary().findings}
    assert tracker.scalars(STEPS)["diag/canary/weights_arrived"] > 0.99

    _, _, unwatched = grpo(tmp_path, synced=True, watched=False)
    assert all(torch.equal(value, unwatched[name]) for name, value in weights.items())
