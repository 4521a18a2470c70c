"""From YAML to `Rule`, with the file and line of whatever is wrong."""

from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tracker_diag.errors import RuleError
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
    text = file.read_text(encoding="utf-8")
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
