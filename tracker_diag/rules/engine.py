"""The engine: evaluates each rule on each of its pairs and slices, once a step, and keeps its state."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics import registry
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import ANY, NAMED_ROWS, PAIRS, Pair, SeriesKey, StatKey, any_of
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Rule
from tracker_diag.rules.nodes import SliceName
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, SeriesTable
from tracker_diag.rules.signals.base import Signal, has_come
from tracker_diag.rules.signals.collapse import Collapse
from tracker_diag.rules.signals.growth import Growth
from tracker_diag.rules.watch import RuleState, Watch

MOST_CELLS = 4 * NAMED_ROWS
"""The most slices from run time that rules look at, since a trainer can name any number of tools."""

STATE_VALUES: dict[RuleState, int] = {"unknown": -1, "healthy": 0, "pending": 1, "firing": 2}


class Engine:
    """Evaluates `rules` step by step. Cost and memory do not depend on the number of steps seen."""

    def __init__(
        self,
        rules: Sequence[Rule],
        settings: GrowthSettings | None = None,
        algorithm: Algorithm | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.rules = tuple(
            rule for rule in rules if not rule.algorithms or algorithm is None or algorithm in rule.algorithms
        )
        self.settings = settings or GrowthSettings()
        self._series = SeriesTable(self.settings)
        self._signals: dict[str, Signal] = {}
        """Signals by their data and place. Rules share them, and signals share their series."""
        self._watches: list[Watch] = []
        self._asked: list[tuple[Signal, list[Watch]]] = []
        """The signals that have data, and the watches that they decide; `_seeing` are the watches that have data."""
        self._seeing: list[Watch] = []
        self._given: set[Pair] = set()
        """Pairs that were observed and gave a signal."""
        self._noted: set[str] = set()
        self._step: int | None = None
        """The last step."""
        self._since_last = 1
        """Steps of the training between the last two."""
        self._algorithm: Algorithm | None = algorithm
        self.earlier = earlier or Earlier()
        self._cells: set[str] = set()
        """Slices first seen at run time, which rules name by `tool:*` and the like."""
        for rule in self.rules:
            for slice in rule.slices:
                if slice not in ANY:
                    self._watch(rule, slice)
        self._ask()

    def _watch(self, rule: Rule, slice: str) -> None:
        """Evaluate `rule` on `slice` of each of its pairs from now on."""
        for pair in rule.pairs or (None,):
            at = Place(pair, slice, self.settings, self._series, self._algorithm, self.earlier)
            signals: dict[str, Signal] = {}
            for name, signal in rule.signals.items():
                key = _place(signal, pair, slice) + rule.signal_data[name]
                if key not in self._signals:
                    self._signals[key] = signal.start(at)
                signals[name] = self._signals[key]
            self._watches.append(Watch(rule, at, signals))

    def _meet(self, slices: Iterable[str]) -> bool:
        """Start the rules that look at such slices on each new one of `slices`. Return whether any is new."""
        before = len(self._cells)
        for slice in slices:
            if slice not in self._cells and (name := any_of(slice)) and len(self._cells) < MOST_CELLS:
                self._cells.add(slice)
                for rule in self.rules:
                    if name in rule.slices:
                        self._watch(rule, slice)
        return len(self._cells) > before

    def _ask(self) -> None:
        """Find the signals and watches that have data. The others cost nothing."""
        self._seeing = [watch for watch in self._watches if watch.can_see]
        readers: dict[int, list[Watch]] = {}
        for watch in self._seeing:
            watch.moved = True
            for signal in watch.deciding:
                readers.setdefault(id(signal), []).append(watch)
        self._asked = [(signal, readers.get(id(signal), [])) for signal in self._signals.values() if has_come(signal)]

    def evaluate(self, observed: Observed) -> list[Finding]:
        """Evaluate one step. Returns the findings whose state changed at it, with inhibitions marked.

        You may call it again with the same step and more of its data. It then evaluates only what is new, so that no
        series and no rule counts twice.
        """
        again = observed.step == self._step
        if not again and self._step is not None:
            self._since_last = max(1, observed.step - self._step)
        self._step = observed.step
        observed = replace(observed, fired={**observed.fired, **self._fired()}, since_last=self._since_last)
        met = self._meet(dict.fromkeys(filter(None, map(_cell, observed.series))))
        self._given.update(pair for pair in PAIRS if pair not in observed.absent)
        if self._series.update(observed, again=again) or met:
            self._ask()
        for signal, watches in self._asked:
            if not again or not signal.looks_at or any(series.new for series in signal.looks_at):
                before = signal.holds
                signal.update(observed)
                if signal.holds is not before:
                    for watch in watches:
                        watch.moved = True
        changed = {watch for watch in self._seeing if watch.step(observed)}
        if changed:
            changed.update(w for w, new in zip(self._watches, self._inhibit(), strict=True) if new)
        return [w.finding for w in self._watches if w in changed and w.finding]

    def with_algorithm(self, algorithm: Algorithm | None) -> "Engine":
        """The engine of a run whose keys show its `algorithm` only now: this one, or one that continues from its state.

        A rule of other algorithms that has fired stays, so that its alert can end.
        """
        if algorithm is None or self._algorithm is not None:
            return self
        fired = self._fired()
        rules = [rule.model_copy(update={"algorithms": ()}) if rule.id in fired else rule for rule in self.rules]
        engine = Engine(rules, self.settings, algorithm, self.earlier)
        engine.load_state_dict(self.state_dict(), self._series.observed)
        return engine

    def follows_tails(self, pairs: Collection[Pair]) -> bool:
        """Whether there is a baseline for the growth of a tail of any of `pairs`."""
        growths = ((s, s.looks_at[0].keys[0]) for s in self._signals.values() if isinstance(s, Growth))
        return any(growth.ready and isinstance(key, StatKey) and key.pair in pairs for growth, key in growths)

    def needed(self, pairs: Iterable[Pair]) -> int:
        """Steps with a signal that a judgement of growth needs in any of `pairs`."""
        short = self.settings.short
        return short.block if self.earlier.pairs.intersection(pairs) else short.burn_in + short.baseline

    def _inhibit(self) -> list[bool]:
        """Mark what other rules explain. Returns for each watch whether its mark has changed."""
        firing = [watch.finding for watch in self._watches if watch.finding and watch.finding.state == "firing"]
        return [watch.inhibit(firing) for watch in self._watches]

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, by onset."""
        findings = [f for watch in self._watches for f in (*watch.past, watch.finding) if f]
        return sorted(findings, key=lambda finding: (finding.onset, finding.rule.id))

    @property
    def open(self) -> list[Finding]:
        """The findings that are pending or firing."""
        return [w.finding for w in self._watches if w.finding and w.state in ("pending", "firing")]

    def states(self) -> dict[str, RuleState]:
        """The state of each rule: the worst of its pairs and slices."""
        worst: dict[str, RuleState] = {rule.id: "unknown" for rule in self.rules}
        for watch in self._watches:
            if STATE_VALUES[watch.state] > STATE_VALUES[worst[watch.rule.id]]:
                worst[watch.rule.id] = watch.state
        return worst

    @property
    def noteworthy(self) -> set[str]:
        """Rules that are or were pending or firing. Their state is logged as a series."""
        self._noted |= {watch.rule.id for watch in self._watches if watch.state in ("pending", "firing")}
        return self._noted

    @property
    def best(self) -> tuple[Reading, ...]:
        """For each outcome with enough values: its last level, and as baseline its best level with the step.

        If a reading does not hold and has an onset, the outcome is lower since then. It has too few rows to be a fall.
        """
        collapses = [signal for signal in self._signals.values() if isinstance(signal, Collapse) and signal.of_outcome]
        readings = [collapse.reading() for collapse in collapses if collapse.holds is not None]
        outcomes = tuple({reading.series: reading for reading in reversed(readings)}.values())[::-1]
        # If there is a reward or an evaluation, the loss says little.
        return tuple(reading for reading in outcomes if reading.series != "loss") or outcomes

    def blind(self) -> dict[str, tuple[Reason, ...]]:
        """Rules that lacked an input, with the reasons.

        If a pair was never observed, the rule is blind only if it has no other pair.
        """
        watched = {watch.rule.id for watch in self._watches}
        reasons: dict[str, list[Reason]] = {
            rule.id: [reason(Why.NO_CELLS)] for rule in self.rules if rule.id not in watched
        }
        seeing = {watch.rule.id for watch in self._watches if watch.sees}
        for watch in self._watches:
            given = watch.of_all or watch.pair in self._given  # not each tool needs each metric
            if not watch.sees and (given or watch.rule.id not in seeing):
                of_rule = reasons.setdefault(watch.rule.id, [])
                if watch.blindness not in of_rule:
                    of_rule.append(watch.blindness)
        return {rule: tuple(of_rule) for rule, of_rule in reasons.items()}

    def rebaseline(self, step: int) -> list[Finding]:
        """Take the present as normal. Every baseline restarts, and findings that use one end at `step`."""
        for signal in self._signals.values():
            signal.rebaseline()
        ended = [watch.rebaseline(step) for watch in self._watches]
        explained = self._inhibit()
        return [w.finding for w, *new in zip(self._watches, ended, explained, strict=True) if any(new) and w.finding]

    def state_dict(self) -> dict[str, Any]:
        """The state for `load_state_dict`, in JSON values."""
        return {
            "step": self._step,
            "since_last": self._since_last,
            "series": self._series.state_dict(),
            "signals": {key: signal.state_dict() for key, signal in self._signals.items()},
            "noted": sorted(self._noted),
            "given": sorted(self._given),
            "cells": sorted(self._cells),
            "watches": {watch.key: watch.state_dict() for watch in self._watches},
        }

    def load_state_dict(self, state: Mapping[str, Any], underway: Observed | None = None) -> None:
        """Continue from `state`. New rules start without a state; the state of removed rules is dropped.

        Args:
            underway: the last step, if more of its data may follow.
        """
        self._noted, self._given = set(state["noted"]), set(state["given"])
        self._step, self._since_last = state["step"], state["since_last"]
        self._meet(state["cells"])
        if underway:
            self._series.update(underway, again=False)
        self._series.load_state_dict(state["series"])
        for key, signal in self._signals.items():
            if key in state["signals"]:
                signal.load_state_dict(state["signals"][key])
        for watch in self._watches:
            if watch.key in state["watches"]:
                watch.load_state_dict(state["watches"][watch.key])
        self._ask()

    def _fired(self) -> dict[str, int]:
        """The step at which each rule last fired."""
        steps: dict[str, int] = {}
        for watch in self._watches:
            if (finding := watch.finding) is not None and (fired := finding.fired) is not None:
                steps[watch.rule.id] = max(steps.get(watch.rule.id, fired), fired)
        return steps


def _place(signal: Signal, pair: Pair | None, slice: SliceName) -> str:
    """The pair and slice in the key of a started signal, if it depends on them."""
    return f"{pair}/{slice}: " if any(ref.stat or ref.of_cell(slice) for ref in signal.refs()) else ""


@lru_cache(4096, typed=True)  # the same keys come at every step
def _cell(key: SeriesKey) -> str | None:
    """The slice of a series, if it can be one from run time."""
    if isinstance(key, StatKey):
        return key.slice
    name, _, member = key.partition(":")
    per = registry.training(name).per if member else ""
    return f"{per}:{member}" if f"{per}:*" in ANY else None
