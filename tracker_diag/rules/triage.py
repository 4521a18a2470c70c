"""Triage: which link broke first, and what the whole run adds up to."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from tracker_diag.metrics.reasons import Reason
from tracker_diag.records import Histogram, WorstSequence
from tracker_diag.rules.acknowledged import Acknowledged, quiet
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.few_rows import is_judged, too_short, waiting
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident, incidents, weighed
from tracker_diag.rules.model import Severity
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.recommendation import Recommendation, recommend


def first_break(together: Iterable[Incident]) -> Finding | None:
    """The cause of the first incident above info; a fall of the outcome is one only where nothing else had begun."""
    return next((incident.cause for incident in together if incident.severity != "info"), None)


LIVE = "live"
"""The source of a run in training, which no tracker names."""


def diagnose_command(source: str) -> str:
    """The command that shows the verdict on `source` again; empty if nothing names the run."""
    return "" if source in ("", LIVE) else f"tracker-diag diagnose {shlex.quote(source)}"


@dataclass(frozen=True, repr=False)
class Summary:
    """What a run adds up to: what was found, what broke first, and which rules could not see."""

    source: str
    steps: int
    first_step: int | None
    last_step: int | None
    findings: tuple[Finding, ...]
    blind: Mapping[str, tuple[Reason, ...]]
    """Rules that could not see, and why."""
    healthy: tuple[str, ...]
    """Rules that could see and never fired."""
    caveats: tuple[str, ...] = ()
    """What keeps "nothing was found" from meaning that all was well."""
    tails: tuple[str, ...] = ()
    """Where the tails are now, a line for each pair."""
    best: tuple[Reading, ...] = ()
    """Reward and evaluation: the last level as value, the best one as baseline, its step as `at`."""
    explained: Mapping[str, str] = field(default_factory=dict)
    """Rules without a finding of their own that another finding covers: the id of its rule."""
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """The curves next to the findings, values by step: the outcomes first, then the evidence of the first break."""
    worst: tuple[WorstSequence, ...] = ()
    """The sequences behind the tails, if tensors showed them; without token ids."""
    distributions: Sequence[tuple[int, tuple[Histogram, ...]]] = ()
    """|log-ratio| of both slices at some steps of the run, and at the last one."""
    events: tuple[tuple[int, str], ...] = ()
    """By step: new baselines, and what guards did or would have done."""
    stopped: bool = False
    """Whether a guard has stopped the training."""
    judged: bool = True
    """Whether there were rows enough to judge it. If not, that no rule fired means nothing; see `short`."""
    log: tuple[str, ...] = ()
    """What is wrong with the log itself, to be known before the verdict: phases, repeated or lost rows, gaps."""
    acknowledged: tuple[Acknowledged, ...] = ()
    """What a person knows of."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the checkpoints that are registered."""
    over: bool = False
    """Whether the run has ended, as far as is known."""
    together: tuple[Incident, ...] | None = field(default=None, repr=False, compare=False)
    """The incidents of `findings`, where they are computed already."""

    @classmethod
    def of_engine(
        cls,
        engine: Engine,
        source: str,
        steps: int,
        first_step: int | None,
        last_step: int | None,
        *,
        together: tuple[Incident, ...] | None = None,
    ) -> "Summary":
        """What the rules of `engine` say; `together` are the incidents of its findings, where they are known."""
        findings, blind = tuple(engine.findings), engine.blind()
        together = incidents(findings) if together is None else together
        with_finding = {finding.rule.id for finding in findings}
        explained = {part: f.rule.id for f in findings if f.fired is not None for part in f.rule.inhibits}
        silent = [rule.id for rule in engine.rules if rule.id not in with_finding and rule.id not in blind]
        return cls(
            source,
            steps,
            first_step,
            last_step,
            tuple(weighed(findings, together)),
            blind,
            healthy=tuple(rule for rule in silent if rule not in explained),
            best=engine.best,
            explained={rule: explained[rule] for rule in silent if rule in explained},
            judged=is_judged(engine.rules, blind, steps),
            together=together,
        )

    def __str__(self) -> str:
        """One short paragraph: what broke first, and how many rules say what."""
        first, fired = self.first_break, sum(finding.fired is not None for finding in self.findings)
        quiet = "No rule fired at warn or above." if self.judged else "Too short to judge."
        head = quiet if first is None else f"Broke first: {first}"
        counts = f"{fired} findings fired, {len(self.healthy)} rules are healthy, {len(self.blind)} could not see."
        return f"{self.source}, {self.steps} steps. {head} {counts}"

    __repr__ = __str__

    shown_by: ClassVar[Callable[["Summary"], str | None] | None] = None
    """Makes what a notebook shows of it; set by `report.html`, as rules know no report."""

    def _repr_html_(self) -> str | None:
        return None if Summary.shown_by is None else Summary.shown_by(self)

    @cached_property
    def incidents(self) -> tuple[Incident, ...]:
        """What was found, as what hangs together; the first one on top."""
        return quiet(incidents(self.findings) if self.together is None else self.together, self.acknowledged)

    @cached_property
    def recommendation(self) -> Recommendation:
        """Whether the run is to continue, and if not, from which step to resume."""
        return recommend(
            self.incidents, self.best, stopped=self.stopped, judged=self.judged, checkpoints=self.checkpoints
        )

    @property
    def short(self) -> list[str]:
        """That the run is too short to judge, and how many more rows which rules need; empty where it is judged."""
        return [] if self.judged else too_short(self.steps, self.blind)

    @property
    def first_break(self) -> Finding | None:
        return first_break(self.incidents)

    @property
    def level(self) -> Severity | None:
        """Highest severity of an incident, resolved or not, that nobody acknowledged; None if there is none."""
        severities: set[Severity] = {incident.severity for incident in self.incidents if not incident.acknowledged}
        return max(severities, key=SEVERITIES.index) if severities else None

    def to_json(self) -> dict[str, object]:
        """The JSON of `tracker-diag diagnose --json` and `replay --json`."""
        first = self.first_break
        return {
            "run": {name: getattr(self, name) for name in ("source", "steps", "first_step", "last_step")},
            "judged": self.judged,
            "waiting": [pending._asdict() for pending in waiting(self.blind)],
            "incidents": [incident.to_json() for incident in self.incidents],
            "findings": [finding.to_json() for finding in self.findings],
            "first_break": first and {"rule": first.rule.id, "slice": first.slice, "onset": first.onset},
            "recommendation": self.recommendation.to_json(),
            "blind": [{"rule": rule, "reason": "; ".join(map(str, reasons))} for rule, reasons in self.blind.items()],
            "healthy": list(self.healthy),
            "explained": [{"rule": rule, "by": by} for rule, by in self.explained.items()],
            "caveats": [*self.log, *self.caveats],
            "best": [
                {"series": outcome.series, "step": outcome.at, "level": outcome.baseline, "last": outcome.value}
                for outcome in self.best
            ],
        }
