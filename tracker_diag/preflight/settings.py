"""A run's settings under one set of names, whatever the framework calls them: `frameworks/*.yaml` as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.metrics.yaml_files import YamlFile

FOLDER = Path(__file__).parent / "frameworks"

Value: TypeAlias = bool | int | float | str


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Closed):
    """Where one setting stands, and what it is where it does not: the first of these that is known."""

    keys: tuple[str, ...] = ()
    """Dotted names, or their ends."""
    values: dict[bool | str, Value] = {}
    """What the framework's own words stand for; others stay as they are."""
    product: tuple[str, ...] = ()
    """Settings of this file that it is the product of."""
    default_of: str | None = None
    """Setting of this file that it is the same as."""
    default: Value | None = None


class Framework(_Closed):
    """One file: a framework's names, with the defaults of the version that was read."""

    framework: str
    read_at: str
    recognise: tuple[str, ...]
    """Names by which its configuration is known."""
    settings: dict[str, Setting]
    local_aggregations: tuple[str, ...] = ()
    """Values of `aggregation` that divide by the tokens of a micro-batch alone."""
    length_biased: tuple[str, ...] = ()
    """Values of `aggregation` that give a token of a short answer more weight (Dr. GRPO, arXiv 2503.20783)."""


@dataclass(frozen=True)
class Settings:
    """The settings of one run, by our names."""

    framework: Framework
    values: Mapping[str, Value]
    keys: Mapping[str, str]
    """The key in the configuration of each that stands there; the others are defaults."""

    def changed(self, *names: str) -> list[str]:
        """Keys of those that stand in the configuration and are not the framework's default."""
        own = (name for name in names if name in self.keys and self.values[name] != _default(self.framework, name, {}))
        return list(dict.fromkeys(self.keys[name] for name in own))

    def number(self, name: str) -> float | None:
        """A setting that is a number, or a text that says one."""
        value = self.values.get(name)
        if isinstance(value, bool) or value is None:
            return None
        try:
            return float(value)
        except ValueError:
            return None


@cache
def frameworks() -> dict[str, Framework]:
    """All that are known, by name."""
    found: dict[str, Framework] = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        read = YamlFile.read(file, DiagError)
        try:
            one = Framework.model_validate(read.data)
        except ValidationError as error:
            raise DiagError(read.refused(error)) from error
        found[one.framework] = one
    return found


def settings_of(config: Mapping[str, object], framework: str | None = None) -> Settings | None:
    """The settings in `config`, by dotted name; None if it is of no framework that is known.

    Raises:
        UnknownName: there is no `framework` of this name.
    """
    known = frameworks()
    if framework is not None and framework.lower() not in known:
        raise UnknownName("framework", framework, tuple(known))
    which = known[framework.lower()] if framework else _recognised(config)
    if which is None:
        return None
    values: dict[str, Value] = {}
    keys: dict[str, str] = {}
    for name, setting in which.settings.items():
        key = next((key for own in setting.keys if (key := _key(config, own))), None)
        if key is not None:
            keys[name] = key
            values[name] = setting.values.get(_word(config[key]), _plain(config[key]))
        elif (default := _default(which, name, values)) is not None:
            values[name] = default
    return Settings(which, values, keys)


def _recognised(config: Mapping[str, object]) -> Framework | None:
    """The framework with most of its names in `config`; None below two, or where two have as many."""
    hits = {name: sum(_key(config, own) is not None for own in of.recognise) for name, of in frameworks().items()}
    most = max(hits.values())
    best = [name for name, count in hits.items() if count == most]
    return frameworks()[best[0]] if most > 1 and len(best) == 1 else None


def _key(config: Mapping[str, object], own: str) -> str | None:
    """The key of `config` that is `own`, or ends with it, and has a value."""
    return next(
        (key for key, value in config.items() if value is not None and (key == own or key.endswith(f".{own}"))), None
    )


def _default(which: Framework, name: str, values: Mapping[str, Value]) -> Value | None:
    """What a setting is where the configuration does not say it; of `values`, those that come before it in the file."""
    setting = which.settings[name]
    if setting.product:
        parts = [values.get(part) for part in setting.product]
        numbers = [part for part in parts if isinstance(part, int | float)]
        return prod(numbers) if len(numbers) == len(parts) else None
    if setting.default_of:
        return values.get(setting.default_of, _default(which, setting.default_of, values))
    return setting.default


def _word(value: object) -> bool | str:
    return value if isinstance(value, bool) else str(value).lower()


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool | int | float | str) else str(value)
