"""What RLlib gives, as the diagnostics take it; Ray is not needed."""

import importlib.util
import math
import sys

import numpy as np
import pytest
import torch
import tracker_diag_rllib
from tracker_diag_rllib.results import joined, row

import tracker_diag as td
from tracker_diag.metrics.aliases import key_map

RESULT = {
    "training_iteration": 2,
    "config": {"lr": 0.1},
    "env_runners": {"episode_return_mean": np.float64("nan"), "episode_len_mean": 20.0},
    "learners": {
        "default_policy": {
            "vf_loss": 8.1,
            "entropy": np.float64(0.6),
            "policy_loss": math.nan,
            "num_trainable_parameters": math.nan,
            "mean_kl_loss": 0.01,
        }
    },
}


def test_what_was_not_logged_is_left_out_and_a_loss_that_is_nan_is_not():
    results = row(RESULT)
    assert "env_runners/episode_return_mean" not in results
    assert "learners/default_policy/num_trainable_parameters" not in results
    assert math.isnan(results["learners/default_policy/policy_loss"])
    assert not [name for name in results if name.startswith("config")]


def test_a_kl_that_is_not_computed_is_none():
    result = {"learners": {"default_policy": {"mean_kl_loss": 0.0, "entropy": 0.6}}}
    assert row(result, kl_computed=False) == {"learners/default_policy/entropy": 0.6}
    assert "learners/default_policy/mean_kl_loss" in row(result)


def test_the_rules_know_its_names():
    known = key_map(row(RESULT))
    assert known.framework == "RLlib"
    assert known.values(row(RESULT)) == pytest.approx(
        {"episode_length": 20.0, "value_loss": 8.1, "entropy": 0.6, "approx_kl": 0.01}
    )


def test_minibatches_of_any_shape_come_together_without_what_is_no_action():
    item = {"logprobs": torch.zeros(3), "old_logprobs": torch.ones(3), "advantages": torch.ones(3), "model_mask": None}
    padded = item | {"model_mask": torch.tensor([True, True, False])}
    given = joined([item, padded])
    assert given["model_mask"].tolist() == [True, True, True, True, True, False]
    monitor = td.Monitor()
    monitor.observe(**given)
    monitor.log({}, 0)
    monitor.close()
    table = monitor.slices_table()
    assert {values[table.columns.index("count")] for values in table.rows if values[1] == "text_only"} == {5}


def test_without_ray_it_says_what_to_install(monkeypatch):
    if importlib.util.find_spec("ray"):
        monkeypatch.setitem(sys.modules, "ray", None)
        monkeypatch.setitem(sys.modules, "ray.rllib", None)
    with pytest.raises(td.errors.MissingExtra, match=r"tracker-diag\[rllib\]"):
        tracker_diag_rllib.attach(object())
    with pytest.raises(td.errors.MissingExtra, match=r"tracker-diag\[rllib\]"):
        _ = tracker_diag_rllib.DiagnosticsCallback
    assert "not" in tracker_diag_rllib.SEES
