"""Rows of rLLM with verl as its backend, as its `transform.py` and `verl_backend.py` of 9beb6e0f (2026-08-15) lay them.

A trajectory is one row, tools' results masked out, as long as each prompt extends the one before; else it is several.
"""

import sys
from types import ModuleType

import numpy as np
import torch
import tracker_diag_verl
from verl.protocol import DataProto
from verl.utils.tracking import Tracking

from tests.integrations.conformance import counted
from tests.integrations.verl.batches import CONFIG, ROWS, made
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker


class OwnTracking(Tracking):
    """rLLM's has a `log` that takes more."""

    def log(self, data, step, backend=None, episodes=None, trajectory_groups=None):
        super().log(data, step)


def update_dataproto_with_advantages(batch, container, mode="broadcast"):
    signs = torch.where(torch.arange(len(batch)) % 2 == 0, 1.0, -1.0)[:, None]
    batch.batch["advantages"] = signs * batch.batch["response_mask"]
    batch.batch["token_level_scores"] = batch.batch["traj_rewards"]
    return batch


def rows(rng):
    """The rows of `made`, of which the last two are a trajectory's and the one that fills the batch up."""
    batch = made(rng)
    tensors = {name: batch.batch[name] for name in ("responses", "attention_mask", "response_mask")}
    tensors |= {name: batch.batch[name] for name in ("old_log_probs", "rollout_log_probs")}
    tensors |= {"traj_rewards": batch.batch["token_level_scores"]}
    tensors["response_mask"] = tensors["response_mask"].clone()
    tensors["response_mask"][-1] = 0
    trajectories = [f"trajectory {min(row, ROWS - 3)}" for row in range(ROWS)]
    return DataProto.from_dict(
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


def test_a_trajectory_in_several_rows_is_of_unknown_context_and_the_rest_by_its_masks(monkeypatch):
    backend = ModuleType("rllm.trainer.verl.verl_backend")
    backend.update_dataproto_with_advantages = update_dataproto_with_advantages
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    tracking = OwnTracking("agent", "run", ["console"], config=CONFIG)
    monitor = tracker_diag_verl.attach(tracking, monitor=Monitor([captured := CapturingTracker()]), config=CONFIG)
    batch = rows(np.random.default_rng(0))
    backend.update_dataproto_with_advantages(batch, [])
    tracking.log({"actor/entropy": 0.5}, step=1)
    found, mask = counted(monitor, "mismatch"), batch.batch["response_mask"].bool()[:-1]
    after = mask & ((~mask).cumsum(1) > 0)
    split = mask[-2:] & ~after[-2:]
    assert found["all"] == int(mask.sum())
    assert found["post_tool"] == int(after.sum()) > 0
    assert found["text_only"] == int(mask.sum() - after.sum() - split.sum())
    scalars = captured.scalars(1)
    assert scalars["diag/samples/effective_groups"] == ROWS // 4
    assert not [name for name in scalars if "component" in name]
    assert captured.own[1] == {"actor/entropy": 0.5}
    assert monitor.failures == []
