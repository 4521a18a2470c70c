"""What a finished run logged, as inputs of a judge, and what fired in it live."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracker_diag.metrics.keys import canonical
from tracker_diag.metrics.own import CANARY, SAMPLES
from tracker_diag.metrics.reasons import not_observed
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import Pair, StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import STATE_VALUES
from tracker_diag.rules.judge import StepInputs
from tracker_diag.rules.loader import catalog

RULE = f"{PREFIX}rule/"
FIRING, HEALTHY = STATE_VALUES["firing"], STATE_VALUES["healthy"]
NONFINITE = f"{PREFIX}health/nonfinite_tokens"
"""The number of NaN or infinite tokens up to a step."""


@dataclass(frozen=True)
class LiveFinding:
    """A rule that fired in the live run. If only metrics are left, its place is not known."""

    rule: str
    fired: int
    slice: str | None = None
    onset: int | None = None
    resolved: int | None = None
    severity: str = "warn"
    """If only metrics are left, the severity of the rule, if that is known."""

    def __str__(self) -> str:
        place = f" on {self.slice}" if self.slice else ""
        since = f" since step {self.onset}," if self.onset is not None else ""
        end = f", resolved at {self.resolved}" if self.resolved is not None else ""
        return f"{self.rule}{place}:{since} fired at step {self.fired}{end}"


def is_ours(key: str) -> bool:
    """Whether a key is one of the diagnostics' own."""
    return key.startswith(PREFIX)


def statistics(row: Mapping[str, float]) -> Iterator[tuple[StatKey, Scalar]]:
    """The statistics of slices in one row, each with its number of tokens."""
    for key, value in row.items():
        stat = StatKey.parse(key.removeprefix(PREFIX)) if is_ours(key) else None
        if stat is not None:
            n = row.get(f"{PREFIX}{stat.pair}/{stat.slice}/count")
            yield stat, Scalar(stat, value, None if n is None else int(n))


def sampled(row: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The counts of samples and the canary's values in one row, by canonical name."""
    for key, value in row.items():
        if key.startswith((SAMPLES, CANARY)) and (name := canonical(key.removeprefix(SAMPLES).removeprefix(CANARY))):
            yield name, value


def inputs_of(rows: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[int, StepInputs]]:
    """Each of `rows` as input of a judge: the trainer's metrics, statistics of slices, aggregates of samples."""
    there: set[Pair] = {key.pair for row in rows.values() for key, _ in statistics(row)}
    absent = not_observed(there) if there else {}  # without any statistics nothing is known
    broken_tokens = 0.0
    for step, row in rows.items():
        broken: list[str] = []
        if row.get(NONFINITE, broken_tokens) > broken_tokens:
            broken_tokens = row[NONFINITE]
            broken.append(NONFINITE.removeprefix(PREFIX))
        yield (
            step,
            StepInputs(
                {key: value for key, value in row.items() if not is_ours(key)},
                dict(statistics(row)),
                {name: Scalar(name, value) for name, value in sampled(row)},
                broken,
                absent=absent,
            ),
        )


def live_findings(rows: Mapping[int, Mapping[str, float]], listed: Iterable[Mapping[str, Any]]) -> list[LiveFinding]:
    """What fired live, the earliest first: the run's list of findings, and the logged states of other rules."""
    usual = defaultdict(lambda: "warn", {rule.id: str(rule.severity) for rule in catalog()})
    live = [
        LiveFinding(
            **{name: entry[name] for name in ("rule", "fired", "slice", "onset", "resolved")},
            severity=entry.get("severity", usual[entry["rule"]]),
        )
        for entry in listed
        if entry.get("fired") is not None
    ]
    known = {finding.rule for finding in live}
    firing: dict[str, int] = {}
    for step, row in rows.items():
        for key, value in row.items():
            rule = key.removeprefix(RULE) if key.startswith(RULE) else None
            if rule is None or rule in known:
                continue
            if value == FIRING:
                firing.setdefault(rule, step)
            elif value == HEALTHY and rule in firing:
                live.append(LiveFinding(rule, firing.pop(rule), resolved=step, severity=usual[rule]))
    live += [LiveFinding(rule, step, severity=usual[rule]) for rule, step in firing.items()]
    return sorted(live, key=lambda finding: (finding.fired, finding.rule))
