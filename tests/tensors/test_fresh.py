import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.metrics.series import CONTEXT, NAMED_ROWS
from tracker_diag.stats.cells import sparse
from tracker_diag.stats.histogram import BINS, sketch
from tracker_diag.tensors.fresh import Fresh, FreshCells

GROUPS, NEEDED = 4, 50


def counts(rng, tokens):
    """Counts of `tokens` log-ratios of each slice, spread over the groups."""
    rows = np.concatenate([row * GROUPS + np.arange(n) % GROUPS for row, n in enumerate(tokens)]).astype(np.int32)
    values = rng.normal(0, 0.1, len(rows)).astype(np.float32)
    (result,) = sketch(values, [rows], [len(CONTEXT) * GROUPS])
    return result.counts


def count(fresh, item):
    """Count `item` (2 × groups, 2, 4098)."""
    fresh.count(sparse(item), item.reshape(len(CONTEXT), -1, 2, BINS).sum(axis=1))


steps = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), min_size=1, max_size=12)


@pytest.mark.slow
@given(steps, st.integers(0, 12))
def test_no_token_is_in_two_values_and_none_is_left_out(steps, cut):
    rng = np.random.default_rng(0)
    fresh, given_in, taken = (
        Fresh(GROUPS, NEEDED),
        np.zeros((2, GROUPS, 2, BINS), int),
        np.zeros((2, GROUPS, 2, BINS), int),
    )
    for at, tokens in enumerate(steps):
        if at == cut:  # saved and resumed between two steps
            state = json.loads(json.dumps(fresh.state_dict()))
            fresh = Fresh(GROUPS, NEEDED)
            fresh.load_state_dict(state)
        item = counts(rng, tokens)
        given_in += item.reshape(given_in.shape)
        fresh.begin()
        count(fresh, item)
        for name, part in fresh.take_ready().items():
            assert part.n >= NEEDED
            taken[CONTEXT.index(name)] += part.by_group[:, 0]
    left = given_in - taken
    assert (left >= 0).all()
    assert (left.sum(axis=(1, 2, 3)) < NEEDED).all()


def test_what_comes_later_of_a_step_is_of_the_next_value():
    rng, fresh = np.random.default_rng(0), Fresh(GROUPS, NEEDED)
    fresh.begin()
    count(fresh, counts(rng, (60, 10)))
    assert {name: part.n for name, part in fresh.take_ready().items()} == {"text_only": 60}
    count(fresh, counts(rng, (70, 45)))
    assert {name: part.n for name, part in fresh.take_ready().items()} == {"post_tool": 55}
    fresh.begin()
    assert {name: part.n for name, part in fresh.take_ready().items()} == {"text_only": 70}


def test_a_value_has_the_quantile_of_its_tokens_and_an_error_by_groups():
    fresh = Fresh(8, 400)
    values = np.random.default_rng(0).normal(0, 0.1, 800).astype(np.float32)
    (result,) = sketch(values, [np.arange(800, dtype=np.int32) % 8 + 8], [16])
    count(fresh, result.counts)
    part = fresh.take_ready()["post_tool"]
    assert part.quantile(0.95) == pytest.approx(np.quantile(np.abs(values), 0.95, method="lower"), rel=0.004)
    assert 0.01 < part.log_error(0.95) < 0.2
    count(fresh, result.counts)
    fresh.clear()
    fresh.begin()
    assert fresh.take_ready() == {}


def cell_counts(rng, tokens):
    """Counts (NAMED_ROWS, 2, 4098) of `tokens` log-ratios of the first cells."""
    rows = np.repeat(np.arange(len(tokens)), tokens).astype(np.int32)
    (result,) = sketch(rng.normal(0, 0.1, len(rows)).astype(np.float32), [rows], [NAMED_ROWS])
    return result.counts


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=10), st.integers(0, 10))
def test_each_cell_is_held_against_the_other_cells(steps, cut):
    rng, fresh = np.random.default_rng(0), FreshCells(NEEDED)
    waiting = np.zeros((NAMED_ROWS, 2), int)  # tokens of each cell, and of the others, since its last value
    for at, tokens in enumerate(steps):
        if at == cut:
            state = json.loads(json.dumps(fresh.state_dict()))
            fresh = FreshCells(NEEDED)
            fresh.load_state_dict(state)
        fresh.begin()
        fresh.count(sparse(cell_counts(rng, tokens)))
        of_cell = np.array([*tokens, *[0] * (NAMED_ROWS - len(tokens))])
        waiting += np.stack([of_cell, of_cell.sum() - of_cell], axis=1)
        taken = fresh.take_ready()
        assert set(taken) == set(np.flatnonzero((waiting >= NEEDED).all(axis=1)))
        for row, part in taken.items():
            assert (part.n, part.other_cells.n) == tuple(waiting[row])
            waiting[row] = 0
        assert fresh.take_ready() == {}  # what comes later of a step is of the next value
