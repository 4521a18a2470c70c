"""Names that frameworks give to metrics, as data: `aliases/<framework>.yaml`."""

import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.metrics import registry
from tracker_diag.metrics.yaml_files import YamlFile

FOLDER = Path(__file__).parent / "aliases"
GENERIC = "generic"
"""The file of well-known names, for runs of no known framework."""


class AliasError(DiagError, ValueError):
    """A file of aliases that cannot be used; the message starts with file and line."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Transform(_Closed):
    """From the trainer's value to the canonical one; applied in this order."""

    scale: float = 1.0
    negate: bool = False
    one_minus: bool = False

    @property
    def line(self) -> tuple[float, float]:
        """Slope and intercept."""
        slope = -self.scale if self.negate else self.scale
        return (-slope, 1.0) if self.one_minus else (slope, 0.0)


class Alias(_Closed):
    """Own keys of one canonical metric, of which the first in a row wins; a plain list means only `keys`.

    A key may be a pattern: `*` is anything within a part, `**` parts, `{tool}` a part that names the member. Of several
    that fit, the one with most letters of its own counts.
    """

    keys: tuple[str, ...] = Field(min_length=1)
    transform: Transform = Transform()
    needs_key: str = ""
    """A key that a row must have as well, by this very name, or the value means something else."""
    running: bool = False
    """Whether it is a mean over earlier rows as well: what samples say of a row goes before it."""
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"keys": data} if isinstance(data, list) else data


class Aliases(_Closed):
    """One file: a framework's keys, and how to know it by them."""

    framework: str
    base: str = ""
    """The framework that it is made of, whose keys it has as well, except those that are here."""
    read_at: str = ""
    """Versions whose source or documentation the keys were read in."""
    package: str = ""
    """The distribution of these versions, where an index has one."""
    prefixes: tuple[str, ...] = ()
    """What trackers may put before every key."""
    any_prefix: bool = False
    recognise: tuple[str, ...] = ()
    """Keys that few others have; the framework with most of them is taken, from two on."""
    algorithms: dict[registry.Algorithm, tuple[str, ...]] = {}
    """Keys that only one algorithm has, of those that the framework trains by; the first that a run has tells it."""
    metrics: dict[str, Alias]
    ignore: dict[str, str] = {}
    """Keys that look like a metric and are none, and why."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names(self) -> "Aliases":
        if same := {key for alias in self.metrics.values() for key in alias.keys} & self.ignore.keys():
            raise ValueError(f"{min(same)!r} is read and ignored; expected one of the two")
        for name, alias in self.metrics.items():
            per = registry.training(name).per
            for key in alias.keys:
                members = re.findall(r"\{(\w*)\}", key)
                if members and members != [per]:
                    raise ValueError(f"{name}: {key!r} names a member; expected {{{per}}}, once")
        return self

    def with_slashes(self, key: str) -> str | None:
        """Its key of which a table without slashes has made `key`: `critic/score/mean` of `critic_score_mean`."""
        if whole := self._plain_keys.get(plain(key)):
            return whole
        tried = ((pattern.fullmatch(plain(key)), whole) for pattern, whole in self._plain_patterns)
        return next((re.sub(r"\*+", "{}", whole).format(*match.groups()) for match, whole in tried if match), None)

    @cached_property
    def _read(self) -> tuple[str, ...]:
        return tuple(key for alias in self.metrics.values() for key in alias.keys)

    @cached_property
    def _plain_keys(self) -> dict[str, str]:
        keys = reversed((*self.recognise, *self.ignore, *self._read))
        return {plain(key): key for key in keys if "/" in key and not re.search(r"[*{]", key)}

    @cached_property
    def _plain_patterns(self) -> tuple[tuple[re.Pattern[str], str], ...]:
        keys = (key for key in self._read if "/" in key and "*" in key and "{" not in key)
        return tuple((re.compile("(.+)".join(map(plain, re.split(r"\*+", key)))), key) for key in keys)


def frameworks() -> tuple[str, ...]:
    """The frameworks whose keys are known."""
    return tuple(file.framework for file in alias_files().values() if file.framework != GENERIC)


@cache
def alias_files() -> dict[str, Aliases]:
    """All of them by their framework in lower case, each with what it takes over from its base."""
    loaded = {file.framework.lower(): file for file in map(load, sorted(FOLDER.glob("*.yaml")))}
    return {name: _whole(file, loaded) for name, file in loaded.items()}


def file_of(framework: str) -> Aliases:
    """The file of `framework`, with what it takes over from its base; UnknownName where there is none."""
    if framework.lower() not in alias_files():
        raise UnknownName("framework", framework, frameworks())
    return alias_files()[framework.lower()]


def _whole(file: Aliases, loaded: Mapping[str, Aliases]) -> Aliases:
    """`file` with what it takes over from its base: all keys that it does not have itself."""
    if not file.base:
        return file
    base = _whole(loaded[file.base.lower()], loaded)
    own = {key for alias in file.metrics.values() for key in alias.keys} | file.ignore.keys()
    left = {name: tuple(key for key in alias.keys if key not in own) for name, alias in base.metrics.items()}
    taken = {name: base.metrics[name].model_copy(update={"keys": keys}) for name, keys in left.items() if keys}
    both = {name: alias for name, alias in taken.items() if name not in file.metrics} | file.metrics
    ignored = {key: why for key, why in base.ignore.items() if key not in own} | file.ignore
    return file.model_copy(update={
        "metrics": both, "ignore": ignored, "prefixes": file.prefixes or base.prefixes,
        "algorithms": base.algorithms | file.algorithms,
    })  # fmt: skip


def load(file: Path) -> Aliases:
    """The aliases in `file`.

    Raises:
        AliasError: "file:line: field: what is wrong", if the file cannot be used.
    """
    content = YamlFile.load(file, AliasError)
    try:
        return Aliases.model_validate(content.data)
    except ValidationError as error:
        raise AliasError(content.refused(error)) from error


def plain(key: str) -> str:
    """`key` with one separator: two names that differ by these alone are of one metric."""
    return re.sub(r"[/@._-]+", "_", key.replace("@", "_at_"))
