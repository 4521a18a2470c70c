import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.metrics.series import CONTEXT
from tracker_diag.stats.histogram import BINS, sketch
from tracker_diag.tensors.fresh import Fresh
from tracker_diag.tensors.state import sparse

GROUPS, NEEDED = 4, 50


def counts(rng, tokens):
    """Counts of `tokens` log-ratios of each slice, spread over the groups."""
    rows = np.concatenate([row * GROUPS + np.arange(n) % GROUPS for row, n in enumerate(tokens)]).astype(np.int32)
    values = rng.normal(0, 0.1, len(rows)).astype(np.float32)
    (found,) = sketch(values, [rows], [len(CONTEXT) * GROUPS])
    return found.counts


steps = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), min_size=1, max_size=12)


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
        one = counts(rng, tokens)
        given_in += one.reshape(given_in.shape)
        fresh.begin()
        fresh.add(sparse(one))
        for name, of in fresh.take().items():
            assert of.n >= NEEDED
            taken[CONTEXT.index(name)] += of.groups
    left = given_in - taken
    assert (left >= 0).all()
    assert (left.sum(axis=(1, 2, 3)) < NEEDED).all()


def test_what_comes_later_of_a_step_is_of_the_next_value():
    rng, fresh = np.random.default_rng(0), Fresh(GROUPS, NEEDED)
    fresh.begin()
    fresh.add(sparse(counts(rng, (60, 10))))
    assert {name: of.n for name, of in fresh.take().items()} == {"text_only": 60}
    fresh.add(sparse(counts(rng, (70, 45))))
    assert {name: of.n for name, of in fresh.take().items()} == {"post_tool": 55}
    fresh.begin()
    assert {name: of.n for name, of in fresh.take().items()} == {"text_only": 70}


def test_a_value_has_the_quantile_of_its_tokens_and_an_error_by_groups():
    fresh = Fresh(8, 400)
    values = np.random.default_rng(0).normal(0, 0.1, 800).astype(np.float32)
    (found,) = sketch(values, [np.arange(800, dtype=np.int32) % 8 + 8], [16])
    fresh.add(sparse(found.counts))
    of = fresh.take()["post_tool"]
    assert of.quantile(0.95) == pytest.approx(np.quantile(np.abs(values), 0.95, method="lower"), rel=0.004)
    assert 0.01 < of.log_error(0.95) < 0.2
    fresh.add(sparse(found.counts))
    fresh.clear()
    fresh.begin()
    assert fresh.take() == {}
