import numpy as np
import pytest

from tracker_diag.metrics import registry
from tracker_diag.stats.histogram import sketch
from tracker_diag.stats.tails import Estimate, has_signal, slice_statistics, tokens_needed
from tracker_diag.stats.weights import WeightSums


def counts(values):
    return sketch(np.asarray(values, np.float32), np.zeros(len(values), np.int64), 1).counts[0]


def statistics(values, sequence_sums=()):
    values = np.asarray(values, np.float32)
    return slice_statistics(counts(values), WeightSums.of(values), WeightSums.of(np.asarray(sequence_sums, float)))


OF_WEIGHTS = {"ess", "max_weight_share", "pareto_k", "k3"}


@pytest.mark.parametrize(
    ("n", "stats"),
    [
        (0, {"count"}),
        (199, {"count"}),
        (200, {"count", "p50", *OF_WEIGHTS}),
        (399, {"count", "p50", *OF_WEIGHTS}),
        (400, {"count", "p50", "p95", *OF_WEIGHTS}),
        (2000, {"count", "p50", "p95", "p99", *OF_WEIGHTS}),
    ],
)
def test_a_statistic_needs_its_samples(n, stats):
    found = statistics(np.linspace(0.1, 0.2, n))
    assert found.keys() == stats
    assert all(estimate.n == n for estimate in found.values())
    assert all(n >= tokens_needed(stat) for stat in found if stat != "count")


def test_sequences_are_counted_apart_from_tokens():
    sums = np.random.default_rng(0).normal(size=50)
    found = statistics([0.1], sums)
    assert found["ess_sequence"].n == 50
    w = np.exp(sums)
    assert found["ess_sequence"].value == pytest.approx(w.sum() ** 2 / (w**2).sum() / 50)
    assert "ess_sequence" not in statistics([0.1], sums[:49])


def test_a_sequence_with_a_non_finite_token_has_no_weight():
    sums = np.append(np.zeros(50), np.nan)
    assert statistics([0.1], sums)["ess_sequence"] == Estimate(pytest.approx(1), 50)


@pytest.mark.parametrize(
    ("value", "signal"), [(0.0, False), (1.2e-7, False), (9e-7, False), (1.1e-6, True), (-1e-3, True)]
)
def test_float_noise_is_no_signal(value, signal):
    assert has_signal(counts([0.0, value])) is signal


def test_every_statistic_is_in_the_registry():
    found = statistics(np.linspace(0.1, 0.2, 5000), np.zeros(60))
    assert found.keys() == {metric.name for metric in registry.STATS}


def test_without_a_spread_there_is_no_tail_to_fit():
    assert "pareto_k" not in statistics(np.full(5000, 0.1))
