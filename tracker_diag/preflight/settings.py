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


class Setting(BaseModel):
    """The names of one setting, and its value where the configuration has none of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...] = ()
    """Dotted names, or their ends."""
    values: dict[bool | str, Value] = {}
    """What the framework's own words mean; others stay as they are."""
    product: tuple[str, ...] = ()
    """Settings of this file that it is the product of."""
    default_of: str | None = None
    """Setting of this file that it is the same as."""
    default: Value | None = None


class Framework(BaseModel):
    """One file: a framework's names, with the defaults of the version that was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    framework: str
    read_at: str
    recognise: tuple[str, ...]
    """Names by which its configuration is known."""
    settings: dict[str, Setting]
    local_aggregations: tuple[str, ...] = ()
    """Values of `aggregation` that divide by the tokens of a micro-batch alone."""
    length_biased: tuple[str, ...] = ()
    """Values of `aggregation` that give a token of a short answer more weight (Dr. GRPO, arXiv 2503.20783)."""

    def default(self, name: str, values: Mapping[str, Value]) -> Value | None:
        """What a setting is where the configuration does not say it; `values` come before it in the file."""
        setting = self.settings[name]
        if setting.product:
            numbers = [values[part] for part in setting.product if isinstance(values.get(part), int | float)]
            return prod(numbers) if len(numbers) == len(setting.product) else None
        if setting.default_of:
            return values.get(setting.default_of, self.default(setting.default_of, values))
        return setting.default


@dataclass(frozen=True)
class Settings:
    """The settings of one run, by our names."""

    framework: Framework
    values: Mapping[str, Value]
    keys: Mapping[str, str]
    """The key in the configuration of each that is there; the others are defaults."""

    def changed(self, *names: str) -> list[str]:
        """Keys of those that are in the configuration and are not the framework's default."""
        own = [name for name in names if name in self.keys and self.values[name] != self.framework.default(name, {})]
        return list(dict.fromkeys(self.keys[name] for name in own))

    def number(self, name: str) -> float | None:
        """A setting that is a number, or a text of a number."""
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
    known: dict[str, Framework] = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        source = YamlFile.load(file, DiagError)
        try:
            framework = Framework.model_validate(source.data)
        except ValidationError as error:
            raise DiagError(source.refused(error)) from error
        known[framework.framework] = framework
    return known


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
            given: Any = config[key]
            keys[name] = key
            word = given if isinstance(given, bool) else str(given).lower()
            values[name] = setting.values.get(word, given if isinstance(given, bool | int | float) else str(given))
        elif (default := which.default(name, values)) is not None:
            values[name] = default
    return Settings(which, values, keys)


def _recognised(config: Mapping[str, object]) -> Framework | None:
    """The framework with most of its names in `config`; None below two, or where two have as many."""
    hits = {name: sum(_key(config, own) is not None for own in known.recognise) for name, known in frameworks().items()}
    most = max(hits.values())
    best = [name for name, count in hits.items() if count == most]
    return frameworks()[best[0]] if most > 1 and len(best) == 1 else None


def _key(config: Mapping[str, object], own: str) -> str | None:
    """The key of `config` that is `own`, or ends with it, and has a value."""
    known = (key for key, value in config.items() if value is not None)
    return next((key for key in known if key == own or key.endswith(f".{own}")), None)
