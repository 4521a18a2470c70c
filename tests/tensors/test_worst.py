import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.errors import BatchError
from tracker_diag.records import WorstSequence
from tracker_diag.stats import arrays
from tracker_diag.stats.histogram import sketch
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.tensors import batch as batch_module
from tracker_diag.tensors import given as given_module
from tracker_diag.tensors import worst
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.worst import BEFORE, MOST, WIDTH, Place, WorstTokens, beyond, tail_mass

NoWaiting = runpy.run_path(str(Path(__file__).with_name("observations.py")))["NoWaiting"]

POST, TEXT, ALL = (Place("policy", name) for name in ("post_tool", "text_only", "all"))
ABOUT = {"pair": "policy", "slice": "post_tool", "onset": 0, "moment": "first", "step": 0}


def tensors(rng, size=20, width=60, spread=0.1):
    """Sequences of prompt, answer, tool result and answer, each with its token ids."""
    shape = (size, width)
    model, response = np.ones(shape, bool), np.ones(shape, bool)
    response[:, :5] = model[:, :5] = False
    for i, row in enumerate(model[: size // 2]):
        row[20 + i : 26 + i] = False
    new = rng.normal(-2, 0.5, shape)
    old = new - spread * rng.standard_t(3, shape)
    ids = rng.integers(0, 50_000, shape)
    return {"logprobs": new, "old_logprobs": old, "response_mask": response, "model_mask": model, "token_ids": ids}


def worst_of(given, places, limit=0.2, names=None):
    looked, names = WorstTokens(), names or Names()
    looked.limits = dict.fromkeys(places, limit)
    for item in given if isinstance(given, list) else [given]:
        batch = TokenBatch.validated(**item)
        looked.observe(batch, label(batch, names), names)
    return looked.taken(names)


def sequences(taken, window=1.0):
    return list(replace(taken, window=window).sequences(partial(WorstSequence, **ABOUT)))


def packed(given, lengths, numbers):
    keep = np.concatenate([np.arange(n) + i * given["logprobs"].shape[1] for i, n in enumerate(lengths)])
    flat = {name: value.reshape(-1)[keep] for name, value in given.items()}
    return flat | {"sequence_ids": np.repeat(numbers, lengths)}


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.booleans(), st.sampled_from([POST, TEXT, ALL]))
def test_they_are_those_with_the_most_mass_beyond_the_limit(seed, size, as_packed, place):
    """Against loops over sequences that are written out."""
    rng = np.random.default_rng(seed)
    given, limit = tensors(rng, size), 0.2
    lengths, numbers = rng.integers(30, 61, size), 7 * np.arange(size) + 3
    if not as_packed:
        lengths, numbers = np.full(size, 60), np.arange(size)
    expected = {}
    for i, n in enumerate(lengths):
        r = (given["logprobs"] - given["old_logprobs"])[i, :n]
        model = given["model_mask"][i, :n]
        after = np.cumsum(given["response_mask"][i, :n] & ~model) > 0
        of_slice = {"post_tool": model & after, "text_only": model & ~after, "all": model}[place.slice]
        mass = sum(abs(item) - limit for item in r[of_slice] if abs(item) > limit)
        if mass > 0:
            expected[numbers[i]] = mass, int(np.argmax(np.abs(r) * of_slice)), n
    result = worst_of(packed(given, lengths, numbers) if as_packed else given, [place], limit).get(place)
    kept = sorted(expected, key=lambda number: -expected[number][0])[:MOST]
    assert [item.sequence for item in (sequences(result) if result else [])] == kept
    for item in sequences(result, 1e9) if result else []:
        mass, position, n = expected[item.sequence]
        assert (item.share * 1e9, item.position, item.length) == (pytest.approx(mass, rel=1e-9), position, n)
        assert item.in_slice[item.position - item.first]


def test_a_sequence_comes_with_its_tokens_and_what_they_are(rng):
    given = tensors(rng)
    given["logprobs"][3, 41] += 5
    names = Names()
    given["tool"] = ["search" if i < 10 else "" for i in range(20)]
    (item, *_) = sequences(worst_of(given, [POST], names=names)[POST])
    assert (item.sequence, item.position, item.first, item.length, item.tool, item.batch) == (3, 41, 0, 60, "search", 0)
    np.testing.assert_array_equal(item.token_ids, given["token_ids"][3])
    np.testing.assert_array_equal(item.logprobs, [given["logprobs"][3], given["old_logprobs"][3]])
    np.testing.assert_array_equal(np.flatnonzero(item.tool_output), range(23, 29))
    np.testing.assert_array_equal(item.sampled, given["model_mask"][3])
    np.testing.assert_array_equal(np.flatnonzero(item.in_slice), range(29, 60))
    assert item.largest == pytest.approx(item.logprobs[0, 41] - item.logprobs[1, 41])


@pytest.mark.parametrize("position", [6, 100_000, 131_071])
def test_of_a_very_long_sequence_a_window_is_kept(rng, position):
    n = 131_072
    old = np.full((2, n), -1.0, np.float32)
    new = old.copy()
    new[1, position] = -7
    given = {
        "logprobs": new,
        "old_logprobs": old,
        "response_mask": np.ones((2, n), bool),
        "token_ids": np.arange(2 * n),
    }
    given["token_ids"] = given["token_ids"].reshape(2, n)
    (sequence,) = sequences(worst_of(given, [ALL])[ALL])
    assert sequence.in_slice.size == WIDTH
    assert sequence.first == min(max(position - BEFORE, 0), n - WIDTH)
    assert (sequence.position, sequence.length, sequence.largest) == (position, n, -6)
    np.testing.assert_array_equal(sequence.token_ids, n + sequence.first + np.arange(WIDTH))


def test_one_far_token_counts_as_much_as_many_that_are_near(rng):
    """By the largest token alone the second would come first, by tokens beyond the limit the third."""
    old = np.full((3, 100), -1.0)
    new = old + 0.1
    new[0, 10:50] = old[0, 10:50] + 0.5
    new[1, 10] = old[1, 10] + 5
    new[2] = old[2] + 0.25
    result = worst_of({"logprobs": new, "old_logprobs": old, "response_mask": np.ones((3, 100), bool)}, [ALL])[ALL]
    assert [sequence.sequence for sequence in sequences(result)] == [0, 2, 1]
    assert result.rows[:, 0] == pytest.approx([40 * 0.3, 100 * 0.05, 4.8])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_comes_first_and_has_no_share(rng, value):
    given = tensors(rng)
    given["logprobs"][4, 50] = value
    first, second, *_ = sequences(worst_of(given, [POST])[POST], window=100.0)
    assert (first.sequence, first.position, first.share) == (4, 50, None)
    assert not np.isfinite(first.largest)
    assert 0 < second.share < 1


def test_micro_batches_of_a_step_add_up(rng):
    parts = [tensors(rng) for _ in range(3)]
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    separate, whole = (sequences(worst_of(given, [POST])[POST]) for given in (parts, together))
    assert [20 * item.batch + item.sequence for item in separate] == [item.sequence for item in whole]
    for item, other in zip(separate, whole, strict=True):
        np.testing.assert_array_equal(item.token_ids, other.token_ids)


def test_cells_that_come_and_go_are_looked_for_by_name(rng):
    names, search = Names(), Place("policy", "tool:search")
    absent = [Place("policy", "tool:other"), Place("policy", "env:web"), Place("mismatch", "post_tool")]
    given = tensors(rng) | {"tool": ["calculator" if i % 2 else "search" for i in range(20)]}
    result = worst_of([tensors(rng), given], [search, *absent, Place("policy", "turn:1")], names=names)
    assert result.keys() == {search, Place("policy", "turn:1")}
    assert {sequence.sequence % 2 for sequence in sequences(result[search])} == {0}
    assert {sequence.batch for sequence in sequences(result[search])} == {1}
    assert set(result[search].tools) == {"search"}


def test_nothing_is_done_where_nothing_is_asked(rng, monkeypatch):
    # Private: all looking goes through it.
    monkeypatch.setattr(worst, "_rows", lambda *_: pytest.fail("looked at a slice that nobody asked for"))
    assert worst_of(tensors(rng), []) == {}


def test_what_was_taken_is_forgotten(rng):
    looked, batch = WorstTokens(), TokenBatch.validated(**tensors(rng))
    looked.limits = {POST: 0.2}
    looked.observe(batch, label(batch, Names()), Names())
    assert looked.taken(Names()).keys() == {POST}
    assert looked.taken(Names()) == {}


@pytest.mark.parametrize("as_packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_devices_path_finds_the_same_and_never_waits(rng, monkeypatch, as_packed, dtype):
    for module in (arrays, batch_module, given_module, worst):
        monkeypatch.setattr(module, "on_device", lambda value: hasattr(value, "detach"))
    given = tensors(rng) | {"tool": rng.integers(-1, 2, (20, 60))}
    if as_packed:
        given = packed(given, rng.integers(30, 61, 20), np.arange(20))
    device = {
        name: torch.from_numpy(value).to(dtype) if value.dtype.kind == "f" else torch.from_numpy(value)
        for name, value in given.items()
    }
    host = {name: (value.float() if value.is_floating_point() else value).numpy() for name, value in device.items()}
    names, looked, places = Names(), WorstTokens(), dict.fromkeys((POST, ALL, Place("policy", "tool:1")), 0.2)
    looked.limits = places
    with NoWaiting():
        for _ in range(2):
            batch = TokenBatch.validated(**device, check=False)
            looked.observe(batch, label(batch, names), names)
    result, expected = looked.taken(names), worst_of([host, host], places)
    assert result.keys() == expected.keys() == places.keys()
    for place, source in result.items():
        assert source.tools == expected[place].tools
        rows, others = (np.array(sorted(item.rows.tolist())) for item in (source, expected[place]))
        np.testing.assert_allclose(rows, others, rtol=1e-6)


@pytest.mark.parametrize("ids", [np.uint8(255), np.int32(-5), np.uint64(2**64 - 1), np.int64(2**62)])
def test_ids_of_any_integer_type_and_size_are_kept_as_far_as_they_can_be(rng, ids):
    given = tensors(rng)
    given["token_ids"] = np.full((20, 60), ids)
    for sequence in sequences(worst_of(given, [POST])[POST]):
        if ids < 0:
            assert sequence.token_ids is None  # as if none had been given
        else:
            np.testing.assert_array_equal(sequence.token_ids, min(int(ids), 2**53))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((20, 60)), "token_ids: dtype float64 given, expected integers"),
        (np.zeros((20, 59), int), r"token_ids: shape \(20, 59\) given, expected \(20, 60\), as logprobs has"),
    ],
)
def test_ids_that_do_not_fit_are_refused(rng, ids, message):
    with pytest.raises(BatchError, match=message):
        TokenBatch.validated(**tensors(rng) | {"token_ids": ids})


def test_ids_may_be_ragged_lists_like_the_rest():
    given = {"logprobs": [[-1.0, -2.0], [-1.0]], "old_logprobs": [[-1.5, -2.0], [-1.0]], "model_mask": [[1, 1], [1]]}
    batch = TokenBatch.validated(**given, token_ids=[[5, 6], [7]])
    np.testing.assert_array_equal(batch.token_ids, [5, 6, 7])


def window(r, then=None):
    def counted(values):
        (result,) = sketch(np.asarray(values, np.float32), [np.zeros(len(values), np.int32)], [1])
        return result.counts

    return SliceWindow(counted(r), reference=None if then is None else counted(then).sum(axis=1))


def test_the_tail_begins_at_p99_of_the_baseline_and_has_what_is_beyond(rng):
    then, now = rng.normal(0, 0.1, 5000), rng.standard_t(3, 5000)
    source = window(now, then)
    limit = np.quantile(np.abs(then), 0.99, method="lower")
    assert beyond(source) == pytest.approx(limit, rel=0.004)
    assert tail_mass(source, limit) == pytest.approx(np.maximum(np.abs(now) - limit, 0).sum(), rel=0.005)
    assert beyond(window(now)) == pytest.approx(np.quantile(np.abs(now), 0.99, method="lower"), rel=0.004)
    assert beyond(window(np.zeros(10))) > 0
