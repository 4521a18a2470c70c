"""Readout: from the windows of a step to the series that rules read, and to the records that leave."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from rich.console import RenderableType

from tracker_diag.metrics.reasons import SAY_TURN, Reason, Why, no_series, not_observed, reason
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import (
    ALL,
    CELLS,
    CONTEXT,
    FIXED,
    OTHER,
    PAIRS,
    UNKNOWN,
    Pair,
    SeriesKey,
    StatKey,
    any_of,
)
from tracker_diag.metrics.statistics import OF_WINDOW, STATISTICS, slice_statistics, statistic
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.report.first_look import first_look
from tracker_diag.report.tables import BASELINE
from tracker_diag.rules.earlier import JUDGED, Earlier
from tracker_diag.rules.engine import STATE_VALUES, Engine
from tracker_diag.rules.model import Rule
from tracker_diag.rules.signals.growth import Growth
from tracker_diag.rules.signals.often import Often
from tracker_diag.rules.signals.spike import Spike
from tracker_diag.stats.histogram import HIGHEST, first_bins, rebin
from tracker_diag.stats.tails import Estimate
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.step import Progress
from tracker_diag.tensors.suspicions import UNHEARD, Reach
from tracker_diag.tensors.windows import PairWindow

HISTOGRAM_EDGES = np.array([0.0, *(2.0**e * m for e in range(-14, 8) for m in (1, 1.5)), 256.0])
"""(46,) nats: half octaves of |log-ratio|, the same at every step so that steps can be compared."""
_FIRST_BINS = first_bins(HISTOGRAM_EDGES)


Wanted: TypeAlias = Mapping[Pair, Mapping[str, Mapping[str, bool]]]
"""By pair and slice the statistics to be taken, and of each whether its error is asked for."""


def wanted(rules: Iterable[Rule]) -> Wanted:
    """What is logged, or what one of `rules` reads; growth and spikes are judged by their errors, nothing else is."""
    of_pair: dict[Pair, dict[str, dict[str, bool]]] = {
        pair: {
            name: {it.name: False for it in STATISTICS.values() if it.is_logged(pair, name)} for name in (*CONTEXT, ALL)
        }
        for pair in PAIRS
    }
    for rule in rules:
        for signal, ref in rule.reads():
            reader = signal.signal if isinstance(signal, Often) else signal
            if ref.stat:
                for pair in (ref.pair,) if ref.pair else rule.pairs:
                    for name in (ref.slice,) if ref.slice else rule.slices:
                        stats = of_pair[pair].setdefault(name, {})
                        stats[ref.stat] = stats.get(ref.stat, False) or isinstance(reader, Growth | Spike)
    return of_pair


def statistics(
    windows: Mapping[Pair, PairWindow], pairs: Iterable[Pair], names: Names, stats: Wanted
) -> dict[StatKey, Estimate]:
    """`stats` of each slice that they name, of those of `pairs` that have a signal.

    A weight beyond float64 is left out; `largest` says how large it is.
    """
    estimates: dict[StatKey, Estimate] = {}
    # Names that were met at run time; what they have no room for is none of them.
    cells = [name for cell in CELLS for name in names.slices(cell) if name != f"{cell}:{OTHER}"]
    for pair in pairs:
        window, of_pair = windows[pair], stats[pair]
        if not window.signal:
            continue
        asked = {name: of_pair.get(any_of(name) or "", {}) for name in cells} | dict(of_pair)
        for of_step, slices in ((False, window.slices(names, asked)), (True, window.fresh(names))):
            for name, slice_window in slices.items():
                for stat, with_error in asked.get(name, {}).items():
                    known = STATISTICS[stat]
                    estimate = known.estimate(slice_window, with_error=with_error) if known.of_step is of_step else None
                    if estimate is not None and math.isfinite(estimate.value):
                        estimates[_key(pair, name, stat)] = estimate
    return estimates


_key = lru_cache(4096)(StatKey)
"""Cached: the same keys are built at every step."""


def absent(windows: Mapping[Pair, PairWindow], reach: Reach) -> dict[Pair, Reason]:
    """The pairs that have no values, and why."""
    on_policy: dict[Pair, Reason] = {
        pair: reason(Why.ON_POLICY) for pair, window in windows.items() if not window.signal
    }
    never: dict[Pair, Reason] = {
        pair: reason(Why.NOT_SEEN) if how is None else reason(Why.NOT_SET, how=how)
        for pair, how in reach.without.items()
        if pair not in windows
    }
    return not_observed(windows) | never | on_policy


_LEFT_OUT = {
    "rejected_batches": "{} batches were rejected; the first warning says why",
    "rejected_samples": "{} calls of samples were rejected; the first warning says why",
    "late_steps": "{} calls went back to an earlier step, and their metrics were left out",
    "internal_errors": "{} calls could not be judged or taken in; the first warning says why",
    "interrupted_steps": "{} steps were interrupted by a signal, and are left out",
}
SAY_OBSERVE = "call run.diag.observe(...) in each step"
LATE = "expect(rows={}): the run has begun, so this changes nothing; say it before the first step"
SAY_SHORT = "if it is meant to be so short, say so before its first step: run.diag.expect(rows={})"


def caveats(
    windows: Mapping[Pair, PairWindow], reach: Reach, health: Mapping[str, int], progress: Progress, engine: Engine
) -> tuple[str, ...]:
    """What keeps "nothing was found" from meaning that all was well, the gravest first."""
    lines = [text.format(health[kind]) for kind, text in _LEFT_OUT.items() if health.get(kind)]
    last, with_tensors = progress.last, progress.last_with_tensors
    if with_tensors is None:
        do = f": {SAY_OBSERVE}" if set(PAIRS) - {*reach.without} else ", as this trainer has none with these settings"
        lines.append(f"no tensors were observed, so no rule has seen a tail{do}")
    have, needed = max((window.with_signal for window in windows.values()), default=0), engine.needed(windows)
    without = 0 if last is None or with_tensors is None else last - with_tensors
    if have and without > max(UNHEARD, 2 * progress.widest):
        lines.append(f"no tensors came after step {with_tensors}")
    if windows and not have:
        lines.append("the ratio was 1 throughout, on-policy by construction, so no rule has seen a tail")
    elif windows and have < needed and not engine.follows_tails(windows):
        short = f"; {SAY_SHORT.format(progress.steps)}" if engine.settings.expected_steps is None else ""
        lines.append(f"it was too early to judge how tails grow: {have} of {needed} steps{short}")
    tokens = [_tokens(window) for window in windows.values()]
    unknown = max((counts[UNKNOWN] / counts[ALL] for counts in tokens if counts[UNKNOWN]), default=0.0)
    if unknown:
        lines.append(
            f"of {unknown:.0%} of the tokens nobody has said whether a tool result comes before them: {SAY_TURN}"
        )
    if reach.tools and windows and not unknown and not any(counts["post_tool"] for counts in tokens):
        lines.append("no token came after a tool in the last steps; if there are tools, look at model_mask")
    return tuple(lines)


def tails(windows: Mapping[Pair, PairWindow]) -> tuple[str, ...]:
    """In a line for each pair with a signal: p95 |log-ratio| of both slices now."""
    lines: list[str] = []
    for pair, window in windows.items():
        parts: list[str] = []
        for name, words in (("post_tool", "after a tool result"), ("text_only", "before any")) if window.signal else ():
            now = _finite(statistic("p95").estimate(window.context[name]))
            if now is not None:
                least = "at least " if now >= 2.0**HIGHEST else ""  # the sketch counts no further
                parts.append(f"{words} {least}{now:.3g}")
        if parts:
            lines.append(f"{pair} p95 |log-ratio| of recent steps: {', '.join(parts)}")
    return tuple(lines)


def seen(
    step: int | None, windows: Mapping[Pair, PairWindow], reach: Reach, shown_by: str, engine: Engine, *, whole: bool
) -> RenderableType:
    """What is seen of the run, and what would open the eyes of more rules; `shown_by`, `whole` as in `first_look`."""
    tokens: dict[Pair, Counter[str]] = {pair: _tokens(windows.get(pair)) for pair in PAIRS}
    lacks = absent(windows, reach)
    names = {rule.id: rule.name for rule in engine.rules}
    return first_look(
        step, tokens, lacks, shown_by=shown_by, rules=names, blind=engine.blind(), tools=reach.tools,
        against=_against(engine.earlier, windows, whole=whole), whole=whole,
    )  # fmt: skip


def _against(earlier: Earlier, windows: Collection[Pair], *, whole: bool) -> str:
    """Which pairs are held against which earlier runs; empty without any, and in short where they lack no pair."""
    n, has, judged = len(earlier.sources), sorted(earlier.pairs), [pair for pair in windows if pair in earlier.pairs]
    lacks = [pair for pair in windows if pair in JUDGED and pair not in earlier.pairs]
    if not n or not (whole or lacks or (windows and not judged)):
        return ""
    judges = f"{' and '.join(judged)} from the first step on" if judged else "nothing"
    if lacks or not judged:
        judges += f", as they have {' and '.join(has)} alone"
    return f"{n} earlier run{'s' * (n > 1)} to judge {judges}: {', '.join(earlier.sources)}"


def _tokens(window: PairWindow | None) -> Counter[str]:
    """Tokens of each slice of `context` in the window, and of what is unknown."""
    slices = {} if window is None else window.context | ({UNKNOWN: window.unknown} if window.unknown else {})
    return Counter({name: of_slice.n for name, of_slice in slices.items()})


def lacking(windows: Mapping[Pair, PairWindow]) -> Callable[[StatKey], Reason]:
    """Tells why a statistic of this step has no value, for one that has none."""
    context = {pair: window.context for pair, window in windows.items()}

    def why(key: StatKey) -> Reason:
        window = context.get(key.pair, {}).get(key.slice)
        return no_series(key) if window is None else statistic(key.stat).lacking(window)

    return why


def series(statistics: Mapping[StatKey, Estimate], time_ratio: float | None) -> dict[SeriesKey, Scalar]:
    """The series that rules read of tensors; `time_ratio` is that of `Intake`."""
    ratio = {} if time_ratio is None else {"rank_time_ratio": Scalar("rank_time_ratio", time_ratio)}
    return {key: Scalar(key, *estimate) for key, estimate in statistics.items()} | ratio


def nonfinite(own: Mapping[str, float], observed: Mapping[Pair, Observation], health: Counter[str]) -> list[str]:
    """The slices in which NaN or infinity was observed. Such tokens and metrics are counted in `health`."""
    health["nonfinite_metrics"] += sum(not math.isfinite(value) for value in own.values())
    counts = {pair: observation.nonfinite.tolist() for pair, observation in observed.items()}
    health["nonfinite_tokens"] += sum(map(sum, counts.values()))
    return [
        f"log-ratio of {pair} on {name}"
        for pair, of_pair in counts.items()
        for name, count in zip(FIXED["context"], of_pair, strict=True)
        if count
    ]


def scalars(estimates: Mapping[StatKey, Estimate]) -> Iterator[Scalar]:
    """Those of `estimates` that are logged."""
    for key, estimate in estimates.items():
        if statistic(key.stat).is_logged(key.pair, key.slice):
            yield Scalar(PREFIX + key, estimate.value, estimate.n)


def states(engine: Engine, health: Mapping[str, int], time_ratio: float | None) -> Iterator[Scalar]:
    """The state of each rule that ever was more than healthy, and what has gone wrong in the diagnostics themselves."""
    noteworthy = engine.noteworthy
    for rule, state in engine.states().items() if noteworthy else ():
        if rule in noteworthy:
            yield Scalar(f"{PREFIX}rule/{rule}", STATE_VALUES[state])
    for kind, count in health.items():
        if count:
            yield Scalar(f"{PREFIX}health/{kind}", count)
    if time_ratio is not None:
        yield Scalar(f"{PREFIX}health/rank_time_ratio", time_ratio)


def histograms(windows: Mapping[Pair, PairWindow], pairs: Iterable[Pair]) -> Iterator[Record]:
    """|log-ratio| of each slice of `context`, now and in the reference period."""
    for pair in pairs:
        window = windows[pair]
        if window.signal:
            for name in CONTEXT:
                of_slice = window.context[name]
                now, then = (rebin(counts, _FIRST_BINS) for counts in (of_slice.magnitudes, of_slice.then))
                yield Histogram(f"{PREFIX}{pair}/{name}/hist", pair, name, now, HISTOGRAM_EDGES, then)


def slices_table(windows: Mapping[Pair, PairWindow], names: Names) -> Table:
    """Every pair and every slice of every dimension: its statistics now, and its p95 in the reference period."""
    stats = [column for stat in OF_WINDOW for column in ((stat, BASELINE) if stat == "p95" else (stat,))]
    columns = ("pair", "slice", *stats, "note")
    rows: list[tuple[str | float | int | None, ...]] = []
    for pair, window in windows.items():
        for name, slice_window in window.slices(names).items():
            now = slice_statistics(slice_window, OF_WINDOW if window.signal else ())
            then = statistic("p95").estimate(slice_window.other_cells)
            cells = {stat: _finite(estimate) for stat, estimate in {**now, BASELINE: then}.items()}
            cells["count"] = slice_window.n
            note = _note(name, names)
            if not note and not window.signal:
                note = str(reason(Why.ON_POLICY))
            if not note and slice_window.steps is not None:
                note = f"few tokens a step: of the last {slice_window.steps} steps"
            rows.append((pair, name, *(cells.get(column) for column in stats), note))
    return Table(PREFIX + "slices", columns, tuple(rows))


def _finite(estimate: Estimate | None) -> float | int | None:
    return estimate.value if estimate and math.isfinite(estimate.value) else None


def _note(name: str, names: Names) -> str:
    dimension, _, value = name.partition(":")
    folded = names.folded.get(dimension) if value == OTHER else None  # type: ignore[call-overload]
    return f"{len(folded)} names without a slice of their own, among them {', '.join(folded[:3])}" if folded else ""
