"""From a signal of a rule to the reader that works it, and from readings to a verdict."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tracker_diag.rules import nodes
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import All, AnyOf, Condition, Not, Signal
from tracker_diag.rules.readers import change, level, often, outcome, presence
from tracker_diag.rules.readers.base import Place, Reader

READERS: dict[type[nodes.Node], Callable[[Any, Place], Reader]] = {
    nodes.Growth: change.GrowthReader,
    nodes.Trend: change.TrendReader,
    nodes.Spike: change.SpikeReader,
    nodes.Threshold: level.ThresholdReader,
    nodes.BaselineRatio: level.BaselineRatioReader,
    nodes.Correlation: level.CorrelationReader,
    nodes.Often: lambda signal, at: often.OftenReader(signal, reader(signal.of, at), at),
    nodes.Stuck: level.StuckReader,
    nodes.Collapse: outcome.CollapseReader,
    nodes.Gain: outcome.GainReader,
    nodes.Absent: presence.AbsentReader,
    nodes.NonFinite: presence.NonFiniteReader,
    nodes.MissingRank: presence.MissingRankReader,
    nodes.ConfigChanged: presence.ConfigChangedReader,
    nodes.ConfigIs: presence.ConfigIsReader,
    nodes.Fired: presence.FiredReader,
}


def reader(signal: Signal, at: Place) -> Reader:
    """A new reader of `signal` at the place that a rule looks at."""
    return READERS[type(signal)](signal, at)


def holds(condition: Condition, readings: Mapping[str, Reading | Reader]) -> bool | None:
    """`condition` over what `readings` say, in Kleene's three-valued logic; None is unknown."""
    match condition:
        case str():
            return readings[condition].holds
        case Not(not_=part):
            inner = holds(part, readings)
            return None if inner is None else not inner
        case All(all=parts):
            values = [holds(part, readings) for part in parts]
            return False if False in values else None if None in values else True
        case AnyOf(any=parts):
            values = [holds(part, readings) for part in parts]
            return True if True in values else None if None in values else False


def can_be(condition: Condition, value: bool, seen: Collection[str]) -> bool:
    """Whether `condition` can become `value` at all, when only the signals `seen` ever say anything."""
    match condition:
        case str():
            return condition in seen
        case Not(not_=part):
            return can_be(part, not value, seen)
        case All(all=parts):
            return (all if value else any)(can_be(part, value, seen) for part in parts)
        case AnyOf(any=parts):
            return (any if value else all)(can_be(part, value, seen) for part in parts)
