"""What all kinds of signals share. A kind is one class in one file: its fields and its evaluation."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from typing_extensions import Self

from tracker_diag.detect.saved import Saved
from tracker_diag.errors import UnknownName
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import Limit, OrText, SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import LOST_AFTER, Place, Series

CLOSED = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""Refuses unknown fields, so that a typo is an error and not a blind rule."""

_BY_VERB: dict[str, type["Signal"]] = {}
KINDS: dict[str, type["Signal"]] = {}
"""Every kind by its name. A class joins if it has a default for `kind`."""


class Verb(NamedTuple):
    """A word of the short form, and the fields that it sets."""

    fields: Mapping[str, Any] = {}
    """Fields that the word alone sets."""
    number: str = ""
    """Field that a plain number after the word sets; empty if it takes none."""
    times: str = ""
    """Field that a number with an x, as in 1.5x, sets; empty if it takes none."""
    required: bool = True
    """Whether a number must come."""


@dataclass(config=CLOSED, kw_only=True)
class Signal(Saved):
    """A question about the run, asked once a step: it holds, does not hold, or is unknown.

    In a rule it is data. `start` makes a copy for one place: call `update` once a step, in order. If more of a step
    comes later, and brings a value of its series, `update` is called again.
    """

    historical: ClassVar[bool] = False
    """Whether it uses earlier values."""
    verbs: ClassVar[Mapping[str, Verb]] = {}
    """Its words in the short form."""
    kept: ClassVar[tuple[str, ...]] = ("holds", "began")

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            KINDS[cls.__dict__["kind"]] = cls
            _BY_VERB.update(dict.fromkeys(cls.verbs, cls))

    def refs(self) -> list[SeriesRef]:
        """The series that it reads, as they are given."""
        return [ref for name in ("series", "relative_to", "other") if (ref := getattr(self, name, None)) is not None]

    def start(self, at: Place) -> Self:
        """A copy that is evaluated at one place."""
        started = object.__new__(type(self))  # `copy.copy` takes five times as long, and a run starts hundreds
        vars(started).update(vars(self))
        started.begin(at)
        return started

    def begin(self, at: Place) -> None:
        """Set up what `update` needs, with nothing seen so far."""
        self._at = at
        self.holds: bool | None = None
        """Whether it holds at this step; None if it is unknown."""
        self.began: int | None = None
        """The step since which its level is what it is, if it is about a level and holds."""
        self.looks_at: tuple[Series, ...] = ()
        """Its series. A signal without series may be updated any number of times with one step."""
        if series := getattr(self, "series", None):
            self._series = at.series(series, getattr(self, "relative_to", None))
            self.looks_at = (self._series,)
        if other := getattr(self, "other", None):
            self._other = at.series(other)
            self.looks_at = (self._series, self._other)

    @abstractmethod
    def update(self, observed: Observed) -> None:
        """Evaluate one step, after its series were read."""

    @abstractmethod
    def reading(self) -> Reading:
        """The evidence for `holds`. It is made on demand, since most steps have no finding."""

    def rebaseline(self) -> None:
        """Forget what was normal."""
        if self.historical:
            self.begin(self._at)


def has_come(signal: Signal) -> bool:
    """Whether `signal` has data: it has no series, or one of them has had a value."""
    return not signal.looks_at or any(series.has_come for series in signal.looks_at)


class Lasting(Signal):
    """A signal that keeps its answer between two values, for `LOST_AFTER` steps."""

    historical: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("_missed", "_last_step")

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._missed = 0
        self._last_step: int | None = None
        """The step of the last value."""

    def update(self, observed: Observed) -> None:
        now = self._series.now
        if now is None:
            self._missed += 1
            self.holds = self.holds if self._missed <= LOST_AFTER else None
        else:
            self.holds = self._answer(observed.step, now)
            self._missed, self._last_step = 0, observed.step

    def reading(self) -> Reading:
        if self._last_step is None:
            return self._series.unknown()
        if self._missed > LOST_AFTER:
            return self._series.unknown(reason(Why.LOST, step=self._last_step))
        return self._evidence()

    @abstractmethod
    def _answer(self, step: int, now: Scalar) -> bool | None:
        """Take the value of a step in, and say whether the signal holds. `_missed` is of before."""

    @abstractmethod
    def _evidence(self) -> Reading:
        """The reading, if the series has had a value of late."""


@dataclass(config=CLOSED, kw_only=True)
class Limited(Signal):
    """A value above or below one limit."""

    above: Limit | None = Field(default=None, description="It holds above this limit.")
    below: Limit | None = Field(default=None, description="It holds below this limit.")

    @model_validator(mode="after")
    def _one_limit(self) -> "Limited":
        if (self.above is None) == (self.below is None):
            raise ValueError("expected exactly one of above and below")
        if isinstance(self._given, dict) and "other" not in self._given:
            raise ValueError("expected a limit for `other` next to those of algorithms")
        return self

    @property
    def _given(self) -> Limit:
        if self.above is not None:
            return self.above
        return 0.0 if self.below is None else self.below

    def begin(self, at: Place) -> None:
        super().begin(at)
        given = self._given
        self.limit = given.get(at.algorithm or "other", given["other"]) if isinstance(given, dict) else given
        """The limit for this run's algorithm."""

    def _is_beyond(self, value: float) -> bool:
        """Whether `value` is beyond the limit that is given."""
        return value > self.limit if self.above is not None else value < self.limit


@dataclass(config=CLOSED, kw_only=True)
class Material(Signal):
    """A change of at least a size, regardless of the noise."""

    any_size: ClassVar[bool] = False
    """Whether both sizes may be left out; then every change counts."""

    factor: float | None = Field(default=None, gt=1, description="For series that are positive.")
    change: float | None = Field(default=None, gt=0, description="In the series' own unit.")

    @model_validator(mode="after")
    def _one_size(self) -> "Material":
        given = [size for size in (self.factor, self.change) if size is not None]
        if len(given) > 1 or not (given or self.any_size):
            raise ValueError(f"expected {'at most' if self.any_size else 'exactly'} one of factor and change")
        return self


_SHORT = re.compile(
    r"(?P<series>\S+)(?: / (?P<over>\S+))? (?P<verb>\w+)(?: (?P<number>\S+?)(?P<x>x?))?(?: in (?P<steps>\d+))?"
)


SHORT = OrText("In short: series, verb and number, as in `reward rises 0.1 in 80` or `eval_score / reward below 0.5`.")


def from_short(given: Any) -> Any:
    """The fields of a signal in one line, such as `reward rises 0.1 in 80`. Anything but text is returned unchanged.

    Raises:
        ValueError: what is wrong with the line.
    """
    if not isinstance(given, str):
        return given
    match = _SHORT.fullmatch(given.strip())
    if match is None:
        raise ValueError(f"{given!r} given, expected a series, a verb and a number, as in `reward rises 0.1 in 80`")
    word = match["verb"]
    if word not in _BY_VERB:
        raise UnknownName("verb", word, tuple(_BY_VERB))
    kind, verb = _BY_VERB[word], _BY_VERB[word].verbs[word]
    field = verb.times if match["x"] else verb.number
    if bool(match["number"]) != bool(field) and (match["number"] or verb.required):
        forms = " or ".join(
            [*(["a number"] if verb.number else []), *(["a factor such as 1.5x"] if verb.times else [])]
        )
        raise ValueError(f"{given!r}: expected {forms or 'no number'} after `{word}`")
    fields: dict[str, Any] = {"kind": kind.__dict__["kind"], "series": _series(match["series"]), **verb.fields}
    if match["over"]:
        fields["relative_to"] = _series(match["over"])
    if match["number"]:
        fields[field] = match["number"]
    if match["steps"]:
        fields["steps"] = match["steps"]
    return fields


def _series(text: str) -> dict[str, Any]:
    return SeriesRef.parse(text).model_dump(exclude_none=True)
