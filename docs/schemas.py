"""JSON Schemas of what scripts read and write: the JSON of `diagnose`, a row of a token table, saved state.

A key stays once it is there; new ones may join. If one had to go, the version would rise.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tracker_diag.metrics.series import Pair
from tracker_diag.monitor.monitor import STATE_VERSION
from tracker_diag.rules.findings import State
from tracker_diag.rules.model import Link, Severity
from tracker_diag.rules.recommendation import Action
from tracker_diag.rules.record import Tier
from tracker_diag.trackers.tokens.columns import KINDS, LOGPROB_COLUMNS, REQUIRED

VERSION = 1
"""Of the JSON of `diagnose` and of the token table."""


class Part(BaseModel):
    """A JSON object; keys that are not listed may join."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class Source(Part):
    """The run."""

    source: str
    """Where it was read from, without a password."""
    steps: int
    """Rows."""
    first_step: int | None
    last_step: int | None


class Evidence(Part):
    """What a signal said when the finding fired, or last."""

    signal: str
    series: str
    holds: bool | None
    """null: it could not see."""
    value: float | None
    baseline: float | None
    n: int | None
    """Tokens, for a statistic of a slice."""


class Place(Part):
    """A rule on a slice."""

    rule: str
    slice: str
    onset: int


class Named(Place):
    """A finding of an incident, by its name."""

    pair: Pair | None


class Found(Part):
    """A finding."""

    rule: str
    name: str
    link: Link
    tier: Tier
    pair: Pair | None
    slice: str
    severity: Severity
    state: State
    onset: int
    """The step at which the change began, as the signals date it."""
    fired: int | None
    """The step at which it was detected; null while it is pending."""
    resolved: int | None
    summary: str
    evidence: list[Evidence]
    remedy: list[str]
    inhibited_by: str | None


class Together(Part):
    """An incident."""

    id: str
    severity: Severity
    onset: int
    state: Literal["firing", "resolved"]
    acknowledged: str | None
    """Why it needs no action, as a person said."""
    cause: Named
    symptoms: list[Named]
    damage: list[Named]
    cell: str | None
    """The tool, environment or other cell that it is about."""
    summary: str


class Advice(Part):
    """Whether the run may continue."""

    action: Action
    go_on: bool
    last_good_step: int | None
    says: str
    target: str = "reward"
    """The outcome that decides, such as the reward or an evaluation."""


class Blind(Part):
    """A rule that could not see."""

    rule: str
    reason: str


class Diagnosis(Part):
    """What `tracker-diag diagnose --json` and `replay --json` print."""

    run: Source
    judged: bool
    """Whether there were rows enough; if not, an empty list of findings means nothing."""
    incidents: list[Together]
    findings: list[Found]
    first_break: Place | None
    recommendation: Advice
    blind: list[Blind]
    healthy: Annotated[list[str], Field(description="Rules that had their inputs and did not hold.")]


TYPES = {
    "integer": ["integer"],
    "boolean": ["boolean", "integer"],
    "floating": ["number", "null"],
    "string": ["string", "null"],
    "string or integer": ["string", "integer", "null"],
}
"""JSON types of each kind of column."""


def tokens() -> dict[str, Any]:
    """The schema of a row of a token table."""
    return {
        "title": "Token",
        "description": "A row of a token table, one token: Parquet, or JSON Lines.",
        "type": "object",
        "properties": {name: {"type": TYPES[kind]} for name, kind in KINDS.items()},
        "required": list(REQUIRED),
        "anyOf": [{"required": [name]} for name in LOGPROB_COLUMNS],
    }


def state() -> dict[str, Any]:
    """The schema of saved state: what is in it is ours, and of one version alone."""
    return {
        "title": "State",
        "description": "What `state_dict` gives and `load_state_dict` takes: strings, numbers, lists and objects.",
        "type": "object",
        "properties": {"version": {"const": STATE_VERSION}, "judge": {"type": "object"}},
        "required": ["version", "judge"],
    }


def written(schema: dict[str, Any], version: int) -> str:
    """A schema as it is in its file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "version": version}
    return json.dumps(head | schema, indent=1, ensure_ascii=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "schemas/diagnosis.schema.json": lambda: written(Diagnosis.model_json_schema(), VERSION),
    "schemas/token.schema.json": lambda: written(tokens(), VERSION),
    "schemas/state.schema.json": lambda: written(state(), STATE_VERSION),
}
