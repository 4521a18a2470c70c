"""What a rule file may say. Data only: nothing in it is ever evaluated as code."""

import re
import string
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tracker_diag.batch import Pair
from tracker_diag.metrics import registry
from tracker_diag.slices import Slice

Severity: TypeAlias = Literal["info", "warn", "error"]
"""info: shown in the table only. warn: look today. error: steps from here on are likely wasted."""

Link: TypeAlias = Literal[
    "environment", "evaluation", "reward", "advantage", "policy_update",
    "critic", "exploration", "freshness", "numerics", "resources",
]  # fmt: skip
"""The link of the training loop that a rule belongs to, in diagnostic order."""

SliceName: TypeAlias = Slice | Literal["all"]

READING_FIELDS = frozenset({"value", "baseline", "ratio", "n", "series"})


class Node(BaseModel):
    """Frozen, and closed to unknown fields, so that a typo is an error and not a blind rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SeriesRef(Node):
    """One series: a statistic of a slice, or a metric that the trainer logs.

    Where `pair` or `slice` is left out, the rule's own is meant.
    """

    stat: str | None = None
    slice: SliceName | None = None
    pair: Pair | None = None
    metric: str | None = None

    @model_validator(mode="after")
    def _known(self) -> "SeriesRef":
        if (self.stat is None) == (self.metric is None):
            raise ValueError("expected exactly one of stat and metric")
        if self.stat is not None:
            registry.stat(self.stat)
        elif self.metric is not None:
            registry.training(self.metric)
            if self.slice or self.pair:
                raise ValueError("slice and pair go with stat, not with metric")
        return self

    def key(self, pair: Pair | None, slice: SliceName) -> str:
        """Name of the series, with the rule's `pair` and `slice` where it leaves them out."""
        if self.metric is not None:
            return self.metric
        return f"{self.pair or pair}/{self.slice or slice}/{self.stat}"

    @property
    def definition(self) -> registry.Metric:
        return registry.training(self.metric) if self.metric else registry.stat(str(self.stat))


class Growth(Node):
    """Sustained change for the worse against the series' own frozen baseline: a block CUSUM."""

    kind: Literal["growth"] = "growth"
    series: SeriesRef
    relative_to: SeriesRef | None = None
    """Look at series over this one instead, so that what moves both does not count."""
    direction: Literal["rising", "falling"] = "rising"


class Limited(Node):
    """What lies above or below one fixed limit."""

    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "Limited":
        if (self.above is None) == (self.below is None):
            raise ValueError("expected exactly one of above and below")
        return self


class Threshold(Limited):
    """The series, or its ratio to another one, lies above or below a fixed limit."""

    kind: Literal["threshold"] = "threshold"
    series: SeriesRef
    relative_to: SeriesRef | None = None


class Trend(Node):
    """The median of the last half of `steps` values is at least `factor` times that of the first half.

    Needs no baseline, so it also sees a series that has been rising since it began.
    """

    kind: Literal["trend"] = "trend"
    series: SeriesRef
    steps: int = Field(ge=4)
    factor: float = Field(gt=1)


class BaselineRatio(Limited):
    """The series over the mean of its own frozen baseline lies above or below a limit."""

    kind: Literal["baseline_ratio"] = "baseline_ratio"
    series: SeriesRef


class NonFinite(Node):
    """Any metric is NaN or infinite, or any model token has such a log-ratio."""

    kind: Literal["non_finite"] = "non_finite"


class MissingRank(Node):
    """A rank has not been heard of for `steps` steps; only known where ranks report through a store."""

    kind: Literal["missing_rank"] = "missing_rank"
    steps: int = Field(ge=1)


Signal: TypeAlias = Annotated[
    Growth | Threshold | Trend | BaselineRatio | NonFinite | MissingRank, Field(discriminator="kind")
]


class All(Node):
    """False if any part is false, else unknown if any part is, else true."""

    all: tuple["Condition", ...] = Field(min_length=1)


class AnyOf(Node):
    """True if any part is true, else unknown if any part is, else false."""

    any: tuple["Condition", ...] = Field(min_length=1)


class Not(Node):
    """The opposite; what is unknown stays unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    not_: "Condition" = Field(alias="not")


Condition: TypeAlias = str | All | AnyOf | Not


class Rule(Node):
    """A pathology: the signals that tell it, and what a person should know and do about it."""

    id: str = Field(pattern=r"^[A-Z]{2,4}\d{3}$")
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str = Field(max_length=44)
    """Heading of the alert; W&B takes 64 characters with id and slice before it."""
    link: Link
    status: Literal["experimental", "stable", "deprecated"]
    severity: Severity
    pairs: tuple[Pair, ...] = ()
    """The rule is held against each of these pairs on its own."""
    slices: tuple[SliceName, ...] = ("all",)
    """And against each of these slices; they are what its findings are about."""
    description: str = Field(pattern=r"^Detects ")
    rationale: str
    signals: dict[str, Signal] = Field(min_length=1)
    condition: Condition
    support: tuple[str, ...] = ()
    """Signals that are shown as evidence and decide nothing."""
    for_steps: int = Field(default=1, ge=1)
    """Steps that the condition must hold before the rule fires; until then it is pending."""
    keep_firing_steps: int = Field(default=10, ge=0)
    """Steps that it must fail before a firing rule is resolved."""
    summary: str
    """One sentence over the readings, `{signal.field}`, with `{slice}` and `{pair}`."""
    remedy: tuple[str, ...] = Field(min_length=1)
    """What to do, cheapest check first."""
    false_positives: tuple[str, ...] = Field(min_length=1)
    calibration: str
    """Where the numbers come from."""
    references: tuple[str, ...] = ()
    inhibits: tuple[str, ...] = ()
    """Rules that are not alerted while this one fires on the same slice; `all` covers every slice."""

    @field_validator("summary")
    @classmethod
    def _plain_fields(cls, summary: str) -> str:
        for _, name, _, _ in string.Formatter().parse(summary):
            if name is not None and not re.fullmatch(r"slice|pair|\w+\.\w+", name):
                raise ValueError(f"{{{name}}}: expected {{signal.field}}, {{slice}} or {{pair}}")
        return summary

    @model_validator(mode="after")
    def _names_agree(self) -> "Rule":
        used = {*names(self.condition), *self.support}
        if used != self.signals.keys():
            unknown, unused = sorted(used - self.signals.keys()), sorted(self.signals.keys() - used)
            raise ValueError(f"condition and support name unknown signals {unknown}, leave out {unused}")
        for _, name, _, _ in string.Formatter().parse(self.summary):
            signal, _, field = (name or "slice").partition(".")
            if field and (signal not in self.signals or field not in READING_FIELDS):
                fields = ", ".join(sorted(READING_FIELDS))
                raise ValueError(f"summary: {{{name}}}: expected a signal of this rule and one of {fields}")
        if self.status == "experimental" and self.severity == "error":
            raise ValueError("an experimental rule is at most a warning")
        needs_pair = any(ref.stat and not ref.pair for ref in self.series())
        if needs_pair and not self.pairs:
            raise ValueError("pairs: nothing given, expected the pairs that the series without one are about")
        return self

    def series(self) -> Iterator[SeriesRef]:
        """All series that the rule reads."""
        for signal in self.signals.values():
            for field in ("series", "relative_to"):
                ref = getattr(signal, field, None)
                if ref is not None:
                    yield ref


def names(condition: Condition) -> Iterator[str]:
    """The signals that `condition` decides by."""
    match condition:
        case str():
            yield condition
        case All(all=parts) | AnyOf(any=parts):
            for part in parts:
                yield from names(part)
        case Not(not_=part):
            yield from names(part)
