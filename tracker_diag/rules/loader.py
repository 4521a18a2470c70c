"""From YAML to `Rule`, with file and line of each error; and the rules that are in force for a run."""

import os
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from tracker_diag.errors import RuleError, UnknownName
from tracker_diag.metrics.yaml_files import Place, YamlFile
from tracker_diag.rules.compiled import CATALOG, compiled
from tracker_diag.rules.conditions import AnyOf, Way
from tracker_diag.rules.model import Origin, Rule
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.signals.base import KINDS

ENVIRONMENT = "TRACKER_DIAG_RULES"
"""Folder with more rules for every run, next to the catalogue."""

Own: TypeAlias = Sequence[Rule] | str | Path
"""Rules of your own: `Rule` objects, or their folder or file."""

_BY_KEY: dict[str, Any] = {
    "series": SeriesRef, "relative_to": SeriesRef, "other": SeriesRef, "any of": AnyOf, "when": Way, "harmless": Way,
}  # fmt: skip


def load_rule(file: Path) -> Rule:
    """The rule in `file`.

    Raises:
        RuleError: "file:line: field: what is wrong", if the file cannot be used.
    """
    given = YamlFile.load(file, RuleError)
    if not isinstance(given.data, dict):
        kind = "nothing" if given.data is None else f"a {type(given.data).__name__}"
        raise RuleError(f"{file}:1: {kind} given, expected a rule with id, title, signals, when and summary")
    try:
        return Rule.model_validate(given.data, context=Origin(file, given.line(("id",))))
    except ValidationError as error:
        raise RuleError(given.refused(error, _fields)) from error


def _fields(place: Place) -> Collection[str]:
    """The field names that are valid at `place`. pydantic puts a signal's kind before its fields."""
    names = [part for part in place[:-1] if isinstance(part, str)]
    node: Any = Rule if not names else KINDS.get(names[-1]) or _BY_KEY.get(names[-1])
    if node is None and names[0] == "predicates":
        node = Way
    return list(getattr(node, "__pydantic_fields__", ()))


@cache
def catalog() -> tuple[Rule, ...]:
    """The rules that come with tracker_diag, by id."""
    try:
        return tuple(
            Rule.model_validate(data, context=Origin(CATALOG / name, line))
            for name, (data, line) in compiled().items()
            if not name.startswith("_")
        )
    except (RuleError, ValidationError):  # reading each again names the error and its place
        return tuple(load_rule(file) for file in sorted(CATALOG.glob("[!_]*.yaml")))


def load_rules(folder: Path) -> tuple[Rule, ...]:
    """The rules in the YAML files of `folder`, or in the file that it is, by id. Files named `_…` are skipped.

    Raises:
        RuleError: a file that cannot be used, two rules of one id, or no rule at all.
    """
    if not folder.exists():
        raise RuleError(f"{folder}: no such folder or file, expected one with rules, one YAML file each")
    files = sorted([*folder.glob("[!_]*.yaml"), *folder.glob("[!_]*.yml")]) if folder.is_dir() else [folder]
    if not files:
        raise RuleError(f"{folder}:1: no YAML file, expected one rule a file; docs/own-rules.md has one to copy")
    return _unique([load_rule(file) for file in files])


def rule_called(id: str) -> Rule:
    """The rule of the catalogue with this id.

    Raises:
        UnknownName: there is none.
    """
    rules = {rule.id: rule for rule in catalog()}
    if id not in rules:
        raise UnknownName("rule", id, tuple(rules))
    return rules[id]


def in_force(own: Own = (), *, with_catalog: bool = True) -> tuple[Rule, ...]:
    """The rules for a run: the catalogue, those of the folder TRACKER_DIAG_RULES, and `own`.

    Args:
        own: may also be the folder that the variable names.
        with_catalog: without it, `own` alone.

    Raises:
        RuleError: a file that cannot be used, or an id that is given twice; it names both places.
    """
    given = load_rules(Path(own)) if isinstance(own, str | Path) else tuple(own)
    if not with_catalog:
        return _unique(given)
    folder = os.environ.get(ENVIRONMENT, "").strip()
    everyones = load_rules(Path(folder)) if folder else ()
    return _unique([*catalog(), *everyones, *(rule for rule in given if rule not in everyones)])


def _unique(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    known: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in known:
            other = known[rule.id].where
            if other != rule.where:
                raise RuleError(f"{rule.where}: id: {rule.id} is also in {other}; give one of them another id")
            raise RuleError(
                f"{other}: id: {rule.id} is given twice; `rules` join the catalogue, expected ids that it does "
                "not have; with catalog=False only `rules` are used"
            )
        known[rule.id] = rule
    return tuple(rules)


def chosen(which: str | None) -> tuple[Rule, ...]:
    """The rules that `which` names, its parts separated by commas; all in force if None.

    A folder or file adds its rules to those in force. An id or a prefix selects among all of them: `my_rules/,ACM`.

    Raises:
        RuleError: a folder that cannot be used.
        UnknownName: an id or prefix that no rule has.
    """
    parts = [part.strip() for part in (which or "").split(",") if part.strip()]
    wanted = [part for part in parts if re.fullmatch(r"[A-Z]{1,4}\d{0,3}", part)]
    own = [rule for part in parts if part not in wanted for rule in load_rules(Path(part))]
    rules = in_force(own)
    for part in wanted:
        if not any(rule.id.startswith(part) for rule in rules):
            raise UnknownName("--rules", part, tuple(rule.id for rule in rules))
    return tuple(rule for rule in rules if rule.id.startswith(tuple(wanted))) if wanted else rules
