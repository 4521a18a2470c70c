import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.histogram import sketch
from tracker_diag.stats.pareto import largest_log_ratios, pareto_k, pareto_k_of, reliable_below, tail_length

_reference = runpy.run_path(str(Path(__file__).with_name("pareto_reference.py")))
draws, NAMES, SIZES, FILE = (_reference[name] for name in ("draws", "NAMES", "SIZES", "FILE"))

CHECK = {
    (200, 0.3): 0.349037, (200, 0.5): 0.495277, (200, 0.7): 0.641454, (200, 1.2): 1.007148,
    (1000, 0.3): 0.323420, (1000, 0.5): 0.496630, (1000, 0.7): 0.669900, (1000, 1.2): 1.103205,
    (4096, 0.3): 0.312384, (4096, 0.5): 0.498560, (4096, 0.7): 0.684735, (4096, 1.2): 1.150077,
    (65536, 0.3): 0.303115, (65536, 0.5): 0.499560, (65536, 0.7): 0.695972, (65536, 1.2): 1.186900,
}  # fmt: skip


def exact(log_weights):
    return pareto_k(np.sort(log_weights)[-tail_length(len(log_weights)) - 1 :])


def counts(values):
    return sketch(np.asarray(values, np.float32), np.zeros(len(values), np.int64), 1).counts[0]


@pytest.mark.parametrize(("n", "k"), CHECK)
def test_exact_quantiles_of_a_pareto_weight(n, k):
    log_weights = -k * np.log1p(-(np.arange(n) + 0.5) / n)
    assert exact(log_weights) == pytest.approx(CHECK[n, k], abs=1e-5)
    assert exact(log_weights + 300) == pytest.approx(CHECK[n, k], abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", SIZES)
def test_against_arviz(name, n):
    r, reference = draws(name, n), json.loads(FILE.read_text())[f"{name}, {n}"]
    assert exact(r) == pytest.approx(reference, abs=1e-4)
    assert pareto_k_of(counts(r)) == pytest.approx(reference, abs=0.05)


def test_the_sketch_is_close_in_the_median():
    errors = []
    for seed in range(40):
        r = draws(("mixture", "laplace 0.3", "laplace 0.7", "exponential")[seed % 4], 4096 + seed)
        errors.append(abs(pareto_k_of(counts(r)) - exact(r)))
    assert np.median(errors) <= 0.005
    assert max(errors) <= 0.05


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 80), elements=st.floats(-50, 50, width=32)), st.integers(1, 80))
def test_the_largest_are_those_of_the_bins(values, size):
    points, each = largest_log_ratios(counts(values), size)
    assert each.sum() == pytest.approx(min(size, len(values)))
    order = np.argsort(-points)
    true = np.sort(values)[::-1][:size]
    got = points[order][np.searchsorted(np.cumsum(each[order]), np.arange(len(true)) + 0.5)]
    np.testing.assert_allclose(got, true, rtol=1 / 128, atol=2**-24)


@pytest.mark.parametrize(
    "values",
    [[], [0.1] * 10, [0.1] * 5000, [0.0] * 5000, [*np.linspace(0, 1, 4999), 300.0]],
    ids=["none", "too few", "all equal", "no signal", "beyond the sketch"],
)
def test_what_cannot_be_told_is_nan(values):
    assert math.isnan(pareto_k_of(counts(values)))


def test_all_equal_is_no_signal_for_the_exact_form_too():
    assert math.isnan(exact(np.full(5000, 0.1)))


@pytest.mark.parametrize(
    ("n", "tail", "limit"), [(100, 20, 0.5), (225, 45, None), (1000, 94, 2 / 3), (65536, 768, 0.7)]
)
def test_tail_length_and_limit(n, tail, limit):
    assert tail_length(n) == tail
    if limit:
        assert reliable_below(n) == pytest.approx(limit)
