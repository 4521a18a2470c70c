"""What a rule file may say. Data only: nothing in it is ever evaluated as code."""

import re
import string
from collections.abc import Iterator
from typing import Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from tracker_diag.metrics.series import Pair
from tracker_diag.rules.nodes import Algorithm, Condition, Node, SeriesRef, Signal, SliceName, names

Severity: TypeAlias = Literal["info", "warn", "error"]
"""info: shown in the table only. warn: look today. error: steps from here on are likely wasted."""

Link: TypeAlias = Literal[
    "environment", "evaluation", "reward", "advantage", "policy_update",
    "critic", "exploration", "freshness", "numerics", "resources",
]  # fmt: skip
"""The link of the training loop that a rule belongs to, in diagnostic order."""

READING_FIELDS = frozenset({"value", "baseline", "ratio", "n", "series"})


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
    algorithms: tuple[Algorithm, ...] = ()
    """The rule is for these alone; for all if none is named, or if the run's is not known."""
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
    cooldown_steps: int = Field(default=100, ge=0)
    """Steps after an alert in which the rule is not alerted again on the same slice; its findings are kept."""
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
            for field in ("series", "relative_to", "other"):
                ref = getattr(signal, field, None)
                if ref is not None:
                    yield ref
