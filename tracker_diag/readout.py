"""Readout: from the windows of a step to the series that rules read, and to the records that leave."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from tracker_diag.metrics.registry import PREFIX, STATS
from tracker_diag.metrics.series import ALL, CONTEXT, OTHER, PAIRS, Pair
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.rules.engine import STATE_VALUES, Engine
from tracker_diag.rules.model import Rule
from tracker_diag.stats.histogram import rebin
from tracker_diag.stats.tails import MIN_SEQUENCES, MIN_TOKENS, Estimate, SliceWindow, slice_statistics, tokens_needed
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.windows import PairWindow

_OF_A_SLICE = ("p50", "p95", "p99", "ess", "ess_sequence", "pareto_k", "count")
LOGGED: dict[str, tuple[str, ...]] = {
    "text_only": _OF_A_SLICE,
    "post_tool": _OF_A_SLICE,
    ALL: ("p95", "k3"),
}
"""Statistics that go to the tracker, by slice: at most 60 keys a step with all three pairs."""

HISTOGRAM_EDGES = np.array([0.0, *(2.0**e * m for e in range(-14, 8) for m in (1, 1.5)), 256.0])
"""(46,) nats: half octaves of |log-ratio|, the same at every step so that steps can be compared."""


def wanted(rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """By slice the statistics that are logged, or that one of `rules` reads."""
    stats: dict[str, set[str]] = {name: set(logged) for name, logged in LOGGED.items()}
    for rule in rules:
        for ref in rule.series():
            if ref.stat:
                for name in (ref.slice,) if ref.slice else rule.slices:
                    stats.setdefault(name, set()).add(ref.stat)
    return {name: tuple(metric.name for metric in STATS if metric.name in chosen) for name, chosen in stats.items()}


def statistics(
    windows: Mapping[Pair, PairWindow], pairs: Iterable[Pair], names: Names, stats: Mapping[str, Collection[str]]
) -> dict[str, Estimate]:
    """`stats` of each slice that they name, of those of `pairs` that have a signal, by name of the series."""
    found: dict[str, Estimate] = {}
    for pair in pairs:
        if windows[pair].signal:
            for name, of in windows[pair].slices(names, stats).items():
                chosen = slice_statistics(of, stats.get(name, ()))
                found |= {f"{pair}/{name}/{stat}": value for stat, value in chosen.items()}
    return found


def absent(windows: Mapping[Pair, PairWindow]) -> dict[str, str]:
    """Why there would be no value of a pair or a series, for the case that there is none."""
    reasons: dict[str, str] = {}
    for pair, (new, old) in PAIRS.items():
        if pair not in windows:
            reasons[pair] = f"no {new} and {old} observed"
        elif not windows[pair].signal:
            reasons[pair] = "no signal: the ratio is 1 but for float noise, on-policy by construction"
        else:
            for name, of in windows[pair].context.items():
                n, key = of.n, f"{pair}/{name}"
                reasons[f"{key}/ess_sequence"] = f"fewer than {MIN_SEQUENCES} sequences in the window"
                reasons[f"{key}/pareto_k"] = "the weights do not spread enough for a tail to be fitted"
                reasons[f"{key}/ess_applied"] = reasons[f"{key}/modified_fraction"] = (
                    f"fewer than {MIN_TOKENS} finite applied_weights observed"
                )
                for stat in ("tail_stretch", "qq_slope", "wasserstein", "ks"):
                    reasons[f"{key}/{stat}"] = "no reference period yet, or too few tokens in it or in the window"
                for stat in (metric.name for metric in STATS):
                    if n < tokens_needed(stat):
                        reasons[f"{key}/{stat}"] = f"{n} tokens in the window, {tokens_needed(stat)} needed"
    return reasons


def finite(found: Mapping[str, Estimate]) -> tuple[dict[str, Scalar], list[str]]:
    """Those of `found` that are numbers, as the series that rules read, and the names of the others."""
    series = {key: Scalar(key, one.value, one.n, one.error) for key, one in found.items() if math.isfinite(one.value)}
    return series, [key for key in found if key not in series]  # a weight beyond float64


def scalars(found: Mapping[str, Estimate]) -> Iterator[Scalar]:
    """Those of `found` that are logged."""
    for key, estimate in found.items():
        _, name, stat = key.split("/")
        if stat in LOGGED.get(name, ()) and math.isfinite(estimate.value):
            yield Scalar(PREFIX + key, estimate.value, estimate.n)


def states(engine: Engine, health: Mapping[str, int]) -> Iterator[Scalar]:
    """The state of each rule that ever was more than healthy, and what has gone wrong in the diagnostics themselves."""
    noteworthy = engine.noteworthy
    for rule, state in engine.states().items():
        if rule in noteworthy:
            yield Scalar(f"{PREFIX}rule/{rule}", STATE_VALUES[state])
    for kind, count in health.items():
        if count:
            yield Scalar(f"{PREFIX}health/{kind}", count)


def histograms(windows: Mapping[Pair, PairWindow], pairs: Iterable[Pair]) -> Iterator[Record]:
    """|log-ratio| of each slice of `context`, now and in the reference period."""
    for pair in pairs:
        window = windows[pair]
        if window.signal:
            for name in CONTEXT:
                of = window.context[name]
                now = rebin(of.magnitudes, HISTOGRAM_EDGES)
                then = np.zeros_like(now) if of.then is None else rebin(of.then, HISTOGRAM_EDGES)
                yield Histogram(f"{PREFIX}{pair}/{name}/hist", now, HISTOGRAM_EDGES, then)


def slices_table(windows: Mapping[Pair, PairWindow], names: Names) -> Table:
    """Every pair and every slice of every dimension: its statistics now, and its p95 in the reference period."""
    columns = ("pair", "slice", *(metric.name for metric in STATS), "p95 baseline", "note")
    rows: list[tuple[str | float | int | None, ...]] = []
    reasons = absent(windows)
    for pair, window in windows.items():
        for name, of in window.slices(names).items():
            now = slice_statistics(of) if window.signal else {"count": Estimate(of.n, of.n)}
            cells: list[float | int | None] = [
                None
                if metric.name not in now or not math.isfinite(now[metric.name].value)
                else of.n
                if metric.name == "count"
                else now[metric.name].value
                for metric in STATS
            ]
            then = _p95(of)
            rows.append((pair, name, *cells, then, _note(name, names) or reasons.get(pair, "")))
    return Table(PREFIX + "slices", columns, tuple(rows))


def _p95(of: SliceWindow) -> float | None:
    """p95 of the reference period."""
    if of.then is None:
        return None
    then = SliceWindow(np.stack([of.then, np.zeros_like(of.then)])[None])
    p95 = slice_statistics(then, ("p95",)).get("p95")
    return p95.value if p95 else None


def _note(name: str, names: Names) -> str:
    dimension, _, value = name.partition(":")
    folded = names.folded.get(dimension) if value == OTHER else None  # type: ignore[call-overload]
    return f"{len(folded)} names without a slice of their own, among them {', '.join(folded[:3])}" if folded else ""
