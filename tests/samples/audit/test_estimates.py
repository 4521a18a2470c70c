"""Estimates agree with scipy's own statistics, and their intervals hold for samples in groups."""

import numpy as np
import pytest

from tracker_diag.samples.audit.estimates import advantage_of, beyond, blocks_of, estimate, mean, rank_correlation


@pytest.fixture
def pair(rng):
    item = np.round(rng.normal(0, 1, 300), 1)  # with ties
    return item, np.round(item + rng.normal(0, 1, 300), 1), blocks_of(np.arange(300))


def test_rank_correlation_and_superiority_are_those_of_scipy(pair, rng):
    import scipy.stats

    item, other, blocks = pair
    result = rank_correlation(item, other, blocks)
    assert result.value == pytest.approx(scipy.stats.spearmanr(item, other).statistic)
    assert result.low < result.value < result.high
    kind = (rng.random(300) < 0.2).astype(float)
    u = scipy.stats.mannwhitneyu(item[kind > 0], item[kind == 0]).statistic
    assert advantage_of(kind, item, blocks).value == pytest.approx(u / (kind.sum() * (300 - kind.sum())))


@pytest.mark.slow
def test_intervals_hold_what_they_should_with_groups_and_without():
    rng = np.random.default_rng(1)
    held = {True: 0, False: 0}
    for _ in range(200):
        group = np.repeat(np.arange(60), 8)
        shared = rng.normal(0, 1, 60)[group]
        for grouped in held:
            values = shared + rng.normal(0, 0.3, 480) if grouped else rng.normal(0, 1, 480)
            result = mean(values, np.ones(480, bool), blocks_of(group if grouped else np.arange(480)))
            held[grouped] += result.low < 0 < result.high
    assert min(held.values()) >= 0.9 * 200
    assert max(held.values()) < 200


def test_too_few_and_what_does_not_vary_is_not_estimated(pair):
    item, other, blocks = pair
    few = np.where(np.arange(300) < 29, item, np.nan)
    assert rank_correlation(few, other, blocks) is None
    assert rank_correlation(np.ones(300), other, blocks) is None
    assert advantage_of((np.arange(300) < 9).astype(float), item, blocks) is None
    assert estimate(lambda part: None, np.ones(300, bool), blocks) is None


def test_what_a_label_explains_is_taken_out(rng):
    right = (rng.random(1000) < 0.5).astype(float)
    score = 3 * right + rng.normal(0, 1, 1000)
    assert abs(np.corrcoef(beyond(score, right), right)[0, 1]) < 1e-9
    human = rng.random(1000)
    assert abs(np.corrcoef(beyond(5 * human + rng.normal(0, 0.1, 1000), human), human)[0, 1]) < 0.5
    unknown = np.full(1000, np.nan)
    assert beyond(score, unknown) is score
    right[:10] = np.nan
    assert np.isnan(beyond(score, right)[:10]).all()
