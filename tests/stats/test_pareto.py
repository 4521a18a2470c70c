import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.stats import kernel
from tracker_diag.stats.histogram import BINS, EDGES
from tracker_diag.stats.pareto import (
    pareto_k,
    pareto_k_of,
    reliable_below,
    tail_length,
)

_reference = runpy.run_path(str(Path(__file__).with_name("pareto_reference.py")))
draws, NAMES, SIZES, FILE = (_reference[name] for name in ("draws", "NAMES", "SIZES", "FILE"))

CHECK = {
    (200, 0.3): 0.349037, (200, 0.5): 0.495277, (200, 0.7): 0.641454, (200, 1.2): 1.007148,
    (1000, 0.3): 0.323420, (1000, 0.5): 0.496630, (1000, 0.7): 0.669900, (1000, 1.2): 1.103205,
    (4096, 0.3): 0.312384, (4096, 0.5): 0.498560, (4096, 0.7): 0.684735, (4096, 1.2): 1.150077,
    (65536, 0.3): 0.303115, (65536, 0.5): 0.499560, (65536, 0.7): 0.695972, (65536, 1.2): 1.186900,
}  # fmt: skip


def exact(log_weights):
    return fitted(log_weights, tail_length(len(log_weights)) + 1)


def fitted(log_weights, most=None):
    largest = np.sort(np.array(log_weights, float))[-(most or len(log_weights)) :]
    return pareto_k(largest, np.ones(largest.size))


def counts(values):
    """(2, 4098) by sign."""
    x = np.asarray(values, np.float32)
    cells = np.searchsorted(EDGES, np.abs(x), side="right") + BINS * np.signbit(x)
    return np.bincount(cells, minlength=2 * BINS).reshape(2, BINS)


@pytest.mark.parametrize(("n", "k"), CHECK)
def test_exact_quantiles_of_a_pareto_weight(n, k):
    log_weights = -k * np.log1p(-(np.arange(n) + 0.5) / n)
    assert exact(log_weights) == pytest.approx(CHECK[n, k], abs=1e-5)
    assert exact(log_weights + 300) == pytest.approx(CHECK[n, k], abs=1e-5)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "values",
    [[], [0.1] * 10, [0.1] * 5000, [0.0] * 5000, [*np.linspace(0, 1, 4999), 300.0]],
    ids=["none", "too few", "all equal", "no signal", "beyond the sketch"],
)
def test_what_cannot_be_reported_is_nan(values):
    assert math.isnan(pareto_k_of(counts(values)))


@pytest.mark.parametrize("n", [200, 2000, 20000])
@pytest.mark.parametrize("mean", [0.05, 0.5, -0.5, 3.0])
@pytest.mark.parametrize("sd", [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1])
def test_of_log_ratios_that_are_all_nearly_the_same_it_is_right_or_unknown(n, mean, sd, rng):
    """N(0.5, 0.003) has a k̂ of −0.09, and had one of +0.77: the bins there are as wide as all of it."""
    for _ in range(5):
        r = rng.normal(mean, sd, n)
        result = pareto_k_of(counts(r))
        assert math.isnan(result) or result == pytest.approx(exact(r), abs=0.08)
        assert math.isnan(result) <= (sd < abs(mean) / 20)


@pytest.mark.parametrize("scale", [0.003, 0.01, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_ties_of_low_precision_are_no_exceedances(dtype, scale, rng):
    """Log-ratios of bfloat16 have few values, and many of them are the smallest of the tail: k̂ was off by 3.9."""
    torch = pytest.importorskip("torch")

    def rounded(values):
        return torch.from_numpy(values).to(getattr(torch, dtype)).double().numpy()

    compared = 0
    for n in (300, 1000, 3000, 5000, 20_000):
        for _ in range(4):
            old = -rng.exponential(0.7, n)
            r = rounded(old + scale * rng.standard_t(5, n)) - rounded(old)
            got, true = pareto_k_of(counts(r)), exact(r)
            if not math.isnan(got) and true > -0.4:
                assert got == pytest.approx(true, abs=0.05)
                compared += 1
    assert compared >= 15


@pytest.mark.parametrize("sign", [1, -1])
def test_a_tie_at_the_cut_off_is_left_out_as_by_the_exact_form(sign, rng):
    r = np.concatenate([np.full(2000, sign * 0.125), 0.125 + rng.exponential(0.1, 60), rng.uniform(-1, -0.5, 2000)])
    assert pareto_k_of(counts(r)) == pytest.approx(exact(r), abs=0.05)


def test_all_equal_is_no_signal_for_the_exact_form_too():
    assert math.isnan(exact(np.full(5000, 0.1)))


@pytest.mark.parametrize("values", [[], [0.3], [0.3] * 400])
def test_the_exact_form_of_what_cannot_be_reported_is_nan(values):
    assert math.isnan(fitted(values))


@pytest.mark.parametrize(
    ("n", "tail", "limit"), [(100, 20, 0.5), (225, 45, None), (1000, 94, 2 / 3), (65536, 768, 0.7)]
)
def test_tail_length_and_limit(n, tail, limit):
    assert tail_length(n) == tail
    if limit:
        assert reliable_below(n) == pytest.approx(limit)


def plain_largest(number, size):
    """The `size` largest log-ratios of a sketch, one cell after the other, and how many values each has."""
    cells = [(EDGES[i - 1], EDGES[min(i, BINS - 2)], number[0, i]) for i in range(BINS - 1, 0, -1)]
    cells += [(0.0, 0.0, number[:, 0].sum())]
    cells += [(-EDGES[min(i, BINS - 2)], -EDGES[i - 1], number[1, i]) for i in range(1, BINS)]
    values, each = [], []
    for low, high, n in cells:
        taken = min(int(n), size - round(sum(each)))
        points = min(taken, 8)
        values += [high - (high - low) * (j + 0.5) * taken / points / n for j in range(points)]
        each += [taken / points for _ in range(points)]
    return values, each


def plain_fit(log_weights, multiplicity):
    """Zhang and Stephens' estimate as they write it, in the widest float there is."""
    u = np.exp(np.asarray(log_weights, np.longdouble) - max(log_weights))
    pairs = sorted((a - u.min(), c) for a, c in zip(u, multiplicity, strict=True) if a > u.min())
    n = round(sum(c for _, c in pairs))
    if n < 5:
        return math.nan
    x, c = (np.array(part, np.longdouble) for part in zip(*pairs, strict=True))
    m = 30 + math.floor(math.sqrt(n))
    quartile = next(a for a, below in zip(x, np.cumsum(c), strict=True) if below > math.floor(n / 4 + 0.5) - 1e-6)
    theta = [1 / x[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * quartile) for j in range(1, m + 1)]
    mean = [(np.log1p(-t * x) * c).sum() / c.sum() for t in theta]
    profile = [n * (np.log(-t / k) - k - 1) for t, k in zip(theta, mean, strict=True)]
    weight = [1 / sum(math.exp(min(700.0, other - own)) for other in profile) for own in profile]
    kept = [(t, w) for t, w in zip(theta, weight, strict=True) if w >= 10 * np.finfo(float).eps]
    best = sum(t * w for t, w in kept) / sum(w for _, w in kept)
    return float((np.log1p(-best * x) * c).sum() / c.sum() * n / (n + 10) + 5 / (n + 10))


# In steps of 2^-12 nat: of two weights that agree to the last bits the difference, which the fit is about, is noise,
# and float64 and the wider float of the reference see another noise.
steps = st.integers(-300 << 12, 300 << 12) | st.integers(-410, 410)


@pytest.mark.slow
@given(st.lists(steps, min_size=1, max_size=60))
def test_the_fit_is_that_of_the_paper(in_steps):
    log_weights = np.array(in_steps) / 4096
    assert same_to(fitted(log_weights), plain_fit(log_weights, np.ones(log_weights.size)))


@pytest.mark.parametrize("name", NAMES)
def test_the_fit_of_a_sketch_is_that_of_the_paper(name):
    number = counts(draws(name, 4096))
    values = plain_largest(number, tail_length(4096) + 1)
    assert same_to(pareto_k_of(number), plain_fit(*values))


@pytest.mark.parametrize("n", [25, 60, 226, 1000, 80_000])
@pytest.mark.parametrize("scale", [1e-4, 0.003, 0.1, 2.0])
def test_the_kernel_fits_as_numpy_does(n, scale, rng, monkeypatch):
    t, normal = scale * rng.standard_t(3, n), scale * rng.standard_normal(n)
    few_bits = (t.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    sketches = [counts(r) for r in (t, normal, -abs(normal), few_bits, np.where(rng.random(n) < 0.6, 0, t))]
    sketches += [number[::-1] for number in sketches]
    compiled = [pareto_k_of(number) for number in sketches]
    monkeypatch.setattr(kernel, "KERNEL", None)
    assert all(map(same_to, compiled, (pareto_k_of(number) for number in sketches)))


def same_to(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=1e-9, abs=1e-10)
