"""What a batch is reduced to: sums over slices and sequences, and groups for the sampling error."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import GROUPS, ROWS, Observation
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.windows import PairWindow

OBSERVATIONS = runpy.run_path(str(Path(__file__).with_name("observations.py")))
tensors, same = OBSERVATIONS["tensors"], OBSERVATIONS["same"]


def test_weights_are_over_the_model_tokens_of_the_slice_and_their_sequences():
    tokens = TokenBatch.validated(**tensors(np.random.default_rng(0)))
    observed = Observation.reduced(tokens, "policy", label(tokens, Names()))
    r, row = tokens.log_ratio("policy").reshape(4, 12), label(tokens, Names())["context"].reshape(4, 12)
    for i, member in enumerate((row == 0, row == 1, row < 2)):
        if i < 2:
            same(observed.tokens[i], WeightSums.summed(r[member]))
        sums = [r[j][member[j]].sum() for j in range(4) if member[j].any()]
        same(observed.sequences[i], WeightSums.summed(np.array(sums)))
        assert observed.sequence_sketch.counts[i].sum() == len(sums)


def groups(given, first=0):
    """Model tokens by group."""
    tokens = TokenBatch.validated(**given)
    counts = Observation.reduced(tokens, "policy", label(tokens, Names()), first).sketches["context"].counts
    return counts.reshape(len(ROWS), GROUPS, -1).sum(axis=(0, 2))


@pytest.mark.parametrize("size", [20, 64, 3])
def test_the_groups_are_sequences_that_stand_next_to_each_other(size):
    given = tensors(np.random.default_rng(5), size=size)
    group = (np.arange(size) * GROUPS // max(size, GROUPS) + 3) % GROUPS
    expected = [given["model_mask"][group == item].sum() for item in range(GROUPS)]
    np.testing.assert_array_equal(groups(given, 3), expected)
    packed = {name: value.reshape(-1) for name, value in given.items()}
    packed["sequence_ids"] = np.repeat(np.arange(size), given["model_mask"].shape[1])
    np.testing.assert_array_equal(groups(packed, 3), expected)


@pytest.mark.parametrize("name", [str, int, "prompt {}".format], ids=["digits", "integers", "words"])
def test_the_samples_of_a_prompt_are_in_one_group_whatever_the_batch(name):
    given = tensors(np.random.default_rng(5), size=64)
    prompt = np.random.default_rng(6).permutation(np.repeat(np.arange(0, 256, 16), 4))
    names = [name(item) for item in prompt]
    result = groups(given | {"prompt": names})
    assert np.count_nonzero(result) >= 5
    assert result.sum() == given["model_mask"].sum()
    halves = [
        groups({item: value[part] for item, value in given.items()} | {"prompt": names[part]}, first)
        for first, part in enumerate((slice(0, 30), slice(30, 64)))
    ]
    np.testing.assert_array_equal(sum(halves), result)
    alone = [groups({item: value[prompt == p] for item, value in given.items()} | {"prompt": [name(p)] * 4})
             for p in np.unique(prompt)]  # fmt: skip
    assert all(np.count_nonzero(item) == 1 for item in alone)


def claimed_and_true(order, grouped):
    """The jackknife's error of a p95 of 8 samples of each of 8 prompts, and its spread over 200 such batches."""
    rng, claims, logs = np.random.default_rng(7), [], []
    prompt = np.repeat(np.arange(8), 8) if order == "adjacent" else np.tile(np.arange(8), 8)
    for _ in range(200):
        scale = 0.1 * np.exp(0.4 * rng.normal(size=8))[prompt]
        given = {"logprobs": np.zeros((64, 30)), "old_logprobs": scale[:, None] * rng.normal(size=(64, 30))}
        given |= {"model_mask": np.ones((64, 30), bool)} | ({"prompt": prompt + 100 * len(logs)} if grouped else {})
        tokens = TokenBatch.validated(**given)
        window = PairWindow("policy", 1, burn_in=1, baseline=2)
        window.push(Observation.reduced(tokens, "policy", label(tokens, Names())))
        source = window.context["all"]
        logs.append(math.log(source.quantile(0.95)))
        claims.append(source.log_error(0.95))
    return math.sqrt(np.mean([claim**2 for claim in claims if claim])), np.std(logs)


@pytest.mark.by_day("in turn-True")
@pytest.mark.slow
@pytest.mark.parametrize(("order", "grouped"), [("adjacent", False), ("adjacent", True), ("in turn", True)])
def test_the_error_of_a_tail_knows_that_samples_of_a_prompt_are_alike(order, grouped):
    claimed, true = claimed_and_true(order, grouped)
    assert 0.7 < claimed / true < 1.6


@pytest.mark.nightly
def test_the_error_of_prompts_in_turn_that_are_not_reported_is_too_small():
    """What `prompt` is for: nothing in the tensors says it."""
    claimed, true = claimed_and_true("in turn", grouped=False)
    assert claimed < 0.4 * true


def test_micro_batches_add_up_to_the_batch():
    rng = np.random.default_rng(2)
    new, old = rng.normal(size=(2, 6, 10))
    model = rng.random((6, 10)) < 0.8

    def observed(rows):
        tokens = TokenBatch.validated(logprobs=new[rows], old_logprobs=old[rows], model_mask=model[rows])
        return Observation.reduced(tokens, "policy", label(tokens, Names()), first_group=rows.start)

    whole, parts = observed(slice(0, 6)), observed(slice(0, 2)) + observed(slice(2, 6))
    for dimension, item in whole.sketches.items():
        np.testing.assert_array_equal(parts.sketches[dimension].counts, item.counts)
    same(parts.tokens[0], whole.tokens[0])
    same(parts.sequences[1], whole.sequences[1])
