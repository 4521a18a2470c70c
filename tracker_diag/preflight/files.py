"""What the command line hands over: files and names of functions, as `preflight` takes them.

What is wrong is a SourceError, in one line that names the file.
"""

import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, nearest
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.preflight.limits import described
from tracker_diag.trackers.files.text import read_objects
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.tokens.log import read_tokens

COLUMNS = {
    "reward": "rewards", "reward_before": "rewards_before", "group": "groups", "success": "success",
    "return": "returns", "value": "values",
}  # fmt: skip
"""Fields of a sample, and the arguments that they are columns of."""


def tokens(file: Path) -> dict[str, Any]:
    """The first step of a token table as `batch`."""
    _, batch = next(read_tokens(file, audit=True))
    return {"batch": batch}


def samples(file: Path) -> dict[str, Any]:
    """Rewards, groups and returns of JSON Lines, one object a sample."""
    odd, rows = Odd(), list[tuple[int, dict[str, Any]]]()
    for number, row, _ in read_objects(file, odd.count):
        if isinstance(row, SourceError):
            raise row
        rows.append((number, row))
    if odd.notes or not rows:
        raise SourceError(f"{file}: {'; '.join(odd.notes) or 'no samples'}; expected one JSON object a line")
    first = rows[0][1]
    given: dict[str, Any] = {to: _column(file, rows, name) for name, to in COLUMNS.items() if name in first}
    if not given:
        hint = nearest(next(iter(first), ""), (*COLUMNS,), otherwise=True)
        raise SourceError(f"{file}:{rows[0][0]}: no field that is known among {', '.join(first) or 'none'}{hint}")
    return given


def _column(file: Path, rows: list[tuple[int, dict[str, Any]]], name: str) -> list[Any]:
    for number, row in rows:
        if name not in row:
            raise SourceError(f"{file}:{number}: no field {name}, which the first line has; null where it is not known")
        if name != "group" and not isinstance(row[name], int | float | None):
            raise SourceError(f"{file}:{number}: {name}: {row[name]!r} given, expected a number or null")
    return [row[name] for _, row in rows]


def settings(file: Path) -> dict[str, Any]:
    """A mapping in YAML or JSON."""
    data = YamlFile.load(file, SourceError).data
    if not isinstance(data, Mapping):
        kind = "nothing" if data is None else type(data).__name__
        raise SourceError(f"{file}:1: {kind} given, expected settings by name")
    return {str(name): value for name, value in data.items()}


def plan(file: Path) -> dict[str, Any]:
    """A plan of memory; a model given as text is a number, or the path of a config.json from the file's own folder."""
    given = settings(file)
    models = ("actor", "critic", "reference", "reward")
    return given | {name: _model(file.parent, given[name]) for name in models if isinstance(given.get(name), str)}


def _model(folder: Path, text: str) -> float | dict[str, Any]:
    try:
        return float(text)  # in YAML 7e9 is a text
    except ValueError:
        return settings(folder / text)


def function(option: str, name: str) -> Callable[..., Any]:
    """The function that `name`, "module:function", names; modules of the working directory are found."""
    if not all(name.partition(":")):
        raise SourceError(f"{option}: {name!r} given, expected module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Callable[..., Any] = pkgutil.resolve_name(name)
    except Exception as error:  # a module of the user's own may raise anything
        raise SourceError(f"{option}: {name}: {described(error)}") from error
    if not callable(target):
        raise SourceError(f"{option}: {name} is {type(target).__name__}, expected a function or a class")
    return target
