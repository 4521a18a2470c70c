"""From YAML to `Rule`, with the file and line of whatever is wrong."""

from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tracker_diag.errors import RuleError, UnknownName
from tracker_diag.rules.model import Rule


class _UniqueKeys(yaml.SafeLoader):
    """The safe loader, but a key that stands twice is an error; PyYAML keeps the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key: Hashable = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_rule(file: Path) -> Rule:
    """The rule in `file`.

    Raises:
        RuleError: "file:line: field: what is wrong", for whatever makes the file unusable.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"{file}:1: cannot be read: {error}") from error
    try:
        root = yaml.compose(text, Loader=_UniqueKeys)
        data = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RuleError(f"{file}:{line}: {error.problem}") from error
    if not isinstance(data, dict):
        raise RuleError(f"{file}:1: {type(data).__name__} given, expected a rule with id, name, signals, …")
    try:
        return Rule.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RuleError(f"{file}:{_line(root, first['loc'])}: {field}: {first['msg']}") from error


@cache
def catalog() -> tuple[Rule, ...]:
    """The rules that come with tracker_diag, by id."""
    folder = Path(__file__).parent / "catalog"
    return tuple(load_rule(file) for file in sorted(folder.glob("*.yaml")))


def load_rules(folder: Path) -> tuple[Rule, ...]:
    """The rules in the YAML files of `folder`, by id.

    Raises:
        RuleError: a file that cannot be used, two rules of one id, or no rule at all.
    """
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]) if folder.is_dir() else [folder]
    rules: dict[str, Rule] = {}
    for file in files:
        rule = load_rule(file)
        if rule.id in rules:
            raise RuleError(f"{file}:1: id: {rule.id} stands in another file of this folder as well")
        rules[rule.id] = rule
    if not rules:
        raise RuleError(f"{folder}:1: no YAML file, expected one rule a file")
    return tuple(rules.values())


def chosen(which: str | None) -> tuple[Rule, ...]:
    """The rules that `which` names: ids and prefixes with commas between, or a folder of one's own; all if None.

    Raises:
        UnknownName: an id or prefix that no rule has.
    """
    if which is None:
        return catalog()
    if Path(which).exists():
        return load_rules(Path(which))
    wanted = [part.strip() for part in which.split(",") if part.strip()]
    for part in wanted:
        if not any(rule.id.startswith(part) for rule in catalog()):
            raise UnknownName("--rules", part, tuple(rule.id for rule in catalog()))
    return tuple(rule for rule in catalog() if rule.id.startswith(tuple(wanted)))


def _line(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """The line of the deepest part of `path` that the document has."""
    line = 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            match = [(key, value) for key, value in node.value if key.value == part]
            if not match:
                continue  # pydantic puts the tag of a union into the path
            key, node = match[0]
            line = _line_of(key)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = _line_of(node)
    return line


def _line_of(node: Any) -> int:
    return int(node.start_mark.line) + 1
