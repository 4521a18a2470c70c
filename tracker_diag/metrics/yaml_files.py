"""YAML as every data file here is read: no key is there twice, and errors name file and line.

It is in the metrics room because the files are theirs and the rules', and rules may use metrics.
"""

from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError
from yaml.constructor import SafeConstructor

from tracker_diag.errors import DiagError, nearest

Place: TypeAlias = tuple[int | str, ...]
"""Keys and positions from the top of the file down, as pydantic gives them."""


_NO_SUCH_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
"""How pydantic calls it in a model and in a dataclass."""


class _UniqueKeys(SafeConstructor):
    """A safe loader on which a repeated key is an error; PyYAML keeps the last in silence. A date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as PyYAML has it
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a map", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """In Python: it says best what is wrong."""


_Fast: Any = type("_Fast", (_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})
"""In C, where PyYAML was built with it: ten times as fast."""


@dataclass(frozen=True)
class YamlFile:
    """A file that was read: its data, and where each part of it is."""

    file: Path
    data: Any
    root: yaml.Node | None

    @classmethod
    def load(cls, file: Path, error: type[DiagError]) -> "YamlFile":
        """Read `file`.

        Raises:
            DiagError: of the kind `error`, "file:line: what is wrong"; without a line if there is no file.
        """
        try:
            text = file.read_text(encoding="utf-8")
            with suppress(yaml.YAMLError, ValueError, RecursionError):
                return cls._read(file, _Fast(text))
            return cls._read(file, _Loader(text))
        except OSError as wrong:
            raise error(f"{file}: cannot be read: {wrong.strerror}") from wrong
        except yaml.MarkedYAMLError as wrong:
            line = wrong.problem_mark.line + 1 if wrong.problem_mark else 1
            raise error(f"{file}:{line}: {wrong.problem}") from wrong
        except (UnicodeDecodeError, yaml.YAMLError) as wrong:  # a control character is YAML's affair
            raise error(f"{file}:1: cannot be read: {wrong}") from wrong
        except (ValueError, RecursionError) as wrong:  # 0b_, which is no number, or a thousand brackets
            raise error(f"{file}:1: {wrong}") from wrong

    @classmethod
    def _read(cls, file: Path, loader: Any) -> "YamlFile":
        try:
            root = loader.get_single_node()
            return cls(file, None if root is None else loader.construct_document(root), root)
        finally:
            loader.dispose()

    def line(self, place: Place) -> int:
        """The line of the deepest part of `place` that the file has."""
        return self._found(place)[0]

    def refused(self, wrong: ValidationError, fields: Callable[[Place], Collection[str]] = lambda _: ()) -> str:
        """The message for data that is not as it should be: "file:line: field: what is wrong".

        A misspelt field is reported rather than the one that is missing for it.

        Args:
            fields: gives the names that may stand at a place, for a hint at the nearest.
        """
        errors = wrong.errors()
        first = next((error for error in errors if error["type"] in _NO_SUCH_FIELD), errors[0])
        place, text = first["loc"], first["msg"].removeprefix("Value error, ")
        about = first.get("ctx", {})
        if first["type"] in _NO_SUCH_FIELD:
            known = fields(place)
            text = "no such field" + nearest(str(place[-1]), known, otherwise=bool(known))
        elif first["type"] == "union_tag_invalid":
            kinds, kind = about["expected_tags"].replace("'", ""), about["tag"]
            text = f"kind: {kind!r} given, expected one of {kinds}{nearest(kind, kinds.split(', '))}"
        elif first["type"] == "union_tag_not_found":
            text = "kind: nothing given"
        if not place:  # of the whole: its first word is the field that it is about, if there is one
            place, field = (text.partition(" ")[0].rstrip(":"),), ""
        else:
            path = [*self._found(place)[1], *(place[-1:] if first["type"] == "missing" else ())]
            field = ".".join(map(str, path)) + ": "
        return f"{self.file}:{self.line(place)}: {field}{text}"

    def _found(self, place: Place) -> tuple[int, list[int | str]]:
        """The line of `place`, and those parts of it that the file has; pydantic puts tags of unions into it."""
        node, line = self.root, 1
        path: list[int | str] = []
        for part in place:
            if isinstance(node, yaml.MappingNode):
                match = [(key, value) for key, value in node.value if key.value == str(part)]
                if not match:
                    continue
                at, node = match[0]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                at = node = node.value[part]
            else:
                continue
            line = int(at.start_mark.line) + 1
            path.append(part)
        return line, path
