"""The registry of metric names. Nothing is logged that is not here; docs/metrics.md is made from it."""

from dataclasses import dataclass
from typing import Literal

from tracker_diag.errors import UnknownName

PREFIX = "diag/"


@dataclass(frozen=True)
class Metric:
    """One name: its unit, what it means, and which way it gets worse."""

    name: str
    unit: str
    meaning: str
    worse: Literal["higher", "lower", "neither"]
    scale: Literal["log", "linear"] = "linear"
    """The scale on which growth is judged: `log` for what is positive and spans decades."""
    matters: float = 0.0
    """On the linear scale: a change below this, in the metric's unit, is never growth."""


STATS = (
    Metric("p50", "nat", "median of the absolute per-token log-ratio |r|", "higher", "log"),
    Metric("p95", "nat", "95th percentile of |r|: the tail; within 0.4 % of the order statistic", "higher", "log"),
    Metric("p99", "nat", "99th percentile of |r|; needs 2,000 tokens", "higher", "log"),
    Metric(
        "ess",
        "share",
        "effective sample size of the raw token weights exp r, over n; of the reference pair a mere distance",
        "lower",
    ),
    Metric("ess_sequence", "share", "the same for sequences, r summed over a sequence's tokens in the slice", "lower"),
    Metric("ess_perplexity", "share", "exp of the entropy of the raw token weights, over n; slower to fall", "lower"),
    Metric("ess_applied", "share", "effective sample size of the weights that the optimiser used, over n", "lower"),
    Metric("modified_fraction", "share", "tokens whose applied weight is not exp r: truncated or masked", "higher"),
    Metric("max_weight_share", "share", "largest raw token weight over the sum of all", "higher", "log"),
    Metric("chi2", "ratio", "χ² divergence from the raw token weights, n/ESS − 1", "higher", "log"),
    Metric("pareto_k", "shape", "Pareto k̂ of the raw token weights: 0.5 infinite variance, 1 infinite mean", "higher"),
    Metric("pareto_k_inverse", "shape", "Pareto k̂ of 1/w: the tail of tokens that lost their probability", "higher"),
    Metric("pareto_k_sequence", "shape", "Pareto k̂ of the sequences' weights; of a good token k̂ no proof", "higher"),
    Metric("hill", "shape", "Hill's index of |r|; to look at, not to alarm on", "neither"),
    Metric("k1", "nat", "k1 estimate of the KL that k3 estimates: unbiased, of either sign", "neither"),
    Metric("k2", "nat", "k2 estimate of the same KL, half the mean square of r", "higher", "log"),
    Metric(
        "k3",
        "nat",
        "k3 estimate of KL(sampler ‖ trainer); of the reference pair, of KL(policy ‖ reference)",
        "higher",
        "log",
    ),
    Metric("clip_fraction", "share", "ratios outside the clip range; a bin of the sketch counts whole", "higher"),
    Metric("tail_stretch", "nat", "change of log(p99/p50) against the reference period", "higher"),
    Metric("qq_slope", "slope", "slope of log quantiles on the reference period's, p50 to p99.95, less 1", "higher"),
    Metric("wasserstein", "nat", "W1 between |r| now and in the reference period; blind to tails", "neither"),
    Metric("ks", "share", "largest gap between the two distributions of |r|; blind to tails", "neither"),
    Metric("count", "tokens", "finite model tokens in the window", "neither"),
)
"""Statistics of one slice of one pair over the window, logged as `diag/<pair>/<slice>/<stat>`."""

HEALTH = (
    Metric("rejected_batches", "batches", "observations refused after the first: see the warning in the log", "higher"),
    Metric("late_steps", "steps", "observations or metrics refused because their step went backwards", "higher"),
    Metric("nonfinite_tokens", "tokens", "model tokens with a NaN or infinite log-ratio, in all pairs", "higher"),
    Metric("nonfinite_metrics", "values", "NaN or infinite values among the metrics that you log", "higher"),
    Metric("rank_errors", "errors", "parts of a rank that could not be sent; training went on", "higher"),
    Metric("lost_rank_steps", "steps", "steps of other ranks that were overwritten before they were read", "higher"),
    Metric("internal_errors", "errors", "failures inside the diagnostics; training went on", "higher"),
    Metric("backend_errors", "errors", "failed calls into a tracker; training went on", "higher"),
)
"""Health of the diagnostics themselves, logged as `diag/health/<name>` from its first count on."""

TRAINING = (
    Metric("reward", "reward", "mean training reward", "lower", matters=0.02),
    Metric("kl", "nat", "mean KL to the reference policy", "higher", "log"),
    Metric("entropy", "nat", "mean token entropy of the policy", "lower", "log"),
    Metric("loss", "loss", "policy loss", "higher", matters=0.01),
    Metric("grad_norm", "norm", "gradient norm before clipping", "higher", "log"),
    Metric("clip_fraction", "share", "share of ratios outside the clip range", "higher", matters=0.01),
    Metric("rank_time_ratio", "ratio", "slowest rank's own seconds a step, over the median rank's", "higher", "log"),
)
"""Metrics that a trainer logs itself; read by the rules under these names, with any prefix."""

OWN = (
    Metric("step", "step", "the training step that the diagnostics of a row belong to", "neither"),
    Metric("rule/<ID>", "state", "−1 unknown, 0 healthy, 1 pending, 2 firing", "higher"),
)

NOT_THE_POLICYS = ("eval/", "val/", "validation/", "test/", "critic/", "value/", PREFIX)
"""Prefixes under which a familiar name means something else."""

_STATS = {metric.name: metric for metric in STATS}
_TRAINING = {metric.name: metric for metric in TRAINING}


def stat(name: str) -> Metric:
    """The statistic called `name`; UnknownName if there is none."""
    if name not in _STATS:
        raise UnknownName("stat", name, tuple(_STATS))
    return _STATS[name]


def training(name: str) -> Metric:
    """The trainer's metric with the canonical `name`; UnknownName if there is none."""
    if name not in _TRAINING:
        raise UnknownName("metric", name, tuple(_TRAINING))
    return _TRAINING[name]


def canonical(key: str) -> str | None:
    """The canonical name of a trainer's own `key`, with or without a prefix; None if it is none.

    >>> canonical("train/reward")
    'reward'
    """
    last = key.rsplit("/", 1)[-1]
    return last if last in _TRAINING and not key.startswith(NOT_THE_POLICYS) else None
