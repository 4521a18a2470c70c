import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.errors import UnknownName
from tracker_diag.metrics.series import KNOWN, PAIRS
from tracker_diag.metrics.statistics import OF_STEP, OF_WINDOW, STATISTICS, slice_statistics, statistic
from tracker_diag.stats import kernel
from tracker_diag.stats.histogram import quantiles, sketch
from tracker_diag.stats.tails import Estimate, SliceWindow, cells_have_signal
from tracker_diag.stats.weights import WeightSums


def counts(values):
    (result,) = sketch(np.asarray(values, np.float32), [np.zeros(len(values), np.int32)], [1])
    return result.counts[0]


def window(values, sequence_sums=(), **more):
    values, sums = np.asarray(values, np.float32), np.asarray(sequence_sums, float)
    exact = WeightSums.summed(values), WeightSums.summed(sums)
    return SliceWindow(counts(values)[None], exact[0], exact[1], counts(sums), **more)


def statistics(values, sequence_sums=(), **more):
    return slice_statistics(window(values, sequence_sums, **more))


OF_WEIGHTS = {
    "ess", "max_weight_share", "chi2", "pareto_k", "pareto_k_excess", "pareto_k_inverse", "k1", "k3", "clip_fraction",
}  # fmt: skip


@pytest.mark.parametrize(
    ("n", "stats"),
    [
        (0, {"count"}),
        (1, {"count", "largest"}),
        (199, {"count", "largest"}),
        (200, {"count", "largest", "p50", *OF_WEIGHTS}),
        (399, {"count", "largest", "p50", *OF_WEIGHTS}),
        (400, {"count", "largest", "p50", "p95", *OF_WEIGHTS}),
        (2000, {"count", "largest", "p50", "p95", "p99", *OF_WEIGHTS}),
    ],
)
def test_a_statistic_needs_its_samples(n, stats):
    result = statistics(np.linspace(0.1, 0.2, n))
    assert result.keys() == stats
    assert all(estimate.n == n for estimate in result.values())
    assert all(n >= statistic(stat).needs for stat in result)
    assert n == 0 or result["largest"].value == pytest.approx(0.1 if n == 1 else 0.2, rel=0.004)


def test_sequences_are_counted_separately_from_tokens():
    sums = np.random.default_rng(0).normal(size=50)
    result = statistics([0.1], sums)
    assert result["ess_sequence"].n == 50
    w = np.exp(sums)
    assert result["ess_sequence"].value == pytest.approx(w.sum() ** 2 / (w**2).sum() / 50)
    assert "ess_sequence" not in statistics([0.1], sums[:49])


def dispersion(rows, lengths):
    """Of sequences with the first tokens of `rows`, as many as `lengths` says."""
    rows = [row[:n] for row, n in zip(rows, lengths, strict=True)]
    sums, n = np.array([row.sum() for row in rows]), np.array(lengths, float)
    result = statistics(np.concatenate(rows), sums, lengths=np.array([n @ sums, n @ n]))
    return result["sequence_dispersion"].value


@pytest.mark.parametrize("length", [10, 300])
def test_sequences_of_independent_tokens_are_dispersed_as_they_are_at_any_length(length):
    rng = np.random.default_rng(0)
    r = rng.standard_t(5, (2000, length)) * 0.05
    assert dispersion(r, [length] * 2000) == pytest.approx(1, abs=0.1)
    together = r + rng.normal(0, 0.05, (2000, 1))
    result = dispersion(together, [length] * 2000)
    spread = 0.05**2 * 5 / 3
    assert result == pytest.approx((spread + length * 0.05**2) / (spread + 0.05**2), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "sigma"), [(64, 0.1), (4096, 0.1), (16_384, 0.055), (32_768, 0.055)])
@pytest.mark.parametrize("shift", [0, -0.5, 10], ids=["none", "of weights with mean 1", "large"])
def test_ragged_lengths_are_no_dispersion(length, sigma, shift):
    """Weights with mean 1 have a mean log-ratio of −σ²/2: without it long sequences would be far off as a whole."""
    rng = np.random.default_rng(3)
    lengths = np.maximum((length * rng.uniform(0.05, 1, 96)).astype(int), 1)
    r = sigma * rng.standard_normal((96, length), dtype=np.float32) + np.float32(shift * sigma**2)
    assert dispersion(r, lengths) == pytest.approx(1, abs=0.45)
    together = r + np.float32(3 * sigma / length**0.5) * rng.standard_normal((96, 1), dtype=np.float32)
    assert dispersion(together, lengths) > 2.5


def test_a_sequence_with_a_non_finite_token_has_no_weight():
    sums = np.append(np.zeros(50), np.nan)
    assert statistics([0.1], sums)["ess_sequence"] == Estimate(pytest.approx(1), 50)


@pytest.mark.parametrize(
    ("value", "signal"), [(0.0, False), (1.2e-7, False), (9e-7, False), (1.1e-6, True), (-1e-3, True)]
)
def test_float_noise_is_no_signal(value, signal):
    assert cells_have_signal(np.flatnonzero(counts([0.0, value]))) is signal


def test_every_statistic_can_be_taken():
    reference = counts(np.linspace(0.1, 0.3, 5000)).sum(axis=0)
    applied, gradient = np.array([5000.0, 5000, 5000, 0]), np.ones(13) * 400
    values = np.random.default_rng(0).normal(0, 0.1, 5000)
    result = statistics(
        values,
        np.linspace(0, 1, 60),
        reference=reference,
        applied=applied,
        gradient=gradient,
        whole_gradient=2 * gradient,
        lengths=np.array([60.0, 60.0]),
    )
    assert result.keys() == set(OF_WINDOW)
    step = SliceWindow(counts(np.linspace(0.1, 0.2, 400))[None], reference=reference)
    assert slice_statistics(step, OF_STEP).keys() == set(OF_STEP)
    assert {*OF_WINDOW, *OF_STEP} == STATISTICS.keys()


def test_without_a_spread_there_is_no_tail_to_fit():
    assert "pareto_k" not in statistics(np.full(5000, 0.1))


@pytest.mark.parametrize(("n", "limit"), [(200, 0.565), (1000, 0.667), (10_000, 0.7)])
def test_fewer_tokens_bear_less_of_a_tail(n, limit):
    result = statistics(np.random.default_rng(1).normal(0, 0.8, n))
    assert result["pareto_k"].value - result["pareto_k_excess"].value == pytest.approx(limit, abs=0.001)


def test_k1_has_the_sign_of_the_divergence_that_is_sampled():
    values = np.linspace(0.1, 0.2, 500)
    assert statistics(values)["k1"].value == pytest.approx(-0.15)
    assert statistics(values, from_numerator=True)["k1"].value == pytest.approx(0.15)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_jackknife_tells_how_far_a_quantile_scatters(level):
    """Against the scatter over fresh samples, with tokens of a sequence alike, as they are."""
    rng = np.random.default_rng(0)

    def sample():
        scale = np.exp(rng.normal(0, 0.5, 64))  # a sequence's own
        values = (rng.normal(size=(64, 100)) * scale[:, None]).astype(np.float32)
        groups = [counts(values[i::8].reshape(-1)) for i in range(8)]
        slice_window = SliceWindow(np.stack(groups), WeightSums.none())
        return np.log(np.quantile(np.abs(values), level)), slice_window.log_error(level)

    result = [sample() for _ in range(200)]
    true = np.std([value for value, _ in result])
    assert np.mean([error for _, error in result]) == pytest.approx(true, rel=0.15)


tokens_of_groups = st.lists(
    hnp.arrays(
        np.float32,
        st.integers(0, 12),
        elements=st.floats(-4, 4, width=32) | st.sampled_from([0.0, -0.0, 1e-9, 255.0, -300.0, 3e38]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(tokens_of_groups, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
@example([np.array([], np.float32)] * 4, 0.5)
def test_quantile_and_its_error_are_those_of_the_plain_counts(groups, level):
    """Also of slices without tokens or with one, of log-ratios that are all 0, and of very large ones."""
    by_group = np.stack([counts(values) for values in groups])
    part, all_counts = SliceWindow(by_group), by_group.sum(axis=(0, 1))
    (plain,) = quantiles(all_counts, [level])
    assert part.quantile(level) == plain or (math.isnan(plain) and math.isnan(part.quantile(level)))
    without = [quantiles(all_counts - item.sum(axis=0), [level])[0] for item in by_group if item.any()]
    if len(without) < 4 or 0 in without:
        assert part.log_error(level) is None
        return
    g, logs = len(without), np.log(without)
    expected = pytest.approx(np.sqrt((g - 1) ** 2 / g * logs.var(ddof=1)), rel=1e-12, abs=1e-15)
    assert part.log_error(level) == expected
    of_two_slices = SliceWindow(np.stack([by_group, by_group[::-1]]).swapaxes(0, 1))  # as `all` has them
    compiled = of_two_slices.without_each(level).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "KERNEL", None)
        assert part.log_error(level) == expected
        assert of_two_slices.without_each(level).tolist() == compiled


def test_what_no_exact_sums_are_kept_of_is_read_off_the_sketch():
    values = np.random.default_rng(1).normal(0, 0.1, 5000)
    kept, read = window(values), SliceWindow(counts(values)[None])
    assert read.weights.array() == pytest.approx(WeightSums.of_counts(counts(values)).array(), rel=0)
    assert slice_statistics(read)["ess"].value == pytest.approx(slice_statistics(kept)["ess"].value, rel=1e-3)


def test_the_jackknife_needs_groups_and_a_logarithm():
    assert window(np.linspace(0.1, 0.2, 500)).log_error(0.5) is None
    zero = np.stack([counts(np.zeros(10))] * 8)
    assert SliceWindow(zero, WeightSums.none()).log_error(0.5) is None


def test_an_unknown_statistic_lists_the_known_ones():
    with pytest.raises(
        UnknownName, match="stat: 'p96' given, expected one of count, p50, p95, p95_step, excess_step, p99"
    ):
        statistic("p96")


@pytest.mark.parametrize(
    ("stat", "more", "why"),
    [
        ("p99", {}, "1999 tokens in the window, 2000 needed; a larger window= holds more"),
        ("ess_sequence", {}, "fewer than 50 sequences in the window"),
        ("ess_applied", {}, "fewer than 200 finite applied_weights observed"),
        ("tail_stretch", {}, "no reference period yet, or too few tokens in it or in the window"),
        ("pareto_k", {}, "the weights do not spread enough to compute it"),
    ],
)
def test_a_statistic_says_what_it_lacks(stat, more, why):
    part = window(np.full(1999, 0.1), **more)
    assert statistic(stat).estimate(part) is None
    assert str(statistic(stat).lacking(part)) == why


def test_what_is_logged_keeps_to_sixty_keys_a_step_with_all_pairs():
    assert sum(item.is_logged(pair, name) for item in STATISTICS.values() for pair in PAIRS for name in KNOWN) <= 60
