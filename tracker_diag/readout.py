"""Readout: from the windows of a step to the series that rules read, and to the records that leave."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from tracker_diag.metrics.reasons import Reason, Why, no_series, not_observed, reason
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT, OTHER, Pair, SeriesKey, StatKey
from tracker_diag.metrics.statistics import STATISTICS, slice_statistics, statistic
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.report.first_look import Seen
from tracker_diag.report.tables import BASELINE
from tracker_diag.rules.engine import STATE_VALUES, Engine
from tracker_diag.rules.model import Rule
from tracker_diag.stats.histogram import rebin
from tracker_diag.stats.tails import Estimate, SliceWindow
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.windows import Observation, PairWindow

HISTOGRAM_EDGES = np.array([0.0, *(2.0**e * m for e in range(-14, 8) for m in (1, 1.5)), 256.0])
"""(46,) nats: half octaves of |log-ratio|, the same at every step so that steps can be compared."""


def wanted(rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """By slice the statistics that are logged, or that one of `rules` reads."""
    stats: dict[str, set[str]] = {}
    for one in STATISTICS.values():
        for name in one.logged:
            stats.setdefault(name, set()).add(one.name)
    for rule in rules:
        for ref in rule.series():
            if ref.stat:
                for name in (ref.slice,) if ref.slice else rule.slices:
                    stats.setdefault(name, set()).add(ref.stat)
    return {name: tuple(stat for stat in STATISTICS if stat in chosen) for name, chosen in stats.items()}


def statistics(
    windows: Mapping[Pair, PairWindow], pairs: Iterable[Pair], names: Names, stats: Mapping[str, Collection[str]]
) -> dict[StatKey, Estimate]:
    """`stats` of each slice that they name, of those of `pairs` that have a signal."""
    found: dict[StatKey, Estimate] = {}
    for pair in pairs:
        if windows[pair].signal:
            for name, of in windows[pair].slices(names, stats).items():
                chosen = slice_statistics(of, stats.get(name, ()))
                found |= {StatKey(pair, name, stat): value for stat, value in chosen.items()}
    return found


def absent(windows: Mapping[Pair, PairWindow]) -> dict[Pair, Reason]:
    """The pairs that have no values, and why."""
    on_policy = {pair: reason(Why.ON_POLICY) for pair, window in windows.items() if not window.signal}
    return not_observed(windows) | on_policy


def seen(pair: Pair, window: PairWindow | None, lacks: Reason | None) -> Seen:
    """What is there of one pair."""
    tokens = {name: of.n for name, of in window.context.items()} if window else {}
    return Seen(pair, tokens.get("text_only", 0), tokens.get("post_tool", 0), lacks)


def lacking(windows: Mapping[Pair, PairWindow]) -> Callable[[StatKey], Reason]:
    """Tells why a statistic of this step has no value, for one that has none."""
    context = {pair: window.context for pair, window in windows.items()}

    def why(key: StatKey) -> Reason:
        of = context.get(key.pair, {}).get(key.slice)
        return no_series(key) if of is None else statistic(key.stat).lacking(of)

    return why


def finite(found: Mapping[StatKey, Estimate]) -> tuple[dict[SeriesKey, Scalar], list[str]]:
    """Those of `found` that are numbers, as the series that rules read, and the names of the others."""
    series: dict[SeriesKey, Scalar] = {
        key: Scalar(key, one.value, one.n, one.error) for key, one in found.items() if math.isfinite(one.value)
    }
    return series, [key for key in found if key not in series]  # a weight beyond float64


def nonfinite(observed: Mapping[Pair, Observation]) -> Iterator[StatKey]:
    """The slices that NaN or infinity were observed in."""
    for pair, one in observed.items():
        for row in np.flatnonzero(one.nonfinite):
            yield StatKey(pair, CONTEXT[row], "nonfinite")


def scalars(found: Mapping[StatKey, Estimate]) -> Iterator[Scalar]:
    """Those of `found` that are logged."""
    for key, estimate in found.items():
        if key.slice in statistic(key.stat).logged and math.isfinite(estimate.value):
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
                yield Histogram(f"{PREFIX}{pair}/{name}/hist", pair, name, now, HISTOGRAM_EDGES, then)


def slices_table(windows: Mapping[Pair, PairWindow], names: Names) -> Table:
    """Every pair and every slice of every dimension: its statistics now, and its p95 in the reference period."""
    stats = [column for stat in STATISTICS for column in ((stat, BASELINE) if stat == "p95" else (stat,))]
    columns = ("pair", "slice", *stats, "note")
    rows: list[tuple[str | float | int | None, ...]] = []
    for pair, window in windows.items():
        for name, of in window.slices(names).items():
            now = slice_statistics(of, STATISTICS if window.signal else ())
            cells = {stat: _finite(estimate) for stat, estimate in now.items()} | {"count": of.n, BASELINE: _p95(of)}
            note = _note(name, names) or ("" if window.signal else str(reason(Why.ON_POLICY)))
            rows.append((pair, name, *(cells.get(column) for column in stats), note))
    return Table(PREFIX + "slices", columns, tuple(rows))


def _finite(estimate: Estimate | None) -> float | int | None:
    return estimate.value if estimate and math.isfinite(estimate.value) else None


def _p95(of: SliceWindow) -> float | None:
    """p95 of the reference period."""
    if of.then is None:
        return None
    then = SliceWindow(np.stack([of.then, np.zeros_like(of.then)])[None])
    return _finite(statistic("p95").of(then))


def _note(name: str, names: Names) -> str:
    dimension, _, value = name.partition(":")
    folded = names.folded.get(dimension) if value == OTHER else None  # type: ignore[call-overload]
    return f"{len(folded)} names without a slice of their own, among them {', '.join(folded[:3])}" if folded else ""
