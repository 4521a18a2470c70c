"""Signals and predicates that several rules use: catalog/_shared.yaml. Every rule may use them by name."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from tracker_diag.errors import RuleError
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.rules.compiled import CATALOG, compiled
from tracker_diag.rules.conditions import Ways, named
from tracker_diag.rules.nodes import Node
from tracker_diag.rules.signals import AnySignal

FILE = CATALOG / "_shared.yaml"


class Shared(Node):
    """What the file holds."""

    signals: dict[str, AnySignal]
    predicates: dict[str, Ways]


@cache
def shared() -> Shared:
    """The shared signals and predicates.

    Raises:
        RuleError: "file:line: field: what is wrong".
    """
    data, _ = compiled()[FILE.name]
    try:
        return Shared.model_validate(data)
    except ValidationError as error:
        raise RuleError(YamlFile.load(FILE, RuleError).refused(error)) from error


def with_shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rule `given` with each shared signal and predicate that it names; a name of its own comes first."""
    rule, common = dict(given), shared()
    signals, predicates = (rule.get(field, {}) for field in ("signals", "predicates"))
    if not isinstance(signals, Mapping) or not isinstance(predicates, Mapping):
        return rule  # pydantic says what is wrong with it
    signals, predicates = dict(signals), dict(predicates)
    asked = [name for field in ("when", "harmless", "support", "predicates") for name in _texts(rule.get(field))]
    while asked:
        name = asked.pop(0)
        if name in signals or name in predicates:
            continue
        if name in common.signals:
            signals[name] = common.signals[name]
        elif name in common.predicates:
            predicates[name] = common.predicates[name]
            asked.extend(named(predicates[name]))
    return rule | ({"signals": signals} if signals else {}) | ({"predicates": predicates} if predicates else {})


def _texts(given: Any) -> Iterator[str]:
    """All texts in data that is not checked yet: among them are the names that a rule uses."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _texts(value)
    elif isinstance(given, BaseModel):
        yield from _texts(given.model_dump())
    elif isinstance(given, list | tuple):
        for value in given:
            yield from _texts(value)
