"""Rows of rLLM with verl as its backend, as its `transform.py` and `verl_backend.py` of 9beb6e0f (2026-08-15) lay them.

A trajectory is one row, tools' results masked out, as long as each prompt extends the one before; else it is several.
No index has rLLM. Where RLLM names a clone of it, its own code lays the rows as well:

    RLLM=CLONE python -m pytest tests/integrations/verl/test_verl.py -k own_modules -m nightly
"""

import os
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_verl
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.utils.tracking import Tracking

from tests.integrations.conformance import counted
from tests.integrations.verl.batches import CONFIG, PROMPT, RESPONSE, ROWS, made
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

if "RLLM" in os.environ:
    sys.path.append(os.environ["RLLM"])
    from rllm.engine.rollout import ModelOutput
    from rllm.types import Episode, Step, Trajectory

BACKEND = "rllm.trainer.verl.verl_backend"


class OwnTracking(Tracking):
    """rLLM's has a `log` that takes more."""

    def log(self, data, step, backend=None, episodes=None, trajectory_groups=None):
        super().log(data, step)


def written(rng, monkeypatch):
    """The rows of `made` in rLLM's form, of which the last three are a trajectory's two and the one that fills up."""
    batch = made(rng)
    tensors = {name: batch.batch[name] for name in ("responses", "attention_mask", "response_mask")}
    tensors |= {name: batch.batch[name] for name in ("old_log_probs", "rollout_log_probs")}
    tensors |= {"traj_rewards": batch.batch["token_level_scores"]}
    tensors["response_mask"] = tensors["response_mask"].clone()
    tensors["response_mask"][-1] = 0
    trajectories = [f"trajectory {min(row, ROWS - 3)}" for row in range(ROWS)]
    rows = DataProto.from_dict(
        tensors=tensors,
        non_tensors={
            "episode_ids": np.array([f"task {row // 4}" for row in range(ROWS)], dtype=object),
            "trajectory_ids": np.array([f"task {row // 4}_solver" for row in range(ROWS)], dtype=object),
            "step_ids": np.array(trajectories, dtype=object),
            "step_nums": np.ones(ROWS, int), "is_correct": np.zeros(ROWS, bool),
            "is_last_step": np.arange(ROWS) < ROWS - 1, "is_pad_step": np.arange(ROWS) == ROWS - 1,
            "is_valid": np.arange(ROWS) < ROWS - 1, "group_roles": np.array(["solver"] * ROWS, dtype=object),
        },
    )  # fmt: skip

    def update_dataproto_with_advantages(batch, container, mode="broadcast"):
        signs = torch.where(torch.arange(len(batch)) % 2 == 0, 1.0, -1.0)[:, None]
        batch.batch["advantages"] = signs * batch.batch["response_mask"]
        batch.batch["token_level_scores"] = batch.batch["traj_rewards"]
        return batch

    backend = ModuleType(BACKEND)
    backend.update_dataproto_with_advantages = update_dataproto_with_advantages
    monkeypatch.setitem(sys.modules, BACKEND, backend)
    return rows, []


def transformed(rng, _):
    """Rows by rLLM's own classes and transform: trajectories of two turns, the last with a context that began anew."""
    backend = import_module(BACKEND)
    episodes = []
    for row in range(ROWS - 2):
        first, second = [2] * 8, [3] * (4 + row % 5)
        prompt = [1] * PROMPT
        again = [5] * PROMPT if row == ROWS - 3 else [*prompt, *first, 4, 4]
        turns = [(prompt, first), (again, second)] if row % 2 else [(prompt, first)]
        steps = [
            Step(prompt_ids=asked, response_ids=answer, advantage=float(row % 4) - 1.5, model_output=ModelOutput(
                prompt_ids=asked, completion_ids=answer, logprobs=rng.uniform(-3, -0.1, len(answer)).tolist()))
            for asked, answer in turns
        ]  # fmt: skip
        solver = Trajectory(name="solver", steps=steps, reward=float(row % 2))
        episodes.append(Episode(id=f"task {row // 4}:{row % 4}", trajectories=[solver], is_correct=bool(row % 2)))
    engine = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0))
    rows = backend.transform_episodes_to_dataproto(episodes, engine, PROMPT, RESPONSE)
    rows.batch["old_log_probs"] = rows.batch["rollout_log_probs"] + 0.01 * rows.batch["response_mask"]
    settings = {"actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": ROWS // 4}},
                "data": {"train_batch_size": ROWS // 4}}  # fmt: skip
    trainer = SimpleNamespace(
        config=OmegaConf.create(settings), _get_aggregate_dp_size=lambda: ROWS, _remove_padding=lambda rows: rows
    )
    return backend.VerlBackend._pad_dataproto_to_world_size(trainer, rows), episodes


@pytest.mark.parametrize("rows", [written, *([transformed] if "RLLM" in os.environ else [])])
def test_a_trajectory_in_several_rows_is_of_unknown_context_and_the_rest_by_its_masks(rows, monkeypatch):
    batch, episodes = rows(np.random.default_rng(0), monkeypatch)
    tracking = OwnTracking("agent", "run", ["console"], config=CONFIG)
    monitor = tracker_diag_verl.attach(tracking, monitor=Monitor([captured := CapturingTracker()]), config=CONFIG)
    sys.modules[BACKEND].update_dataproto_with_advantages(batch, episodes)
    tracking.log({"actor/entropy": 0.5}, step=1)
    result, mask = counted(monitor, "mismatch"), batch.batch["response_mask"].bool()[:-1]
    after = mask & ((~mask).cumsum(1) > 0)
    split = mask[-2:] & ~after[-2:]
    assert result["all"] == int(mask.sum())
    assert result["post_tool"] == int(after.sum()) > 0
    assert result["text_only"] == int(mask.sum() - after.sum() - split.sum())
    scalars = captured.scalars(1)
    assert scalars["diag/samples/effective_groups"] == ROWS // 4
    assert not [name for name in scalars if "component" in name]
    assert captured.own[1] == {"actor/entropy": 0.5}
    assert monitor.failures == []
