"""Several updates of one batch: the first has a ratio of 1 by construction, which is no signal."""

import atexit

import numpy as np
import pytest

from tracker_diag.monitor.monitor import Monitor
from tracker_diag.testing import CapturingTracker

ONSET, STEPS = 90, 140
WINDOW = 8
"""Steps of a window, by default."""


def batch(rng, scale, growth):
    """16 sequences of 64 tokens, half of them with a tool result at tokens 20 to 23."""
    old = rng.normal(-1, 0.5, (16, 64))
    model = np.ones(old.shape, bool)
    model[::2, 20:24] = False
    r = scale * rng.normal(size=old.shape)
    r[::2, 24:] *= growth
    return {"logprobs": old + r, "old_logprobs": old, "response_mask": np.ones_like(model), "model_mask": model}


def fired(scales, growth, onset=ONSET, steps=STEPS):
    """The first step of POL001 in outer steps, and the summary, where each outer step has an update of each scale."""
    rng, monitor = np.random.default_rng(4), Monitor([CapturingTracker()], source="test")
    atexit.unregister(monitor.close)
    for outer in range(steps):
        for position, scale in enumerate(scales):
            seed = rng if scale else np.random.default_rng(0)
            monitor.observe(**batch(seed, scale, growth if outer >= onset else 1.0))
            monitor.log({}, outer * len(scales) + position)
    summary = monitor.summary()
    (result,) = [
        finding for finding in summary.findings if finding.rule.id == "POL001" and finding.fired is not None
    ] or [None]
    return result.fired // len(scales) if result else None, summary


@pytest.mark.nightly
@pytest.mark.parametrize("growth", [2.0, 4.0, 8.0])
def test_a_tail_is_found_with_two_updates_as_early_as_with_one(growth):
    """The same batches in both runs. With two the baseline is there after as many steps, and not half as many."""
    alone, _ = fired([0.05], growth)
    assert alone is not None
    assert ONSET < alone < ONSET + 25
    for onset in (ONSET, 50):
        two, _ = fired([0.0, 0.05], growth, onset=onset)
        assert two is not None
        assert onset < two <= onset + alone - ONSET + 5


@pytest.mark.by_day("4.0")
@pytest.mark.slow
@pytest.mark.parametrize("growth", [2.0, 4.0, 8.0])
def test_a_tail_is_found_with_four_updates(growth):
    """The last three lie further and further from the old policy, all in one series."""
    result, summary = fired([0.0, 0.05, 0.08, 0.11], growth, onset=40, steps=60)
    assert result is not None
    assert 40 <= result <= 50
    assert summary.first_break.rule.id == "POL001"


def test_a_step_without_signal_is_in_no_window_and_is_not_logged():
    rng, backend = np.random.default_rng(4), CapturingTracker()
    monitor = Monitor([backend], source="test")
    atexit.unregister(monitor.close)
    for step in range(12):
        monitor.observe(**batch(rng, 0.05 * (step % 2), 1.0))
        monitor.log({}, step)
    of_step = [
        {record.name: record.value for record in backend.records[step] if hasattr(record, "value")}
        for step in range(12)
    ]
    counts = [record.get("diag/policy/text_only/count") for record in of_step]
    assert counts[1::2] == [672 * n for n in range(1, 7)]
    assert not any(name.startswith("diag/policy/") for record in of_step[::2] for name in record)


@pytest.mark.slow
@pytest.mark.parametrize("empty", [1, 3])
def test_steps_without_signal_beyond_the_usual_count_until_the_pair_is_on_policy(empty):
    """`empty` of them before each step with a signal, and then nothing else."""
    rng, monitor = np.random.default_rng(4), Monitor(source="test")
    atexit.unregister(monitor.close)
    scales = [scale for _ in range(8) for scale in (*[0.0] * empty, 0.05)]
    signal = []
    for step, scale in enumerate([*scales, *[0.0] * (empty + WINDOW)]):
        monitor.observe(**batch(rng, scale, 1.0))
        monitor.log({}, step)
        signal.append(monitor._run.windows["policy"].signal)  # noqa: SLF001  # no public name says it step by step
    assert signal == [*[False] * empty, *[True] * (len(signal) - empty - 1), False]


def test_a_policy_that_collapses_after_two_steps_is_no_pair_without_signal():
    """Its ratios are exactly 1 from then on, whatever updates follow."""
    rng, monitor = np.random.default_rng(4), Monitor(source="test")
    atexit.unregister(monitor.close)
    for step in range(6):
        given = batch(rng, 0.0, 1.0)
        given["logprobs"] = given["logprobs"] - (np.abs(rng.normal(2, 5, (16, 64))) if step < 2 else 0)
        monitor.observe(**given)
        monitor.log({}, step)
    assert [finding.fired for finding in monitor.summary().findings if finding.rule.id == "POL010"] == [3]
