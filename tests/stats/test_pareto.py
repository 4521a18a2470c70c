import math

import numpy as np
import pytest
from arviz_stats.base import array_stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.histogram import sketch
from tracker_diag.stats.pareto import largest_log_ratios, pareto_k, pareto_k_of, reliable_below, tail_length

CHECK = {
    (200, 0.3): 0.349037, (200, 0.5): 0.495277, (200, 0.7): 0.641454, (200, 1.2): 1.007148,
    (1000, 0.3): 0.323420, (1000, 0.5): 0.496630, (1000, 0.7): 0.669900, (1000, 1.2): 1.103205,
    (4096, 0.3): 0.312384, (4096, 0.5): 0.498560, (4096, 0.7): 0.684735, (4096, 1.2): 1.150077,
    (65536, 0.3): 0.303115, (65536, 0.5): 0.499560, (65536, 0.7): 0.695972, (65536, 1.2): 1.186900,
}  # fmt: skip


def arviz(log_weights):
    return float(array_stats.psislw(-log_weights)[1])  # it takes log-likelihoods and turns their sign


def exact(log_weights):
    return pareto_k(np.sort(log_weights)[-tail_length(len(log_weights)) - 1 :])


def counts(values):
    return sketch(np.asarray(values, np.float32), np.zeros(len(values), np.int64), 1).counts[0]


@pytest.mark.parametrize(("n", "k"), CHECK)
def test_exact_quantiles_of_a_pareto_weight(n, k):
    log_weights = -k * np.log1p(-(np.arange(n) + 0.5) / n)
    assert exact(log_weights) == pytest.approx(CHECK[n, k], abs=1e-5)
    assert exact(log_weights + 300) == pytest.approx(CHECK[n, k], abs=1e-5)


def draws(name, rng, n):
    return {
        "normal": lambda: rng.normal(0, 0.05, n),
        "mixture": lambda: np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)),
        "laplace 0.3": lambda: rng.laplace(0, 0.3, n),
        "laplace 0.7": lambda: rng.laplace(0, 0.7, n),
        "exponential": lambda: rng.exponential(1.0, n),
        "wide normal": lambda: rng.normal(0, 1.5, n),
        "mostly below": lambda: -rng.exponential(1.0, n),
    }[name]()


@pytest.mark.parametrize("n", [512, 4096, 65536, 1_000_000])
@pytest.mark.parametrize(
    "name", ["normal", "mixture", "laplace 0.3", "laplace 0.7", "exponential", "wide normal", "mostly below"]
)
def test_against_arviz(name, n):
    r = draws(name, np.random.default_rng(n), n).astype(np.float32).astype(float)
    reference = arviz(r)
    assert exact(r) == pytest.approx(reference, abs=1e-4)
    assert pareto_k_of(counts(r)) == pytest.approx(reference, abs=0.05)


def test_the_sketch_is_close_in_the_median():
    errors = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        r = draws(("mixture", "laplace 0.3", "laplace 0.7", "exponential")[seed % 4], rng, 4096)
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
