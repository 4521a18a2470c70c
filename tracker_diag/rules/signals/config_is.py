"""A setting that has one of some values."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal
from tracker_diag.rules.signals.config_changed import matching, no_setting


@dataclass(config=CLOSED, kw_only=True)
class ConfigIs(Signal):
    """A setting of the run has one of `values`; `keys` are shell patterns, the first that matches counts."""

    kind: Literal["config_is"] = "config_is"
    keys: tuple[str, ...] = Field(min_length=1)
    values: tuple[str | float | bool, ...] = Field(min_length=1)

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._values = {str(value).lower() for value in self.values}
        self._last: Mapping[str, object] | None = None
        self._found: tuple[str, object] | None = None

    def update(self, observed: Observed) -> None:
        if observed.config is not self._last:
            self._last = observed.config
            self._found = next(matching(observed.config, self.keys), None)
            self.holds = None if self._found is None else str(self._found[1]).lower() in self._values

    def reading(self) -> Reading:
        if self._found is None:
            return Reading("", "config", None, unknown=no_setting(self.keys))
        key, value = self._found
        return Reading("", f"{key}: {value}", self.holds)
