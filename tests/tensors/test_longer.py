"""A slice with few tokens a step: its window reaches back until it has the tokens of a p95."""

import atexit
import json
from functools import reduce
from operator import add

import numpy as np
import pytest

from tracker_diag.monitor.monitor import Monitor
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.longer import STEPS, TOKENS
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.windows import PairWindow
from tracker_diag.testing import CapturingTracker


def batch(rng, after_tool, growth=1.0, sequences=8, width=40):
    """Sequences of which so many last tokens come after a tool result of two tokens."""
    old = rng.normal(-1, 0.5, (sequences, width))
    model = np.ones(old.shape, bool)
    r = 0.05 * rng.normal(size=old.shape)
    if after_tool:
        model[:, -after_tool - 2 : -after_tool] = False
        r[:, -after_tool:] *= growth
    return {"logprobs": old + r, "old_logprobs": old, "response_mask": np.ones_like(model), "model_mask": model}


def observed(rng, after_tool, **options):
    tokens = TokenBatch.validated(**batch(rng, after_tool, **options))
    return Observation.reduced(tokens, "policy", label(tokens, Names()))


@pytest.mark.parametrize(("a_step", "steps"), [(2, 25), (3, 17), (7, None)], ids=["16 tokens", "24", "56"])
def test_the_window_is_the_merge_of_the_steps_that_it_names(a_step, steps):
    """Of eight steps with 16 tokens each it is that of 25; eight with 56 are enough. Also after a restart."""
    rng, window = np.random.default_rng(1), PairWindow("policy", 8, 15, 50)
    given = [observed(rng, a_step) for _ in range(60)]
    for at, item in enumerate(given):
        if at == 40:
            state, window = json.loads(json.dumps(window.state_dict())), PairWindow("policy", 8, 15, 50)
            window.load_state_dict(state)
        window.push(item)
    result, whole = window.context["post_tool"], reduce(add, given[-(steps or 8) :])
    assert result.steps == steps
    assert result.n >= (TOKENS if steps else 0)
    np.testing.assert_array_equal(result.counts, whole.sketches["context"].counts[8:16].sum(axis=0))
    np.testing.assert_array_equal(result.sequence_counts, whole.sequence_sketch.counts[1])
    np.testing.assert_allclose(result.lengths, whole.sums[3][:, 1])
    assert result.weights.ess == pytest.approx(whole.tokens[1].ess)
    assert window.context["text_only"].steps is None


@pytest.mark.slow
def test_it_reaches_back_no_further_than_its_bound():
    rng, window = np.random.default_rng(1), PairWindow("policy", 8, 15, 50)
    for step in range(200):
        window.push(observed(rng, 0 if step % 5 else 1))
    assert window.context["post_tool"].n <= 8 * -(-STEPS // 5)
    for _ in range(8):
        window.push(observed(rng, 0))
    assert not window.context["post_tool"].n  # what does not occur in the pair's own window is not there


def fired(of_step, onset, steps, **options):
    """When POL001 fires, and its table's note of the slice."""
    rng, monitor = np.random.default_rng(5), Monitor([CapturingTracker()], source="test")
    atexit.unregister(monitor.close)
    for step in range(steps):
        monitor.observe(**batch(rng, of_step(step), 4.0 if step >= onset else 1.0, **options))
        monitor.log({}, step)
    table = monitor.slices_table()
    (note,) = [row[-1] for row in table.rows if row[:2] == ("policy", "post_tool")] or [None]
    return [
        finding.fired for finding in monitor.summary().findings if finding.rule.id == "POL001" and finding.fired
    ], note


@pytest.mark.nightly
def test_a_tail_of_few_tokens_a_step_is_found():
    """With 24 tokens a step the window of eight steps has 192, and a p95 needs 400: it was never found."""
    result, note = fired(lambda step: 3, 240, 300)
    assert 240 < result[0] < 280
    assert note.startswith("few tokens a step: of the last 1")
