"""One rule on one pair and slice: when it is pending, fires and resolves.

    unknown ⇄ healthy → pending → firing → resolved

A rule without its inputs is unknown, never healthy. This neither starts nor ends a finding. A finding fires until the
levels that are its evidence are back, or until an `unless` holds.
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

from tracker_diag.detect.saved import Saved
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.series import Pair, any_of
from tracker_diag.rules.conditions import Judgement, signals_of
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.level import OffLevel
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading, different
from tracker_diag.rules.series import Place, horizon
from tracker_diag.rules.signals.base import Signal, has_come
from tracker_diag.rules.signals.threshold import Threshold

RuleState: TypeAlias = Literal["unknown", "healthy", "pending", "firing"]

PAST = 1000
"""The most findings that are kept for one rule, pair and slice: the first half of them, and the last."""

FEWEST_MISSED = 3
"""A rule may always miss this many steps in a row without being blind."""

MOST_VERDICTS = 64
"""Combinations of inputs whose verdict a rule keeps."""

DIP = 3
"""If the condition does not hold at a step, the count towards `for_steps` falls by this. So single dips only delay."""


class Watch(Saved):
    """One rule on one pair and slice."""

    kept: ClassVar[tuple[str, ...]] = (
        "_held", "_failed", "_since", "_missed", "_gap", "_judged", "state", "_has_seen", "_was_false", "_is_anew",
        "_before",
    )  # fmt: skip

    def __init__(self, rule: Rule, at: Place, signals: Mapping[str, Signal]) -> None:
        self.rule = rule
        settings = at.settings
        self._for_steps = settings.lasting(horizon(rule.for_steps, settings, part=10, fewest=3))
        self._keep_firing_steps = horizon(rule.keep_firing_steps, settings, part=20, fewest=2)
        self.pair: Pair | None = at.pair
        self.slice = at.slice
        self.key = f"{rule.id}/{at.pair or ''}/{at.slice}"
        self._signals = signals
        self._required = signals_of(rule.when, rule.predicates)
        excuses = signals_of(rule.harmless, rule.predicates)
        self._shown = tuple(dict.fromkeys((*self._required, *excuses, *rule.support)))
        self.deciding = [signals[name] for name in self._required]
        self.moved = True
        """Whether any of them may have another answer than at the last step."""
        self._judgement = Judgement((*rule.when, *rule.harmless), rule.predicates, signals, at)
        self._asked = self._judgement.series(rule.when)
        """Series for which the rule asks whether they are logged."""
        self._basis: list[bool | None] = []
        """The inputs of the verdict."""
        self._verdicts: dict[tuple[bool | None, ...], bool | None] = {}
        """By inputs: where a series comes at every other step, they change at each, and come back."""
        self._verdict: bool | None = None
        self._silent = list(self._required)
        """Signals that were always unknown so far."""
        self._off: dict[str, OffLevel] = {}
        """For each signal behind the firing finding: the level that is off."""
        self._held, self._failed, self._since = 0, 0, 0
        self._was_false = False
        """Whether its condition did not hold at some step. Before the first verdict nobody knows."""
        self._before: int | None = None
        """The step before `_since`."""
        self._judged: tuple[int, bool | None] | None = None
        """The last step and its verdict."""
        self.state: RuleState = "unknown"
        self.finding: Finding | None = None
        self.past: list[Finding] = []
        self.of_all = at.pair is None and any_of(at.slice) is None
        """Whether it looks at metrics of the whole run, and not of one tool."""
        self._is_anew = False
        """Whether it is blind since its baseline was taken anew."""
        self._has_seen, self._missed, self._gap = False, 0, 0
        """Whether it ever had a verdict, the steps since the last one, and the most steps between two."""

    @property
    def can_see(self) -> bool:
        """Whether any of its series has had a value."""
        return any(map(has_come, self.deciding)) or any(series.has_come for series in self._asked)

    @property
    def sees(self) -> bool:
        """Whether the rule can decide. Its last verdict must not be older than twice its longest wait so far."""
        return self._has_seen and self._missed <= max(FEWEST_MISSED, 2 * self._gap)

    @property
    def blindness(self) -> Reason:
        """Why the rule is blind."""
        if self._is_anew:
            return reason(Why.NEW_BASELINE)
        when, judgement = self.rule.when, self._judgement
        why = judgement.absent(when) or judgement.unknown(when) or judgement.not_logged(when)
        return (why or reason(Why.UNCHECKED)).about(self.pair)

    def step(self, observed: Observed) -> bool:
        """Evaluate one step, after the signals. Returns whether a finding began, fired or was resolved."""
        for level in self._off.values():
            level.update()
        if self.moved:  # most steps change nothing
            basis = [signal.holds for signal in self.deciding]
            basis += [series.logged for series in self._asked]
            self.moved = None in basis[len(self.deciding) :]  # a series that is missing may count as not logged soon
            if basis != self._basis:
                self._basis = basis
                self._verdict = self._judge()
        if self._off and self._verdict is False and self._is_off():
            self._missed, self._failed = 0, 0
            return False
        judged, self._judged = self._judged, (observed.step, self._verdict)
        if judged == self._judged:
            return False  # later data of this step changes nothing here
        if self._verdict is None and self.state in ("pending", "firing") and self._judgement.absent(self.rule.when):
            return self._false(observed.step)  # what it found was never meant for this run
        if self._verdict is None:
            self._missed, self._is_anew = self._missed + 1, False
            if self.state == "healthy":
                self.state = "unknown"  # a pending or firing finding stays: without inputs nobody knows that it ended
            return False
        self._gap = max(self._gap, self._missed) if self._has_seen else 0
        self._has_seen, self._missed = True, 0
        return self._true(observed) if self._verdict else self._false(observed.step)

    def _judge(self) -> bool | None:
        silent = [name for name in self._silent if self._signals[name].holds is None]
        if silent != self._silent or len(self._verdicts) > MOST_VERDICTS:
            self._silent, self._verdicts = silent, {}
        inputs = tuple(self._basis)
        if inputs not in self._verdicts:
            # If a metric never came and the rule could not fire, it is not healthy.
            can_fire = self._judgement.can_be(self.rule.when, True, set(self._required) - set(silent))
            self._verdicts[inputs] = self._judgement.holds(self.rule.when) if can_fire else None
        return self._verdicts[inputs]

    def _is_off(self) -> bool:
        """Whether the finding still holds, if signals whose level is off count as holding."""
        off = [name for name, level in self._off.items() if not level.is_back]
        return bool(off) and self._judgement.holds(self.rule.when, lasting=off) is True

    def inhibit(self, firing: Sequence[Finding]) -> bool:
        """Mark the finding with the rule that explains it now. Returns whether that has changed.

        A resolved finding keeps its mark.
        """
        if self.finding is None or self.finding.state == "resolved":
            return False
        before = self.finding.inhibited_by
        by = next((f.rule.id for f in firing if f.covers(self.rule, self.pair, self.slice)), None)
        self.finding = self.finding.moved(inhibited_by=by)
        return by != before

    def rebaseline(self, step: int) -> bool:
        """Restart, if the rule uses a baseline. Returns whether this ended a firing finding."""
        self.moved = True
        if not any(signal.historical for signal in self.deciding):
            return False
        fired = self.finding is not None and self.state == "firing"
        if self._has_seen:
            self._has_seen, self._is_anew = False, True
        if self.finding and fired:
            self.finding = self.finding.moved(state="resolved", resolved=step)
        self._drop_pending()
        self._off, self._was_false = {}, False
        self._failed, self.state = 0, "unknown"
        return fired

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "off": {name: level.state_dict() for name, level in self._off.items()},
            "finding": self.finding.state_dict() if self.finding else None,
            "past": [finding.state_dict() for finding in self.past],
            "silent": list(self._silent),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        kept = {name: level for name, level in state["off"].items() if name in self._signals}
        self._off = {name: OffLevel.of_state(self._signals[name].looks_at[0], level) for name, level in kept.items()}
        self.moved, self._basis = True, []
        self._silent, self._verdicts = [name for name in self._required if name in state["silent"]], {}
        self.finding = Finding.of_state(self.rule, state["finding"]) if state["finding"] else None
        self.past = [Finding.of_state(self.rule, past) for past in state["past"]]

    def _true(self, observed: Observed) -> bool:
        self._failed, step = 0, observed.step
        if self._held == 0:
            self._since, self._before = step, step - observed.since_last
        self._held += 1
        if self.state == "firing":
            return self._harms(step)
        fires = self._held >= self._for_steps and not self._returns()
        if self.state == "pending" and not fires:
            return False
        self.state = "firing" if fires else "pending"
        readings = {name: replace(signal.reading(), signal=name) for name, signal in self._signals.items()}
        required = [readings[name] for name in self._required]
        if fires:
            off = {name: OffLevel.at(self._signals[name], readings[name]) for name in self._required}
            self._off = {name: level for name, level in off.items() if level is not None}
        dated = [r.onset for r in required if r.holds and r.onset is not None]
        if not dated and not self._was_false:
            self._since = min([self._since, *self._levels_began()])
        if self.finding and self.finding.state == "resolved":
            if len(self.past) == PAST:
                del self.past[PAST // 2]
            self.past.append(self.finding)
        # The condition holds since the last of its parts began. A new finding cannot begin before the last one ended.
        over = [finding.resolved for finding in self.past[-1:] if finding.resolved is not None]
        onset = max([min(self._since, max(dated, default=self._since)), *over])
        carried = observed.carriers(self.pair, self.slice) if fires and self.pair and not any_of(self.slice) else ()
        summary = _render(self.rule, readings, self.pair, self.slice)
        self.finding = Finding(
            rule=self.rule,
            pair=self.pair,
            slice=self.slice,
            state="firing" if fires else "pending",
            onset=onset,
            fired=step if fires else None,
            resolved=None,
            summary="; ".join([summary, *map(str, carried)]),
            evidence=tuple(readings[name] for name in self._shown),
            carried_by=carried,
            spared=self._is_harmless(),
            before=min(onset - observed.since_last, onset - 1 if self._before is None else self._before),
        )
        return True

    def _levels_began(self) -> list[int]:
        """Since when each way of the condition holds that asks for levels alone. Before it was judged, it held too."""
        began = []
        for way in self.rule.when:
            if self._judgement.holds((way,)):
                holding = [self._signals[name] for name in signals_of((way,), self.rule.predicates)]
                steps = [signal.began for signal in holding if signal.holds]
                known = [step for step in steps if step is not None]
                if known and len(known) == len(steps):
                    began.append(max(known))
        return began

    def _returns(self) -> bool:
        """Whether the condition rests on levels alone that were off from the start, and return to their limits.

        Nothing excuses a tail: it counts for no rule of a pair.
        """
        ways = () if self.pair else tuple(way for way in self.rule.when if self._judgement.holds((way,)))
        names = signals_of(ways, self.rule.predicates)
        holding = [signal for signal in (self._signals[name] for name in names) if signal.holds]
        return bool(holding) and all(isinstance(signal, Threshold) and signal.returns for signal in holding)

    def _is_harmless(self) -> bool:
        return bool(self.rule.harmless) and self._judgement.holds(self.rule.harmless) is True

    def _harms(self, step: int) -> bool:
        """Note whether a finding that was harmless does harm now. Returns whether that is new."""
        if self.finding is None or not self.finding.spared or self._is_harmless():
            return False
        self.finding = self.finding.moved(spared=False, raised=step)
        return True

    def _false(self, step: int) -> bool:
        held, self._held, self._was_false = self._held, 0, True
        if self.state == "firing" and self.finding:
            self._failed += 1
            if self._failed <= self._keep_firing_steps:
                return False
            self.state, self._off = "healthy", {}
            self.finding = self.finding.moved(state="resolved", resolved=step)
            return True
        self._held = max(0, held - DIP)
        if self.state == "pending" and self._held:
            return False
        self._drop_pending()
        self.state = "healthy"
        return False

    def _drop_pending(self) -> None:
        self._held = 0
        if self.finding and self.finding.state == "pending":
            self.finding = self.past.pop() if self.past else None


def _render(rule: Rule, readings: Mapping[str, Reading], pair: Pair | None, slice: str) -> str:
    """The rule's summary with the readings' numbers.

    If a number is not known, its brackets or its part between semicolons are left out. If nothing is left, the rule's
    title is used.
    """
    parts = []
    for literal, name, spec, _ in string.Formatter().parse(rule.summary):
        parts.append(literal)
        if name == "slice":
            parts.append(slice)
        elif name == "pair":
            parts.append(pair or "")
        elif name is not None:
            signal, field = name.split(".")
            parts.append(_shown(readings[signal], field, spec or ""))
    text = re.sub(rf" \([^()]*{_UNKNOWN}[^()]*\)", "", "".join(parts))
    return "; ".join(part for part in text.split("; ") if _UNKNOWN not in part) or rule.title


def _shown(reading: Reading, field: str, spec: str) -> str:
    """A number of `reading`; its value and its baseline so that they look different if they are."""
    value, other = getattr(reading, field), {"value": reading.baseline, "baseline": reading.value}.get(field)
    if value is None:
        return _UNKNOWN
    return different(value, other)[0] if spec == ".3g" and other is not None else format(value, spec)


_UNKNOWN = "\0"
