import runpy
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.metrics.statistics import slice_statistics
from tracker_diag.stats import arrays
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors import batch
from tracker_diag.tensors import given as given_module
from tracker_diag.tensors.arrival import Arrival
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.windows import PairWindow

OBSERVATIONS = runpy.run_path(str(Path(__file__).with_name("observations.py")))
tensors, same, NoWaiting = OBSERVATIONS["tensors"], OBSERVATIONS["same"], OBSERVATIONS["NoWaiting"]


def observation(rng, **options):
    tokens = TokenBatch.validated(**tensors(rng, **options))
    return Observation.reduced(tokens, "policy", label(tokens, Names())), tokens


@pytest.mark.nightly
@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 30))
def test_the_window_is_the_merge_of_the_last_steps(steps, length):
    rng = np.random.default_rng(1)
    observed = [observation(rng)[0] for _ in range(length)]
    window = PairWindow("policy", steps, burn_in=3, baseline=5)
    for item in observed:
        window.push(item)
    whole = reduce(add, observed[-steps:])
    for dimension, item in whole.sketches.items():
        np.testing.assert_array_equal(window.total(dimension), item.counts)
    result = window.slices(Names())
    same(result["all"].sequences, whole.sequences[2])
    # A slice with few tokens reaches further back, and says how many steps.
    before, after = (reduce(add, observed[-(result[name].steps or steps) :]) for name in ("text_only", "post_tool"))
    same(result["text_only"].tokens, before.tokens[0])
    np.testing.assert_array_equal(result["post_tool"].sequence_counts, after.sequence_sketch.counts[1])


@settings(deadline=None, max_examples=20)
@given(st.lists(st.booleans(), min_size=1, max_size=25))
def test_a_total_is_right_however_seldom_it_is_asked_for(asked):
    rng, steps = np.random.default_rng(1), 3
    observed, window = [], PairWindow("policy", steps, burn_in=3, baseline=5)
    for ask in [*asked, True]:
        observed.append(observation(rng)[0])
        window.push(observed[-1])
        if ask:
            expected = reduce(add, observed[-steps:]).sketches["context"].counts
            np.testing.assert_array_equal(window.total("context"), expected)


def test_the_lengths_of_the_window_are_those_of_its_sequences(rng):
    """The sums of n · S and of n², over several steps, against each sequence taken by itself."""
    window = PairWindow("policy", 3, burn_in=3, baseline=5)
    expected = np.zeros(2)
    for at in range(5):
        observed, tokens = observation(rng)
        window.push(observed)
        if at >= 2:
            r, sequence = tokens.log_ratio("policy"), np.asarray(tokens.sequence)
            for number in np.unique(sequence[np.asarray(tokens.model_mask)]):
                mine = np.asarray(r)[(sequence == number) & np.asarray(tokens.model_mask)].astype(float)
                expected += len(mine) * mine.sum(), len(mine) ** 2
    np.testing.assert_allclose(window.context["all"].lengths, expected, rtol=1e-5)


@pytest.mark.nightly
@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(1, 4))
def test_what_comes_of_a_step_later_is_as_if_it_had_come_at_once(parts, steps):
    """Window, reference period and saved state alike; `parts` are the batches of each step."""
    rng = np.random.default_rng(len(parts))
    whole, amended = (PairWindow("policy", steps, burn_in=1, baseline=3) for _ in range(2))
    for number in parts:
        first, *later = [observation(rng)[0] for _ in range(number)]
        whole.push(reduce(add, later, first))
        amended.push(first)
        for item in later:
            amended.amend(item)
        resumed = PairWindow("policy", steps, burn_in=1, baseline=3)
        resumed.load_state_dict(amended.state_dict())
        amended = resumed
    for dimension in whole.dimensions:
        np.testing.assert_array_equal(amended.total(dimension), whole.total(dimension))
    for dimension, expected in whole.baseline.items():
        np.testing.assert_array_equal(amended.baseline[dimension], expected)
    result, expected = amended.slices(Names()), whole.slices(Names())
    for name in ("all", "text_only", "post_tool"):
        same(result[name].tokens, expected[name].tokens)
        same(result[name].sequences, expected[name].sequences)
        np.testing.assert_array_equal(result[name].sequence_counts, expected[name].sequence_counts)


@pytest.mark.slow
def test_the_baseline_needs_steps_and_tokens():
    rng = np.random.default_rng(1)
    few, many = (PairWindow("policy", 2, burn_in=3, baseline=5) for _ in range(2))
    small = [observation(rng)[0] for _ in range(80)]
    for item in small:
        few.push(item)
    tokens = np.cumsum([item.sketches["context"].counts.sum() for item in small[3:]])
    needed = int(np.searchsorted(tokens, 2000)) + 1  # what a p99 needs
    assert needed > 5
    assert few.baseline["context"].sum() == tokens[needed - 1]
    large = [observation(rng, size=64)[0] for _ in range(20)]
    for item in large:
        many.push(item)
    expected = reduce(add, large[3:8]).sketches["context"].counts
    np.testing.assert_array_equal(many.baseline["context"], expected)
    many.rebaseline()
    assert not many.baseline
    for item in large[:5]:
        many.push(item)
    np.testing.assert_array_equal(many.baseline["context"], reduce(add, large[:5]).sketches["context"].counts)


def test_the_reference_period_begins_with_the_first_signal():
    """On-policy steps, where the ratio is 1, are no baseline for what comes after them."""
    rng = np.random.default_rng(3)
    window = PairWindow("policy", 4, burn_in=1, baseline=2)
    for _ in range(10):
        window.push(observation(rng, scale=0.0)[0])
    assert not window.baseline
    later = [observation(rng, size=200)[0] for _ in range(5)]
    for item in later:
        window.push(item)
    np.testing.assert_array_equal(window.baseline["context"], (later[1] + later[2]).sketches["context"].counts)


def test_all_is_the_sum_of_the_slices_of_every_partition():
    observed, tokens = observation(np.random.default_rng(4))
    window = PairWindow("policy", 4, burn_in=1, baseline=2)
    window.push(observed)
    part = window.context
    np.testing.assert_array_equal(part["all"].counts, part["text_only"].counts + part["post_tool"].counts)
    assert part["all"].n == tokens.model_mask.sum()
    np.testing.assert_array_equal(observed.sketches["turn"].counts.sum(axis=0), part["all"].counts)
    both = SliceWindow(part["text_only"].by_group + part["post_tool"].by_group)
    assert part["all"].log_error(0.5) == both.log_error(0.5) is not None


@pytest.mark.slow
def test_what_was_read_before_does_not_stay():
    """The same as of a window that is read for the first time: after a step, a new baseline, and on resuming."""
    rng = np.random.default_rng(8)
    read, steps = PairWindow("policy", 2, burn_in=0, baseline=2), [observation(rng, size=64)[0] for _ in range(12)]

    def compare(fresh):
        result = read.slices(Names())
        for name, part in fresh.slices(Names()).items():
            assert slice_statistics(result[name]) == slice_statistics(part)
        assert result.keys() == fresh.slices(Names()).keys()

    for end in range(1, 13):
        fresh = PairWindow("policy", 2, burn_in=0, baseline=2)
        for step in steps[:end]:
            if end >= 8 and step is steps[7]:
                fresh.rebaseline()
            fresh.push(step)
        if end == 8:
            read.rebaseline()
            assert read.slices(Names()) == {}
        read.push(steps[end - 1])
        compare(fresh)
    read.load_state_dict(fresh.state_dict())
    compare(fresh)


def test_the_slices_that_are_asked_for_are_those_of_all():
    window = PairWindow("policy", 2, burn_in=0, baseline=2)
    window.push(observation(np.random.default_rng(9), size=64)[0])
    every, some = window.slices(Names()), window.slices(Names(), {"turn:0", "turn:7_or_more"})
    assert some.keys() == {"text_only", "post_tool", "all", "turn:0"}
    assert all(slice_statistics(part) == slice_statistics(every[name]) for name, part in some.items())


def test_a_dimension_is_sliced_by_its_names():
    rng = np.random.default_rng(6)
    given, names = tensors(rng, size=40, width=30), Names()
    tools = rng.choice(["", "search", "python"], (40, 30))
    tokens = TokenBatch.validated(**given, tool=tools)
    window = PairWindow("policy", 2, burn_in=0, baseline=2)
    for _ in range(5):
        window.push(Observation.reduced(tokens, "policy", label(tokens, names)))
    result = window.slices(names)
    r = tokens.log_ratio("policy").reshape(40, 30)
    member = given["model_mask"] & (tools == "search")
    part = slice_statistics(result["tool:search"])
    assert part["count"].value == 2 * member.sum()
    assert part["p95"].value == pytest.approx(np.quantile(abs(r[member]), 0.95), rel=0.02)
    assert part["k1"].value == pytest.approx(-r[member].mean(), abs=1e-4)
    assert part["ess"].value == pytest.approx(WeightSums.summed(r[member]).ess, rel=1e-3)
    assert "tool:other" not in result


@settings(max_examples=settings().max_examples // 5)
@given(st.integers(0, 25), st.integers(1, 25))
@pytest.mark.slow
def test_a_restored_window_continues_as_the_unbroken_one(before, after):
    rng = np.random.default_rng(7)
    observed = [observation(rng, size=40)[0] for _ in range(before + after)]
    unbroken = PairWindow("policy", 4, burn_in=3, baseline=5)
    for item in observed[:before]:
        unbroken.push(item)
    restored = PairWindow("policy", 4, burn_in=3, baseline=5)
    restored.load_state_dict(unbroken.state_dict())
    for item in observed[before:]:
        unbroken.push(item)
        restored.push(Observation.of_state(item.state_dict()))
    assert restored.state_dict() == unbroken.state_dict()
    for name, part in unbroken.slices(Names()).items():
        assert slice_statistics(restored.slices(Names())[name]) == slice_statistics(part)


@pytest.fixture
def devices_path(monkeypatch):
    """Torch tensors are taken for those of a device, so that they go its way; on the host, where we can look."""
    for module in (arrays, batch, given_module):
        monkeypatch.setattr(module, "on_device", lambda value: hasattr(value, "detach"))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_devices_path_gives_the_same_and_never_waits(devices_path, packed, dtype):
    rng = np.random.default_rng(8)
    given = tensors(rng, size=24, width=40)
    given |= {
        "advantages": rng.normal(size=(24, 40)), "policy_lag": rng.integers(0, 12, (24, 40)),
        "tool": rng.integers(-1, 3, (24, 40)), "control": rng.random((24, 40)) < 0.1,
        "applied_weights": rng.uniform(0, 2, (24, 40)),
    }  # fmt: skip
    if packed:
        given = {name: value.reshape(-1) for name, value in given.items()}
        given["sequence_ids"] = np.repeat(np.arange(24), 40)
    device = {
        name: torch.from_numpy(value).to(dtype) if value.dtype.kind == "f" else torch.from_numpy(value)
        for name, value in given.items()
    }
    given = {
        name: value.float().numpy() if value.is_floating_point() else value.numpy() for name, value in device.items()
    }
    on_host = TokenBatch.validated(**given, tool_names=("a", "b"))
    expected = Observation.reduced(on_host, "policy", label(on_host, Names()), 5)
    with NoWaiting():
        tokens = TokenBatch.validated(**device, tool_names=("a", "b"), check=False)
        observed = Observation.reduced(tokens, "policy", label(tokens, Names()), 5)
        both = observed + observed
    result = Arrival({"policy": both}).wait()["policy"]
    whole = expected + expected
    assert result.sketches.keys() == whole.sketches.keys()
    for item, other in zip(result.arrays(), whole.arrays(), strict=True):
        np.testing.assert_allclose(item, other, rtol=0 if item.dtype.kind == "i" else 1e-6, atol=1e-9)


def test_waiting_would_be_noticed():
    with pytest.raises(AssertionError, match="item waits"), NoWaiting():
        torch.ones(1).item()
    with pytest.raises(AssertionError, match="hangs on data"), NoWaiting():
        torch.ones(2)[torch.tensor([True, False])]
