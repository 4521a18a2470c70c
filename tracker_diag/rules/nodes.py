"""The smallest parts of a rule: its base class and the name of a series. Data only: nothing is evaluated as code."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from tracker_diag.errors import UnknownName
from tracker_diag.metrics import registry
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import ALL, ANY, KNOWN, PAIRS, Pair, SeriesKey, StatKey
from tracker_diag.metrics.statistics import STATISTICS, statistic

_METRICS = frozenset(metric.name for metric in registry.TRAINING)


def _known_slice(name: str) -> str:
    if name not in (*KNOWN, *ANY):
        raise UnknownName("slice", name, (*KNOWN, *ANY))
    return name


SliceName: TypeAlias = Annotated[str, AfterValidator(_known_slice)]

Limit: TypeAlias = float | dict[Algorithm | Literal["other"], float]
"""One limit, or one for each algorithm; without an entry for the run's, or if that is unknown, `other`."""

CLOSED = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
"""Closed to unknown fields, so that a typo is an error and not a blind rule.

The text below a field is its description in the JSON Schema, which an editor shows.
"""


@dataclass(frozen=True)
class OrText:
    """Says in the JSON Schema that a text may be given instead."""

    description: str

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "description": self.description}, handler(core_schema)]}


class Node(BaseModel):
    """A frozen part of a rule, closed to unknown fields."""

    model_config = CLOSED


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

    @classmethod
    def parse(cls, text: str) -> "SeriesRef":
        """The series that `text` names: `reward`, `p95`, `text_only/p95` or `policy/text_only/p95`.

        A name alone that both a metric and a statistic have is that of the metric.

        Raises:
            UnknownName: there is no such metric, statistic, slice or pair.
        """
        *place, name = text.split("/")
        if not place and (name not in STATISTICS or name in _METRICS):
            return cls(metric=name)
        pair = place.pop(0) if place and place[0] in PAIRS else None
        return cls.model_validate({"stat": name, "pair": pair, "slice": "/".join(place) or None})

    def key(self, pair: Pair | None, slice: SliceName) -> SeriesKey:
        """Name of the series, with the rule's `pair` and `slice` where it leaves them out; of a tool, its own."""
        own = self.pair or pair
        if self.stat is None or own is None:  # a rule without a pair reads metrics alone
            return str(self.metric) + (f":{slice.partition(':')[2]}" if self.of_cell(slice) else "")
        return StatKey(own, self.slice or slice, self.stat)

    def of_cell(self, slice: SliceName) -> bool:
        """Whether it means a metric of `slice` alone, such as a tool, and not that of all."""
        return (
            self.metric is not None
            and self.slice is None
            and registry.training(self.metric).per == slice.partition(":")[0]
        )

    @property
    def definition(self) -> registry.Metric:
        return registry.training(self.metric) if self.metric else statistic(str(self.stat))
