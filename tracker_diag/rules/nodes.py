"""The parts of a rule: series, signals on them, conditions over signals. Data only: nothing is evaluated as code."""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from tracker_diag.errors import UnknownName
from tracker_diag.metrics import registry
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import ALL, ANY, KNOWN, Pair, SeriesKey, StatKey
from tracker_diag.metrics.statistics import statistic


def _known_slice(name: str) -> str:
    if name not in (*KNOWN, *ANY):
        raise UnknownName("slice", name, (*KNOWN, *ANY))
    return name


SliceName: TypeAlias = Annotated[str, AfterValidator(_known_slice)]

Direction: TypeAlias = Literal["rising", "falling"]

Limit: TypeAlias = float | dict[Algorithm | Literal["other"], float]
"""One limit, or one for each algorithm; without an entry for the run's, or if that is unknown, `other`."""


class Node(BaseModel):
    """Frozen, and closed to unknown fields, so that a typo is an error and not a blind rule.

    What stands below a field is its description in the JSON Schema, which an editor shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SeriesRef(Node):
    """One series: a statistic of a slice, or a metric that the trainer logs.

    Where `pair` or `slice` is left out, the rule's own is meant. A metric that is logged for each tool is that of the
    rule's tool, where its slices are `tool:*`; with `slice: all` that of all tools.
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
            statistic(self.stat)
        elif self.metric is not None:
            registry.training(self.metric)
            if self.pair or self.slice not in (None, ALL):
                raise ValueError("slice and pair go with stat; with metric, slice may be all")
        return self

    def key(self, pair: Pair | None, slice: SliceName) -> SeriesKey:
        """Name of the series, with the rule's `pair` and `slice` where it leaves them out; of a tool, its own."""
        of = self.pair or pair
        if self.stat is None or of is None:  # a rule without a pair reads metrics alone
            return str(self.metric) + (f":{slice.partition(':')[2]}" if self.of_cell(slice) else "")
        return StatKey(of, self.slice or slice, self.stat)

    def of_cell(self, slice: SliceName) -> bool:
        """Whether a metric is meant that may be logged of `slice` alone, as of one tool, and not that of all."""
        return (
            self.metric is not None
            and self.slice is None
            and registry.training(self.metric).per == slice.partition(":")[0]
        )

    @property
    def definition(self) -> registry.Metric:
        return registry.training(self.metric) if self.metric else statistic(str(self.stat))


class Growth(Node):
    """Sustained change for the worse against the series' own frozen baseline."""

    kind: Literal["growth"] = "growth"
    series: SeriesRef
    relative_to: SeriesRef | None = None
    """Look at series over this one instead, so that what moves both does not count."""
    direction: Direction = "rising"
    factor: float | None = Field(default=None, gt=1)
    """How many times its baseline the series has to be, if rising; or which part of it, if falling."""
    each: float | None = Field(default=None, gt=1)
    """The same of the value of each step: it does not hold at steps on which a series that comes in bursts is back."""


class Limited(Node):
    """What lies above or below one limit."""

    above: Limit | None = None
    below: Limit | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "Limited":
        if (self.above is None) == (self.below is None):
            raise ValueError("expected exactly one of above and below")
        limit = self.above if self.above is not None else self.below
        if isinstance(limit, dict) and "other" not in limit:
            raise ValueError("expected a limit for `other` beside those of algorithms")
        return self


class Threshold(Limited):
    """The series, or its ratio to another one, lies above or below a fixed limit."""

    kind: Literal["threshold"] = "threshold"
    series: SeriesRef
    relative_to: SeriesRef | None = None


class BaselineRatio(Limited):
    """The series over the mean of its own frozen baseline lies above or below a limit."""

    kind: Literal["baseline_ratio"] = "baseline_ratio"
    series: SeriesRef


class Correlation(Limited):
    """Spearman's correlation of two series over the last `steps` at which both had a value."""

    kind: Literal["correlation"] = "correlation"
    series: SeriesRef
    other: SeriesRef
    steps: int = Field(ge=10)


class Material(Node):
    """A change that is large enough to matter, whatever the noise."""

    factor: float | None = Field(default=None, gt=1)
    """For series that are positive."""
    change: float | None = Field(default=None, gt=0)
    """In the series' own unit."""

    @model_validator(mode="after")
    def _one_size(self) -> "Material":
        if (self.factor is None) == (self.change is None):
            raise ValueError("expected exactly one of factor and change")
        return self


class Trend(Material):
    """A steady change over the last `steps` values: Mann–Kendall and Theil–Sen on the means of eight blocks.

    Needs no baseline, so it also sees a series that has been rising since it began.
    """

    kind: Literal["trend"] = "trend"
    series: SeriesRef
    relative_to: SeriesRef | None = None
    steps: int = Field(ge=8)
    direction: Direction = "rising"


class Spike(Material):
    """A value far outside the last `steps` values before it, by their median and MAD, and materially so."""

    kind: Literal["spike"] = "spike"
    series: SeriesRef
    steps: int = Field(default=50, ge=10)
    direction: Direction = "rising"
    z: float = Field(default=6.0, gt=0)
    above: float | None = None
    """Level that it must lie above too, whatever was usual before."""
    sure: bool = False
    """Whether it must lie beyond three standard deviations of its own sampling error too; unknown where that is."""
    ever: bool = False
    """Whether it must lie beyond all values before it too, those apart that are part of the same excursion."""


class Often(Node):
    """A threshold, a ratio to the baseline or a spike has held at `count` or more of the last `steps` values.

    For what comes back without ever lasting, and for levels that noise crosses.
    """

    kind: Literal["often"] = "often"
    of: Annotated[Threshold | BaselineRatio | Spike, Field(discriminator="kind")]
    count: int = Field(ge=1)
    steps: int = Field(ge=2)
    anew: bool = False
    """Whether a value counts only if the one before it did not hold: what lasts counts once."""

    @property
    def series(self) -> SeriesRef:
        return self.of.series

    @property
    def relative_to(self) -> SeriesRef | None:
        return self.of.relative_to if isinstance(self.of, Threshold) else None

    @model_validator(mode="after")
    def _possible(self) -> "Often":
        if self.count > self.steps:
            raise ValueError(f"count: {self.count} given, expected at most {self.steps}, the steps")
        return self


class Stuck(Node):
    """The series has not changed by more than `within` over the last `steps` values."""

    kind: Literal["stuck"] = "stuck"
    series: SeriesRef
    steps: int = Field(ge=5)
    within: float = Field(default=0.0, ge=0)


class Collapse(Node):
    """The series has lost what it had gained by its best level, and stays down: detect/course.py."""

    kind: Literal["collapse"] = "collapse"
    series: SeriesRef
    lost: float = Field(default=0.5, ge=0, le=1)
    """Part of what it had gained that must be gone, beside being more than its noise explains."""
    surer: float = Field(default=1.0, gt=0)
    """Factor to that: below 1 where a fall that is none for sure is enough, as of what speaks against a rule."""


class Gain(Node):
    """The series has risen from where it began by more than its noise explains, and keeps most of that.

    A reward that does thrives. With `never` it holds where the series has never risen. See detect/course.py.
    """

    kind: Literal["gain"] = "gain"
    series: SeriesRef
    never: bool = False
    """Hold where nothing has been gained at all; unknown before four fifths of the run's expected rows, or 1,000."""
    sure: bool = False
    """Hold where its levels leave no doubt now, and not where ranks alone tell it or once have: for what speaks for a
    rule, and not against it."""
    else_no: bool = False
    """Say no and not unknown while there is too little to tell: for one of several ways in which a rule may hold."""


class Absent(Node):
    """The series has not come once in the first `steps` steps of the run, or since."""

    kind: Literal["absent"] = "absent"
    series: SeriesRef
    steps: int = Field(default=20, ge=1)


class NonFinite(Node):
    """A metric is NaN or infinite, or the log-ratio of a model token is.

    `update`: what the parameters are made of, as loss, gradient, log-ratios and reward, told by the words of the
    metric's name. `gradient`: of these the gradient; `beside_gradient`: these without it. `rest`: all others, as the
    mean of a reward function that was not asked at this step.
    """

    kind: Literal["non_finite"] = "non_finite"
    of: Literal["any", "update", "gradient", "beside_gradient", "rest"] = "any"
    after: int = Field(default=0, ge=0)
    """Steps that must have been seen before."""


class MissingRank(Node):
    """A rank has not been heard of for `steps` steps; only known where ranks report through a store."""

    kind: Literal["missing_rank"] = "missing_rank"
    steps: int = Field(ge=1)


class ConfigChanged(Node):
    """A setting of the run is another than at its start; `keys` are shell patterns over dotted names."""

    kind: Literal["config_changed"] = "config_changed"
    keys: tuple[str, ...] = Field(min_length=1)


class ConfigIs(Node):
    """A setting of the run has one of `values`; `keys` are shell patterns, the first that matches counts."""

    kind: Literal["config_is"] = "config_is"
    keys: tuple[str, ...] = Field(min_length=1)
    values: tuple[str | float | bool, ...] = Field(min_length=1)


class Fired(Node):
    """At least `count` of other `rules` have fired within the last `steps` steps."""

    kind: Literal["fired"] = "fired"
    rules: tuple[str, ...] = Field(min_length=1)
    count: int = Field(ge=1)
    steps: int = Field(ge=1)


Signal: TypeAlias = Annotated[
    Growth | Threshold | BaselineRatio | Correlation | Trend | Spike | Often | Stuck | Collapse | Gain | Absent
    | NonFinite | MissingRank | ConfigChanged | ConfigIs | Fired,
    Field(discriminator="kind"),
]  # fmt: skip


class All(Node):
    """False if any part is false, else unknown if any part is, else true."""

    all: tuple["Condition", ...] = Field(min_length=1)


class AnyOf(Node):
    """True if any part is true, else unknown if any part is, else false."""

    any: tuple["Condition", ...] = Field(min_length=1)


class Not(Node):
    """The opposite; what is unknown stays unknown."""

    model_config = ConfigDict(populate_by_name=True)
    not_: "Condition" = Field(alias="not")


def _kind_of_condition(given: object) -> str | None:
    """Which of the four a condition is, so that what is wrong with it is told of that one alone."""
    if isinstance(given, str):
        return "name"
    if isinstance(given, dict):
        return next((f"{kind} of" for kind in ("all", "any", "not") if kind in given or f"{kind}_" in given), None)
    return {"All": "all of", "AnyOf": "any of", "Not": "not of"}.get(type(given).__name__)


Condition: TypeAlias = Annotated[
    Annotated[str, Tag("name")]
    | Annotated[All, Tag("all of")]
    | Annotated[AnyOf, Tag("any of")]
    | Annotated[Not, Tag("not of")],
    Discriminator(
        _kind_of_condition,
        custom_error_type="condition",
        custom_error_message="expected the name of a signal, or one of all, any and not over such",
    ),
]


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


def words(condition: Condition) -> str:
    """`condition` as a person reads it: `a and (b or not c)`."""
    match condition:
        case str():
            return condition
        case All(all=parts):
            return " and ".join(_within(part) for part in parts)
        case AnyOf(any=parts):
            return " or ".join(_within(part) for part in parts)
        case Not(not_=part):
            return f"not {_within(part)}"


def _within(part: Condition) -> str:
    """The words of a part, in parentheses where it has parts itself."""
    many = len(part.all) > 1 if isinstance(part, All) else len(part.any) > 1 if isinstance(part, AnyOf) else False
    return f"({words(part)})" if many else words(part)
