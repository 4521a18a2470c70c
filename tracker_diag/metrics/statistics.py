"""The statistics of a slice, each declared once: name, meaning, samples that it needs, how it is taken, where it shows.

`STATISTICS` defines what is logged, which panels and columns there are, what a rule may read, and docs/metrics.md.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from tracker_diag.errors import UnknownName
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.registry import PREFIX, Metric, training
from tracker_diag.metrics.series import ALL, CONTEXT, StatKey
from tracker_diag.stats.gradient import clipped_away
from tracker_diag.stats.pareto import pareto_k_of, reliable_below
from tracker_diag.stats.tails import Estimate, SliceWindow, tail_stretch
from tracker_diag.stats.weights import clip_fraction

Section: TypeAlias = Literal["Tails", "ESS", "Shape"]
"""Parts of a tracker's panels, in their order."""

MIN_TOKENS = 200
MIN_SEQUENCES = 50
STEP_TOKENS = 50
"""Tokens of which a p95 is taken for detectors: they average values over blocks, and know the error of each."""


@dataclass(frozen=True)
class Samples:
    """The kind of samples of a statistic, how many a slice has, and the reason if they are too few."""

    count: Callable[[SliceWindow], int]
    too_few: Why


TOKENS = Samples(lambda window: window.n, Why.FEW_TOKENS)
SEQUENCES = Samples(lambda window: int(window.sequences.n), Why.FEW_SEQUENCES)
APPLIED = Samples(lambda window: int(window.applied[0]), Why.FEW_APPLIED)
GRADIENT = Samples(lambda window: int(window.gradient[:6].sum()), Why.FEW_ADVANTAGES)
AGAINST_REFERENCE = Samples(lambda window: min(window.n, int(window.then.sum())), Why.NO_REFERENCE)


@dataclass(frozen=True, kw_only=True)
class Statistic(Metric):
    """One statistic of a slice; `estimate` gives its value."""

    value: Callable[[SliceWindow], float]
    samples: Samples = TOKENS
    needs: int = MIN_TOKENS
    """Samples below which it is not reported."""
    error: Callable[[SliceWindow], float | None] | None = None
    """Standard deviation of the logarithm of the value through the sampling of sequences."""
    logged: tuple[str, ...] = ()
    """Slices for which it goes to the tracker: with all three pairs at most 60 keys a step."""
    chart: Section | None = None
    """Where trackers plot it, a line for each slice of `context`."""
    in_page: bool = False
    """Whether a page has room for it; the tracker's own table has all."""
    of_reference: bool = True
    """Whether it is logged of the reference pair too, which has no weights to speak of."""
    of_step: bool = False
    """Whether it is taken of the tokens since the last value, and not of the window."""

    def estimate(self, window: SliceWindow, *, with_error: bool = False) -> Estimate | None:
        """The value with its number of samples; None if these are too few, or it cannot be computed."""
        n = self.samples.count(window)
        if n < self.needs:
            return None
        value = float(self.value(window))
        error = partial(self.error, window) if self.error and with_error else None
        return None if math.isnan(value) else Estimate(value, n, error)

    def lacking(self, window: SliceWindow) -> Reason:
        """Why `estimate` gives no value."""
        n = self.samples.count(window)
        if n >= self.needs:
            return reason(Why.NO_SPREAD)
        facts = {"have": n, "needed": self.needs} if self.samples is TOKENS else {"needed": self.needs}
        return reason(self.samples.too_few, **facts)

    def is_logged(self, pair: str, slice: str) -> bool:
        """Whether it goes to the tracker for `slice` of `pair`."""
        return slice in self.logged and (self.of_reference or pair != "reference")

    def key(self, pair: str, slice: str) -> str:
        """Its name in a tracker."""
        return f"{PREFIX}{pair}/{slice}/{self.name}"


def _quantile(
    name: str, level: float, meaning: str, *, needs: int = 0, in_page: bool = True, **shown: Any
) -> Statistic:
    """A quantile of |r|; it needs 20 tokens beyond it, or as many as are given."""
    return Statistic(
        name=name, unit="nat", meaning=meaning, worse="higher", scale="log", in_page=in_page,
        needs=needs or max(MIN_TOKENS, round(20 / (1 - level))),
        value=lambda window: window.quantile(level), error=lambda window: window.log_error(level), **shown,
    )  # fmt: skip


_TABLE = (
    Statistic(
        name="count", unit="tokens", worse="neither", needs=0, logged=CONTEXT, in_page=True,
        meaning="finite model tokens in the window",
        value=lambda window: window.n,
    ),
    _quantile("p50", 0.5, "median of the absolute per-token log-ratio |r|", logged=CONTEXT, chart="Shape"),
    _quantile(
        "p95", 0.95, "95th percentile of |r|: the tail; within 0.4 % of the order statistic",
        logged=(*CONTEXT, ALL), chart="Tails",
    ),
    _quantile(
        "p95_step", 0.95, "p95 of this step's tokens; with fewer than 50, of some steps before too. Detectors read it",
        logged=CONTEXT, of_step=True, in_page=False, needs=STEP_TOKENS,
    ),
    Statistic(
        name="excess_step", unit="ratio", worse="higher", scale="log", of_step=True, needs=STEP_TOKENS,
        meaning="p95_step of a tool or an environment over that of all others in the same steps",
        value=lambda window: window.quantile(0.95) / (window.other_cells.quantile(0.95) or math.nan),
    ),
    _quantile("p99", 0.99, "99th percentile of |r|; needs 2,000 tokens", logged=CONTEXT, chart="Tails"),
    Statistic(
        name="largest", unit="nat", worse="higher", scale="log", needs=1,
        meaning="largest |r|, within 0.4 %; 256 means that or more",
        value=lambda window: window.largest,
    ),
    Statistic(
        name="ess", unit="share", worse="lower", logged=CONTEXT, in_page=True, chart="ESS",
        meaning="effective sample size of the raw token weights exp r, over n; of the reference pair a mere distance",
        value=lambda window: window.weights.ess,
    ),
    Statistic(
        name="ess_sequence", unit="share", worse="lower", logged=CONTEXT, in_page=True, of_reference=False,
        samples=SEQUENCES, needs=MIN_SEQUENCES, chart="ESS",
        meaning="the same for sequences, r summed over a sequence's tokens in the slice",
        value=lambda window: window.sequences.ess,
    ),
    Statistic(
        name="sequence_dispersion", unit="ratio", worse="higher", scale="log", logged=CONTEXT, of_reference=False,
        samples=SEQUENCES, needs=MIN_SEQUENCES,
        meaning="variance of a sequence's sum of r − mean r, over its tokens times their variance: 1 if independent",
        value=lambda window: window.sequence_dispersion,
    ),
    Statistic(
        name="ess_applied", unit="share", worse="lower", samples=APPLIED, in_page=True,
        meaning="effective sample size of the weights that the optimiser used, over n",
        value=lambda window: window.ess_applied,
    ),
    Statistic(
        name="modified_fraction", unit="share", worse="higher", samples=APPLIED,
        meaning="tokens whose applied weight is not exp r: truncated or masked",
        value=lambda window: window.applied[3] / window.applied[0],
    ),
    Statistic(
        name="max_weight_share", unit="share", worse="higher", scale="log",
        meaning="largest raw token weight over the sum of all",
        value=lambda window: window.weights.max_weight_share,
    ),
    Statistic(
        name="chi2", unit="ratio", worse="higher", scale="log",
        meaning="χ² divergence from the raw token weights, n/ESS − 1",
        value=lambda window: window.weights.chi2,
    ),
    Statistic(
        name="pareto_k", unit="shape", worse="higher", logged=CONTEXT, in_page=True, of_reference=False, chart="Shape",
        meaning="Pareto k̂ of the raw token weights: 0.5 infinite variance, 1 infinite mean",
        value=lambda window: window.pareto_k,
    ),
    Statistic(
        name="pareto_k_excess", unit="shape", worse="higher", of_reference=False,
        meaning="k̂ less its limit for n tokens, min(1 − 1/log10 n, 0.7): above 0 no weighted mean is to be trusted",
        value=lambda window: window.pareto_k - reliable_below(window.n),
    ),
    Statistic(
        name="pareto_k_inverse", unit="shape", worse="higher",
        meaning="Pareto k̂ of 1/w: the tail of tokens that lost their probability",
        value=lambda window: pareto_k_of(window.counts[::-1], window.n),
    ),
    Statistic(
        name="pareto_k_sequence", unit="shape", worse="higher", samples=SEQUENCES, needs=MIN_SEQUENCES,
        meaning="Pareto k̂ of the sequences' weights; it may be bad where the tokens' k̂ is good",
        value=lambda window: pareto_k_of(window.sequence_counts),
    ),
    Statistic(
        name="k1", unit="nat", worse="neither",
        meaning="k1 estimate of the KL that k3 estimates: unbiased, of either sign",
        value=lambda window: window.k1,
    ),
    Statistic(
        name="k3", unit="nat", worse="higher", scale="log", logged=(ALL,), in_page=True,
        meaning="k3 estimate of KL(sampler ‖ trainer); of the reference pair, of KL(policy ‖ reference)",
        value=lambda window: window.weights.kl_k3,
    ),
    Statistic(
        name="clip_fraction", unit="share", worse="higher", in_page=True,
        meaning="ratios outside the clip range; a bin of the sketch counts whole",
        value=lambda window: clip_fraction(window.counts, *window.clip),
    ),
    Statistic(
        name="gradient_share", unit="share", worse="neither", samples=GRADIENT, of_reference=False, in_page=True,
        logged=("post_tool",),
        meaning="part of Σ|advantage · weight| over all unclipped tokens, of PPO and GRPO what reaches the optimiser",
        value=lambda window: window.gradient_share(by_sequence=False),
    ),
    Statistic(
        name="gradient_share_sequence", unit="share", worse="neither", samples=GRADIENT, of_reference=False,
        in_page=True,
        meaning="gradient_share where the loss is averaged over each sequence first, as GRPO does, not over all tokens",
        value=lambda window: window.gradient_share(by_sequence=True),
    ),
    Statistic(
        name="gradient_clipped", unit="share", worse="higher", samples=GRADIENT, of_reference=False,
        meaning="part of the slice's own Σ|advantage · weight| that clipping takes away",
        value=lambda window: clipped_away(window.gradient),
    ),
    Statistic(
        name="tail_stretch", unit="nat", worse="higher", samples=AGAINST_REFERENCE, needs=2000,
        meaning="change of log(p99/p50) against the reference period",
        value=lambda window: tail_stretch(window.magnitudes, window.then),
    ),
)  # fmt: skip

STATISTICS: Mapping[str, Statistic] = {entry.name: entry for entry in _TABLE}
"""Every statistic of a slice of one pair, by its name; logged as `diag/<pair>/<slice>/<stat>`."""

OF_WINDOW = tuple(entry.name for entry in _TABLE if not entry.of_step)
"""Those over the window."""

OF_STEP = tuple(entry.name for entry in _TABLE if entry.of_step)
"""Those of the tokens since their last value."""


def statistic(name: str) -> Statistic:
    """The statistic called `name`; UnknownName if there is none."""
    if name not in STATISTICS:
        raise UnknownName("stat", name, tuple(STATISTICS))
    return STATISTICS[name]


def declared(series: str) -> Metric:
    """What is known of a series: its unit and its scale. A statistic that is none of ours is a number on its own."""
    key = StatKey.parse(series)
    try:
        return statistic(key.stat) if key else training(series)
    except UnknownName:
        return Metric(series, "", "", "neither")


def slice_statistics(window: SliceWindow, stats: Iterable[str] = OF_WINDOW) -> dict[str, Estimate]:
    """Those of `stats` that the samples support, by name; none of them is NaN."""
    estimates = ((name, STATISTICS[name].estimate(window)) for name in stats)
    return {name: estimate for name, estimate in estimates if estimate is not None}
