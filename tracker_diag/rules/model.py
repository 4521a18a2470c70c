"""What a rule file may say. Data only: nothing in it is ever evaluated as code."""

import dataclasses
import json
import re
import string
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, TypeAdapter, field_validator, model_validator

from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import Pair
from tracker_diag.rules.compiled import CATALOG
from tracker_diag.rules.conditions import Ways, named
from tracker_diag.rules.nodes import Node, SeriesRef, SliceName
from tracker_diag.rules.shared import with_shared
from tracker_diag.rules.signals import AnySignal
from tracker_diag.rules.signals.base import Signal

Severity: TypeAlias = Literal["info", "warn", "error"]
"""By consequence. info: something moved. warn: the update is being harmed, or will be. error: the outcome is harmed."""

Link: TypeAlias = Literal[
    "environment", "evaluation", "reward", "advantage", "policy_update",
    "critic", "exploration", "freshness", "numerics", "resources", "outcome",
]  # fmt: skip
"""The link of the training loop that a rule belongs to, in diagnostic order; the outcome is the damage, no cause."""

READING_FIELDS: dict[str, float | str] = {"value": 1.0, "baseline": 1.0, "ratio": 1.0, "n": 1, "at": 1, "series": ""}
"""What a summary may show of a signal, each with one of its kind."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a rule was read. It is no part of the rule: the same text from two files is the same rule."""

    file: Path | None = dataclasses.field(default=None, compare=False)
    line: int = dataclasses.field(default=1, compare=False)


class Rule(Node):
    """A pathology: the signals that tell it, and what a person should know and do about it.

    A rule of your own needs `id`, `title`, `signals`, the ways in which it holds under `when`, and `summary`.
    """

    id: str = Field(pattern=r"^[A-Z]{2,4}\d{3}$")
    """Two to four capitals and three digits."""
    name: str = Field(default="", pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    """Words with hyphens between; made from the title if left out."""
    title: str = Field(min_length=1, max_length=44)
    """Heading of the alert; W&B takes 64 characters with id and slice before it."""
    link: Link = "policy_update"
    """Decides among rules that broke at the same step, and groups them. policy_update if left out: it is what the
    others lead to, and where a warning says that harm is done."""
    status: Literal["experimental", "stable", "deprecated"] = "experimental"
    severity: Severity = "warn"
    """info: shown in the table only. warn: look today. error, of a stable rule: what follows is likely wasted. An
    incident of a rule above info is an error as soon as it harms the outcome."""
    pairs: tuple[Pair, ...] = ()
    """The rule is held against each of these pairs on its own."""
    slices: tuple[SliceName, ...] = ("all",)
    """And against each of these slices; they are what its findings are about."""
    algorithms: tuple[Algorithm, ...] = ()
    """The rule is for these alone; for all if none is named, or if the run's is not known."""
    description: str = Field(default="", pattern=r"^(Detects |$)")
    rationale: str = ""
    """Why it is bad."""
    signals: dict[str, AnySignal] = Field(min_length=1)
    """What the rule looks at; each is a row of its evidence, under the name it is given here. Shared ones need not be
    given: their name is enough."""
    predicates: dict[str, Ways] = Field(default_factory=dict[str, Ways])
    """Names for what the rule's ways have in common: lists of ways over signals and other predicates."""
    when: Ways = Field(min_length=1)
    """The ways in which the rule holds; any of them is enough."""
    support: tuple[str, ...] = ()
    """Signals that are shown as evidence and decide nothing."""
    harmless: Ways = ()
    """While any of these ways holds where the rule fires, the finding is of severity info: something moved, and no harm
    is seen. From the first step on that none does, the finding is of the rule's severity, and stays so."""
    for_steps: int = Field(default=1, ge=1)
    """Steps that it must hold before the rule fires; until then it is pending. A step on which it does not
    hold takes three of them back."""
    keep_firing_steps: int = Field(default=10, ge=0)
    """Steps that it must fail before a firing rule is resolved."""
    cooldown_steps: int = Field(default=100, ge=0)
    """Steps after an alert in which the rule is not alerted again on the same slice; its findings are kept."""
    summary: str
    """One sentence over the readings, `{signal.field}`, with `{slice}` and `{pair}`."""
    remedy: tuple[str, ...] = ()
    """What to do, cheapest check first."""
    false_positives: tuple[str, ...] = ()
    """When it fires and nothing is wrong."""
    calibration: str = ""
    """Where the numbers come from."""
    references: tuple[str, ...] = ()
    inhibits: tuple[str, ...] = ()
    """Its parts: rules that are not alerted while this one fires on the same slice; `all` covers every slice."""
    leads_to: tuple[str, ...] = ()
    """What it brings about: rules that are symptoms of one incident with it, and no alert of their own."""
    format: Literal[2] = 2
    """Version of this form; a file of another one is refused."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: object) -> None:
        if isinstance(context, Origin):
            self._origin = context

    @property
    def file(self) -> Path | None:
        """Where the rule was read; None for one that was made in Python."""
        return self._origin.file

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self._origin.line}" if self.file else f"Rule(id={self.id!r}) in Python"

    @property
    def own(self) -> bool:
        """Whether it is none of those that come with tracker_diag."""
        return self.file is None or self.file.resolve().parent != CATALOG

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Refuse a rule of the old form; give a rule its name, and the shared signals and predicates that it names."""
        if not isinstance(given, dict):
            return given
        if "condition" in given:
            raise ValueError("condition: a rule of form 1 given, expected `when` of form 2; see docs/own-rules.md")
        if "name" not in given and isinstance(given.get("title"), str):
            words = "-".join(re.findall(r"[a-z0-9]+", given["title"].lower()))
            given = {**given, "name": words or str(given.get("id", "")).lower()}  # a title may have no such letters
        return with_shared(given)

    @field_validator("format", mode="before")
    @classmethod
    def _of_this_version(cls, version: object) -> object:
        if version != 2:
            raise ValueError(f"{version!r} given, expected 2; the rule was written for another version of tracker_diag")
        return version

    @field_validator("summary")
    @classmethod
    def _plain_fields(cls, summary: str) -> str:
        for _, name, _, _ in string.Formatter().parse(summary):
            if name is not None and not re.fullmatch(r"slice|pair|\w+\.\w+", name):
                raise ValueError(f"{{{name}}}: expected {{signal.field}}, {{slice}} or {{pair}}")
        return summary

    @model_validator(mode="after")
    def _names_agree(self) -> "Rule":
        known = {*self.signals, *self.predicates}
        used = {*self.support, *named(self.when), *named(self.harmless)}
        used |= {name for ways in self.predicates.values() for name in named(ways)}
        if used != known:
            unknown, unused = sorted(used - known), sorted(known - used)
            raise ValueError(f"when: unknown signals or predicates {unknown}; defined and not used {unused}")
        _refuse_circles(self.predicates)
        for _, name, spec, _ in string.Formatter().parse(self.summary):
            signal, _, field = (name or "slice").partition(".")
            if field and (signal not in self.signals or field not in READING_FIELDS):
                fields = ", ".join(sorted(READING_FIELDS))
                raise ValueError(f"summary: {{{name}}}: expected a signal of this rule and one of {fields}")
            if field:
                _try_format(f"{name}:{spec}", READING_FIELDS[field], spec or "")
        if self.status == "experimental" and self.severity == "error":
            raise ValueError("severity: error given, expected at most warn of an experimental rule; see `status`")
        needs_pair = any(ref.stat and not ref.pair for ref in self.series())
        if needs_pair and not self.pairs:
            raise ValueError("pairs: nothing given, expected the pairs that the series without one are about")
        return self

    @cached_property
    def signal_data(self) -> dict[str, str]:
        """Each signal by its name, as JSON: signals with the same data, at the same place, are one."""
        return {name: _DATA.dump_json(signal, exclude_none=True).decode() for name, signal in self.signals.items()}

    def series(self) -> Iterator[SeriesRef]:
        """All series that the rule reads."""
        return (ref for _, ref in self.reads())

    def reads(self) -> Iterator[tuple[Signal, SeriesRef]]:
        """The same, each with the signal that reads it."""
        return ((signal, ref) for signal in self.signals.values() for ref in signal.refs())


_DATA: TypeAdapter[Signal] = TypeAdapter(AnySignal)


def _refuse_circles(predicates: Mapping[str, Ways]) -> None:
    """Raise ValueError if a predicate is made of itself."""
    left = dict(predicates)
    while left:
        settled = [name for name, ways in left.items() if left.keys().isdisjoint(named(ways))]
        if not settled:
            raise ValueError(f"predicates: {', '.join(left)} are made of each other, expected no circle")
        for name in settled:
            del left[name]


def _try_format(field: str, value: float | str, spec: str) -> None:
    try:
        format(value, spec)
    except ValueError as error:
        raise ValueError(f"summary: {{{field}}}: {error}") from error


SCHEMA = "rule.schema.json"
"""Name of the file with the JSON Schema; rule files point to it."""
SCHEMA_VERSION = 1
"""Of the form of a rule file. It rises if a field has to go or to change its meaning."""


def schema() -> str:
    """The JSON Schema of a rule file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "version": SCHEMA_VERSION}
    return json.dumps(head | Rule.model_json_schema(), indent=1, ensure_ascii=False) + "\n"
