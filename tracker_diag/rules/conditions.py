"""When a rule holds: ways over the names of signals, in three-valued logic. They are data, with at most three levels.

A rule holds if any of its ways does. A way holds if all of its parts do, its metrics are logged, and nothing under
`unless` holds.

| what | counts as |
|---|---|
| a signal that cannot see | unknown |
| a metric of `needs` that the run does not log | no: the way is absent |
| a metric of `without` that the run logs | no: the way is absent |
| a metric of either that is not logged yet, but may be later | unknown |
| a signal under `unless` that is unknown for now | unknown |
| a signal under `unless` whose metrics the run does not log | no: it excludes nothing |

A rule that could never hold in this run, since all of its ways are absent, is blind.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.rules.nodes import Node, OrText, SeriesRef
from tracker_diag.rules.series import Place, Series, logged
from tracker_diag.rules.signals.base import Signal


def _known_series(name: str) -> str:
    SeriesRef.parse(name)
    return name


SeriesName: TypeAlias = Annotated[str, AfterValidator(_known_series)]


class AnyOf(Node):
    """True if any part is true, else unknown if any part is, else false."""

    any: tuple[str, ...] = Field(min_length=2)
    """Names of signals or predicates."""


def _kind_of_part(given: object) -> str | None:
    """The kind of a part of a way, so that an error names that kind only."""
    if isinstance(given, str):
        return "name"
    return "any of" if isinstance(given, AnyOf) or (isinstance(given, dict) and "any" in given) else None


Part: TypeAlias = Annotated[
    Annotated[str, Tag("name")] | Annotated[AnyOf, Tag("any of")],
    Discriminator(
        _kind_of_part,
        custom_error_type="condition",
        custom_error_message="expected the name of a signal or predicate, or {any: [...]} with such names",
    ),
]


class Way(Node):
    """One way in which a rule or a predicate holds."""

    all: tuple[Part, ...] = ()
    """Names of signals or predicates, or `any` with such names; each must hold."""
    needs: tuple[SeriesName, ...] = ()
    """Metrics or statistics, such as `policy/all/k3`. If one is not logged, this way is absent."""
    without: tuple[SeriesName, ...] = ()
    """If one of these metrics is logged, this way is absent."""
    unless: tuple[str, ...] = ()
    """Names of signals or predicates; none may hold. One without logged metrics counts as not holding."""

    @model_validator(mode="after")
    def _says_something(self) -> "Way":
        if not self.all and not self.unless:
            raise ValueError("expected `all`, `unless` or both, with names of signals")
        return self


def _way(given: Any) -> Any:
    return {"all": [given]} if isinstance(given, str) else given


_BY_NAME = OrText("The way that holds if this signal or predicate does.")

Ways: TypeAlias = tuple[Annotated[Way, BeforeValidator(_way), _BY_NAME], ...]
"""One that holds is enough. A name alone is a way that holds if that signal or predicate does."""


def named(ways: Ways) -> Iterator[str]:
    """The names of signals and predicates in `ways`, in their order."""
    for way in ways:
        for part in way.all:
            yield from (part,) if isinstance(part, str) else part.any
        yield from way.unless


def signals_of(ways: Ways, predicates: Mapping[str, Ways]) -> tuple[str, ...]:
    """The signals that decide `ways`, also through predicates, each once."""
    signals: dict[str, None] = {}
    for name in named(ways):
        signals |= dict.fromkeys(signals_of(predicates[name], predicates) if name in predicates else (name,))
    return tuple(signals)


class Judgement:
    """Ways and predicates over the signals of one place."""

    def __init__(self, ways: Ways, predicates: Mapping[str, Ways], signals: Mapping[str, Signal], at: Place) -> None:
        self._predicates, self._signals = predicates, signals
        every = [way for part in (ways, *predicates.values()) for way in part]
        self._series = {name: at.series(SeriesRef.parse(name)) for way in every for name in (*way.needs, *way.without)}

    def holds(self, ways: Ways, *, excuses: bool = False, lasting: Collection[str] = ()) -> bool | None:
        """Whether any of `ways` holds now; None is unknown.

        Args:
            excuses: whether they are under `unless`. There, a signal whose metrics are not logged counts as no.
            lasting: signals that count as holding, except under `unless`.
        """
        return _any_of([self._way_holds(way, excuses, lasting) for way in ways])

    def can_be(self, ways: Ways, value: bool, heard: Collection[str], *, excuses: bool = False) -> bool:
        """Whether `ways` can become `value` if only the signals `heard` are ever known."""
        return (any if value else all)(self._way_can_be(way, value, heard, excuses) for way in ways)

    def series(self, ways: Ways, *, excuses: bool = False) -> tuple[Series, ...]:
        """The series for which `ways` ask whether they are logged. `ways` depend on that and on the signals."""
        asked: dict[Series, None] = {}
        for way in ways:
            asked |= dict.fromkeys(self._series[name] for name in (*way.needs, *way.without))
            for name in named((way,)):
                under = excuses or name in way.unless
                if name in self._predicates:
                    asked |= dict.fromkeys(self.series(self._predicates[name], excuses=under))
                elif under:
                    asked |= dict.fromkeys(self._signals[name].looks_at)
        return tuple(asked)

    def unknown(self, ways: Ways, *, excuses: bool = False) -> Reason | None:
        """Why the first deciding signal is unknown. A way that is absent counts only if all ways are."""
        present = [way for way in ways if self._is_present(way)] or ways
        reasons = (self._name_unknown(name, excuses or name in way.unless) for way in present for name in named((way,)))
        return next(filter(None, reasons), None)

    def _is_present(self, way: Way) -> bool:
        needed = all(self._series[name].logged for name in way.needs)
        return needed and not any(self._series[name].logged for name in way.without)

    def _name_unknown(self, name: str, excuses: bool) -> Reason | None:
        if name in self._predicates:
            return self.unknown(self._predicates[name], excuses=excuses)
        signal = self._signals[name]
        return None if self._name_holds(name, excuses) is not None else signal.reading().unknown

    def absent(self, ways: Ways) -> Reason | None:
        """Why no way is for this run, if each one is absent because of a logged metric."""
        there = [[each for name in way.without if (each := self._series[name]).logged] for way in ways]
        return reason(Why.LOGGED, series=there[0][0].name) if there and all(there) else None

    def not_logged(self, ways: Ways) -> Reason | None:
        """Why the ways are absent, if a metric that one of them needs is not logged."""
        needed = (self._series[name] for way in ways for name in way.needs)
        return next((series.unknown().unknown for series in needed if series.logged is not True), None)

    def _name_holds(self, name: str, excuses: bool, lasting: Collection[str] = ()) -> bool | None:
        if name in self._predicates:
            return self.holds(self._predicates[name], excuses=excuses, lasting=lasting)
        if name in lasting:
            return True
        signal = self._signals[name]
        return False if signal.holds is None and excuses and _is_absent(signal) else signal.holds

    def _way_holds(self, way: Way, excuses: bool, lasting: Collection[str]) -> bool | None:
        values = [self._series[name].logged for name in way.needs]
        values += [_opposite(self._series[name].logged) for name in way.without]
        for part in way.all:
            names = (part,) if isinstance(part, str) else part.any
            values.append(_any_of([self._name_holds(name, excuses, lasting) for name in names]))
        values += [_opposite(self._name_holds(name, True)) for name in way.unless]
        return False if False in values else None if None in values else True

    def _name_can_be(self, name: str, value: bool, heard: Collection[str], excuses: bool) -> bool:
        if name in self._predicates:
            return self.can_be(self._predicates[name], value, heard, excuses=excuses)
        return name in heard or (excuses and not value and _is_absent(self._signals[name]))

    def _way_can_be(self, way: Way, value: bool, heard: Collection[str], excuses: bool) -> bool:
        can: list[bool] = []
        for names, wanted in ((way.needs, True), (way.without, False)):
            known = [self._series[name].logged for name in names]
            can += [answer is wanted if value else answer is not None for answer in known]
        for part in way.all:
            names = (part,) if isinstance(part, str) else part.any
            can.append((any if value else all)(self._name_can_be(name, value, heard, excuses) for name in names))
        can += [self._name_can_be(name, not value, heard, True) for name in way.unless]
        return (all if value else any)(can)


def _any_of(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def _is_absent(signal: Signal) -> bool:
    """Whether the run does not log what `signal` looks at."""
    return logged(signal.looks_at) is False
