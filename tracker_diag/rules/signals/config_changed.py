"""A setting that has changed."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal


@dataclass(config=CLOSED, kw_only=True)
class ConfigChanged(Signal):
    """A setting of the run differs from that at its start; `keys` are shell patterns over dotted names."""

    historical: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("_first", "_changed")

    kind: Literal["config_changed"] = "config_changed"
    keys: tuple[str, ...] = Field(min_length=1)

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._first: dict[str, str] = {}
        self._changed: tuple[str, int] | None = None
        self._last: Mapping[str, object] | None = None

    def update(self, observed: Observed) -> None:
        if observed.config is not self._last:  # a run has hundreds of settings, which rarely change
            self._last = observed.config
            present = {key: str(value) for key, value in matching(observed.config, self.keys)}
            for key, value in present.items():
                if self._first.setdefault(key, value) != value and self._changed is None:
                    self._changed = f"{key}: {self._first[key]} → {value}", observed.step
        self.holds = self._changed is not None if self._first else None

    def reading(self) -> Reading:
        if not self._first:
            return Reading("", "config", None, unknown=no_setting(self.keys))
        if self._changed is None:
            return Reading("", "config", False)
        return Reading("", self._changed[0], True, onset=self._changed[1])


def matching(config: Mapping[str, object], patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The settings whose dotted name, or its last part, matches; those of the first pattern first."""
    for pattern in patterns:
        for key, value in config.items():
            if fnmatchcase(key, pattern) or fnmatchcase(key.rsplit(".", 1)[-1], pattern):
                yield key, value


def no_setting(keys: tuple[str, ...]) -> Reason:
    """Why a signal over `keys` is unknown."""
    more = f" or {len(keys) - 2} like them" if len(keys) > 2 else ""
    return reason(Why.NO_SETTING, keys=", ".join(keys[:2]) + more)
