"""What reaches the optimiser, against the derivative of the loss itself."""

import numpy as np
import pytest
import torch

from tracker_diag.stats.gradient import clipped_away, gradient_sums, kept


def pulls(old, new, advantages, clip, of_mismatch=None):
    """|∂loss/∂log π| of each token: autograd through the clipped loss of PPO, summed over tokens."""
    given = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    ratio, a = torch.exp(given - torch.tensor(old)), torch.tensor(advantages)
    loss = -torch.minimum(ratio * a, torch.clamp(ratio, 1 - clip[0], 1 + clip[1]) * a)
    (loss * (1.0 if of_mismatch is None else torch.tensor(of_mismatch))).sum().backward()
    return given.grad.abs().numpy()


@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28), (0.5, 3.0)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_share_is_that_of_the_losss_derivative(clip, weighted, library):
    rng = np.random.default_rng(1)
    n = 5000
    old = -rng.gamma(2, 0.5, n)
    new = old + rng.standard_t(3, n) * 0.15
    advantages = rng.normal(size=n) * (rng.random(n) < 0.9)
    row, weights = rng.integers(0, 4, n), rng.gamma(2, 0.5, n) if weighted else None
    given = [new - old, advantages, row] if weights is None else [new - old, advantages, row, weights]
    arrays = given if library == "numpy" else [torch.tensor(item) for item in given]
    sequence = np.sort(rng.integers(0, 40, n))
    per = 1 / np.bincount(sequence)[sequence]
    share = per if library == "numpy" else torch.tensor(per)
    r, a, rows, *applied = arrays
    sums = np.asarray(gradient_sums(r, a, rows, clip, *applied, rows=3, share=share))
    expected = pulls(old, new, advantages, clip, weights)
    of_row = [expected[row == i].sum() for i in range(3)]
    np.testing.assert_allclose([kept(item) for item in sums], of_row, rtol=1e-12)
    by_sequence = [(expected * per)[row == i].sum() for i in range(3)]
    np.testing.assert_allclose([kept(item, by_sequence=True) for item in sums], by_sequence, rtol=1e-12)
    mass = np.abs(advantages) * np.exp(new - old) * (1 if weights is None else weights)
    away = [1 - total / mass[row == i].sum() for i, total in enumerate(of_row)]
    np.testing.assert_allclose([clipped_away(item) for item in sums], away, atol=1e-12)
    assert kept(sums.sum(axis=0)) == pytest.approx(sum(of_row))  # parts add up


def test_what_clipping_takes_away_goes_by_side_and_sign():
    w = np.array([0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 1.5, 1.0, np.nan, 2.0])
    a = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 0.0, 1.0, np.nan])
    (sums,) = gradient_sums(np.log(w), a, np.zeros(10, int), (0.2, 0.2), rows=1, share=np.ones(10))
    assert kept(sums) == pytest.approx(0.5 + 1 + 1 + 1.5 + 1.5)
    assert clipped_away(sums) == pytest.approx(2 / 7.5)


def test_nothing_given_is_nothing_reported():
    (sums,) = gradient_sums(np.zeros(3), np.zeros(3), np.zeros(3, int), (0.2, 0.2), rows=1, share=np.ones(3))
    assert kept(sums) == 0
    assert np.isnan(clipped_away(sums))


def test_a_weight_beyond_floats_is_large_and_no_nan():
    r = np.array([800.0, -800.0, 0.0], np.float32)
    (sums,) = gradient_sums(
        r, np.array([-1.0, 1.0, 1.0], np.float32), np.zeros(3, int), (0.2, 0.2), rows=1, share=np.ones(3)
    )
    assert np.isfinite(sums).all()
    assert kept(sums) > 1e20
