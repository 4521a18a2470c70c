"""What is there and what is not: broken values, series, ranks, settings, other findings."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.series import Rank
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Absent, ConfigChanged, ConfigIs, Fired, MissingRank, NonFinite
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import Place, Reader, horizon

OF_UPDATE = frozenset(
    {"loss", "losses", "grad", "gradient", "gradients", "gradnorm", "param", "params", "parameter", "weight", "weights",
     "ratio", "logprob", "logprobs", "logp", "logps", "logits", "kl", "entropy", "advantage", "advantages", "reward",
     "return", "returns", "lr", "nonfinite"}
)  # fmt: skip
"""Words of the names of what the parameters are made of. Of single reward functions trainers speak in the plural;
`nonfinite` is our own count of log-ratios, in a log that is read again."""
OF_GRADIENT = frozenset({"grad", "gradient", "gradients", "gradnorm"})
"""Of these the words of the gradient."""


class NonFiniteReader(Reader):
    """Whether anything was NaN or infinite at this step, and what."""

    def __init__(self, signal: NonFinite, at: Place) -> None:
        self._of, self._after = signal.of, signal.after
        self._bad: tuple[str, ...] = ()
        self._step, self._seen = -1, 0

    def read(self, observed: Observed) -> None:
        if observed.step != self._step:
            self._step, self._seen = observed.step, self._seen + 1
        self._bad = tuple(name for name in observed.non_finite if self._asks(name))
        self.holds = bool(self._bad) and self._seen > self._after if self._bad or observed.checked else None

    def reading(self) -> Reading:
        if self._bad:
            return Reading("", self._bad[0], self.holds, n=len(self._bad), onset=self._step if self.holds else None)
        if self.holds is None:
            return Reading("", "any", None, unknown=reason(Why.UNCHECKED))
        return Reading("", "any", False, n=0)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": [self._step, self._seen]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self._seen = state["seen"]

    def _asks(self, name: str) -> bool:
        words = set(re.split(r"[^a-z]+", name.lower()))
        update, gradient = (not words.isdisjoint(of) for of in (OF_UPDATE, OF_GRADIENT))
        of = {"update": update, "gradient": gradient, "beside_gradient": update and not gradient, "rest": not update}
        return of.get(self._of, True)


class MissingRankReader(Reader):
    """The rank that has been silent longest."""

    def __init__(self, signal: MissingRank, at: Place) -> None:
        self._steps = signal.steps
        self._since: dict[int, int] = {}
        """The step from which on each rank, by its number, has been silent."""

        self._missing: Mapping[Rank, int] | None = None

    def read(self, observed: Observed) -> None:
        self._missing, self.holds = observed.missing, None
        if self._missing is not None:
            self._since = {rank.number: self._since.get(rank.number, observed.step) for rank in self._missing}
            self.holds = max(self._missing.values(), default=0) >= self._steps

    def reading(self) -> Reading:
        if self._missing is None:
            return Reading("", "ranks", None, unknown=reason(Why.NO_RANKS))
        longest = max(self._missing, key=self._missing.__getitem__, default=None)
        if longest is None:
            return Reading("", "ranks", False, 0)
        steps, missing = self._missing[longest], sum(n >= self._steps for n in self._missing.values())
        return Reading("", str(longest), self.holds, steps, n=missing, onset=self._since[longest.number])

    def state_dict(self) -> dict[str, Any]:
        return {"since": [list(one) for one in self._since.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._since = {number: step for number, step in state["since"]}  # noqa: C416  # of lists


class AbsentReader(Reader):
    """Whether a series has ever come."""

    def __init__(self, signal: Absent, at: Place) -> None:
        self._series = at.series(signal.series)
        self._needed = horizon(signal.steps, at.settings, part=4, fewest=5)
        self.looks_at = (self._series,)
        self._steps, self._came = 0, False

    def read(self, observed: Observed) -> None:
        self._came |= self._series.now is not None
        self._steps += observed.checked
        self._judge()

    def _judge(self) -> None:
        self.holds = None if not self._came and self._steps < self._needed else not self._came

    def reading(self) -> Reading:
        if self.holds is None:
            return self._series.unknown(reason(Why.FEW_STEPS, have=self._steps, needed=self._needed))
        return self._series.reading(self.holds)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "came": self._came}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self._came = state["steps"], state["came"]
        self._judge()


class ConfigChangedReader(Reader):
    """Compares texts, so that what JSON makes of a setting is no change."""

    def __init__(self, signal: ConfigChanged, at: Place) -> None:
        self._keys = signal.keys
        self._first: dict[str, str] = {}
        self._changed: list[Any] | None = None
        self._last: Mapping[str, object] | None = None

    def read(self, observed: Observed) -> None:
        if observed.config is not self._last:  # a run has hundreds of settings, which hardly ever change
            self._last = observed.config
            found = {key: str(value) for key, value in _matching(observed.config, self._keys)}
            for key, value in found.items():
                if self._first.setdefault(key, value) != value and self._changed is None:
                    self._changed = [f"{key}: {self._first[key]} → {value}", observed.step]
        self.holds = self._changed is not None if self._first else None

    def reading(self) -> Reading:
        if not self._first:
            return Reading("", "config", None, unknown=_unset(self._keys))
        if self._changed is None:
            return Reading("", "config", False)
        return Reading("", self._changed[0], True, onset=self._changed[1])

    def rebaseline(self) -> None:
        self._first, self._changed, self._last = {}, None, None

    def state_dict(self) -> dict[str, Any]:
        return {"first": dict(self._first), "changed": self._changed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._changed = dict(state["first"]), state["changed"]


class ConfigIsReader(Reader):
    """Whether a setting has one of some values; case does not matter."""

    def __init__(self, signal: ConfigIs, at: Place) -> None:
        self._keys, self._values = signal.keys, {str(value).lower() for value in signal.values}
        self._last: Mapping[str, object] | None = None
        self._found: tuple[str, object] | None = None

    def read(self, observed: Observed) -> None:
        if observed.config is not self._last:
            self._last = observed.config
            self._found = next(_matching(observed.config, self._keys), None)
            self.holds = None if self._found is None else str(self._found[1]).lower() in self._values

    def reading(self) -> Reading:
        if self._found is None:
            return Reading("", "config", None, unknown=_unset(self._keys))
        key, value = self._found
        return Reading("", f"{key}: {value}", self.holds)


class FiredReader(Reader):
    """Which of some rules have fired lately."""

    def __init__(self, signal: Fired, at: Place) -> None:
        self._signal = signal
        self._recent: dict[str, int] = {}
        """When they fired."""

    def read(self, observed: Observed) -> None:
        since = observed.step - self._signal.steps
        self._recent = {rule: observed.fired[rule] for rule in self._signal.rules if rule in observed.fired}
        self._recent = {rule: fired for rule, fired in self._recent.items() if fired >= since}
        self.holds = len(self._recent) >= self._signal.count

    def reading(self) -> Reading:
        onset = min(self._recent.values(), default=None) if self.holds else None
        return Reading("", ", ".join(self._recent) or "none", self.holds, len(self._recent), onset=onset)


def _matching(config: Mapping[str, object], patterns: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    for pattern in patterns:
        for key, value in config.items():
            if fnmatchcase(key, pattern) or fnmatchcase(key.rsplit(".", 1)[-1], pattern):
                yield key, value


def _unset(keys: tuple[str, ...]) -> Reason:
    more = f" or {len(keys) - 2} like them" if len(keys) > 2 else ""
    return reason(Why.NO_SETTING, keys=", ".join(keys[:2]) + more)
