"""Cases of a rule: series in short notation, what the rule should do on them, and whether it does."""

import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import RuleError
from tracker_diag.metrics import registry
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import Rank, StatKey
from tracker_diag.metrics.statistics import statistic
from tracker_diag.metrics.yaml_files import YamlFile
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed

_TOKEN = re.compile(
    r"(?P<start>nan|inf|-?\d+(?:\.\d+)?(?:e-?\d+)?)(?:(?P<by>[+-]\d+(?:\.\d+)?(?:e-?\d+)?))?(?:x(?P<times>\d+))?"
)


def series(notation: str) -> list[float]:
    """Expand a series: `a` is one value, `axn` n + 1 of them, `a+bxn` the values a, a + b, … a + n·b.

    `nan` is a step at which a rule's case has no value.

    >>> series("0.5x2 1+0.5x2")
    [0.5, 0.5, 0.5, 1.0, 1.5, 2.0]

    Raises:
        ValueError: with the part that cannot be read.
    """
    values: list[float] = []
    for token in notation.split():
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"series: {token!r} given, expected a, axn or a+bxn")
        start, by, times = float(match["start"]), float(match["by"] or 0), int(match["times"] or 0)
        values += [start + by * i for i in range(times + 1)]
    return values


class RuleCase(BaseModel):
    """One case of a rule's test file: series in, expected steps of its changes of state out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    rule: str
    series: dict[str, str]
    """By name of the series, in the notation of `series`; all from step 0."""
    samples: int = 1000
    """Tokens behind each value of a slice."""
    non_finite: dict[int, str] = {}
    """Series that are NaN or infinite, by step."""
    missing: dict[int, str] = {}
    """Steps since a rank last reported, by its number, in the notation of `series`."""
    config: dict[int, dict[str, str | float | bool]] = {}
    """Settings of the run, by the first step at which they hold."""
    fired: dict[str, int] = {}
    """Steps at which other rules fired."""
    algorithm: Algorithm | None = None
    firing: int | Literal["never"]
    resolved: int | None = None
    onset: int | None = None
    state: Literal["unknown", "healthy", "pending", "firing"] | None = None
    """State after the last step."""
    spared: bool | None = None
    """Whether the rule's `harmless` held where it fired, so that it is a note."""

    @field_validator("series", "missing")
    @classmethod
    def _readable(cls, given: dict[Any, str]) -> dict[Any, str]:
        for notation in given.values():
            series(notation)
        return given

    @field_validator("series")
    @classmethod
    def _known(cls, given: dict[str, str]) -> dict[str, str]:
        for name in given:
            *_, last = name.split("/")
            statistic(last) if "/" in name else registry.training(name)
        return given


def check_rule(rule: Rule, case: RuleCase, settings: GrowthSettings | None = None) -> list[str]:
    """The differences between what `rule` does and what `case` expects, one sentence each; empty if there are none."""
    engine = Engine([rule], settings, case.algorithm)
    columns = {StatKey.parse(name) or name: series(notation) for name, notation in case.series.items()}
    missing = {Rank(number, "host"): series(notation) for number, notation in case.missing.items()}
    fired: list[Finding] = []
    resolved: list[int] = []
    for step in range(max(map(len, (*columns.values(), *missing.values())), default=0)):
        row = {name: values[step] for name, values in columns.items() if step < len(values)}
        now = {
            name: Scalar(name, value, case.samples, 0.0) if "/" in name else Scalar(name, value)
            for name, value in row.items()
            if not math.isnan(value)
        }
        bad = (case.non_finite[step],) if step in case.non_finite else ()
        silent = {rank: int(values[step]) for rank, values in missing.items() if step < len(values) and values[step]}
        config = {key: value for since, part in case.config.items() if since <= step for key, value in part.items()}
        past = {name: at for name, at in case.fired.items() if at <= step}
        observed = Observed(step, now, bad, missing=silent if missing else None, config=config, fired=past)
        for finding in engine.evaluate(observed):
            if finding.state == "firing":
                fired.append(finding)
            elif finding.state == "resolved":
                resolved.append(step)
    state = engine.states()[rule.id]
    first = fired[0] if fired else None
    actual = {
        "firing": first.fired if first else "never",
        "resolved": resolved[0] if resolved else None,
        "onset": first.onset if first else None,
        "state": state,
        "spared": first.spared if first else None,
    }
    wrong = [
        f"{field}: {value}, expected {wanted}"
        for field, value in actual.items()
        if (wanted := getattr(case, field)) is not None and wanted != value
    ]
    if wrong and state == "unknown":
        wrong.append(f"the rule was blind: {engine.blind().get(rule.id, ('after it had seen',))[0]}")
    return wrong


_CASES = TypeAdapter(tuple[RuleCase, ...])


def load_cases(file: Path, rule: Rule) -> tuple[RuleCase, ...]:
    """The cases of `rule` in `file`.

    Raises:
        RuleError: "file:line: field: what is wrong", if the file cannot be used.
    """
    given = YamlFile.load(file, RuleError)
    if not isinstance(given.data, list) or not given.data:
        raise RuleError(f"{file}:1: {type(given.data).__name__} given, expected a list of cases, at least one")
    try:
        cases = _CASES.validate_python(tuple(given.data))
    except ValidationError as error:
        raise RuleError(given.refused(error, lambda _: RuleCase.model_fields)) from error
    for i, case in enumerate(cases):
        if case.rule != rule.id:
            line = given.line((i, "rule"))
            raise RuleError(f"{file}:{line}: {i}.rule: {case.rule!r} given, expected {rule.id}, as the file is named")
    return cases
