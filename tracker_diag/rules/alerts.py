"""Alerts: which incidents a person is told of, once each, again when they get worse, and when they are over."""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tracker_diag.rules.findings import Finding, Reading
from tracker_diag.rules.incidents import DAMAGE, SEVERITIES, Incident, explains, incidents
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.recommendation import Recommendation, recommend

TITLE = 63
"""Characters of a title that W&B takes."""

MOST = 256
"""Findings that are over, of which incidents are made while the run goes on: the last ones."""

Identity: TypeAlias = tuple[str, str | None, str, int]


def alerts(finding: Finding) -> bool:
    """Whether a person is to be told: it fired, at warn or above, and nothing firing explains it."""
    return finding.state == "firing" and finding.severity != "info" and finding.inhibited_by is None


def identity(finding: Finding) -> Identity:
    """What makes two states of a finding the same finding."""
    return finding.rule.id, finding.pair, finding.slice, finding.onset


@dataclass(frozen=True)
class Notice:
    """What a person is told at one step: the incidents that fired there or got worse, or those that ended."""

    step: int
    level: Severity
    title: str
    """Under 64 characters, as W&B asks."""
    text: str
    id: str = ""
    """What tells it from every other one, where it may be sent twice; a receiver can tell by it."""


class HasFindings(Protocol):
    """What has all findings of a run by their onset, and the best levels of its outcomes, as an Engine."""

    @property
    def findings(self) -> list[Finding]: ...

    @property
    def best(self) -> tuple[Reading, ...]: ...


class Alerts:
    """Turns changes of findings into notices.

    One incident is one notice, whatever joins it later; another one when it becomes an error or when its cause turns
    out to be more than was told, and one at its end. What is to be told at one step makes one notice, the severest of
    the earliest onset on top. A rule that comes and goes on one slice begins a new incident only `cooldown_steps` after
    it was last told.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str | None, str], int] = {}
        self._open: dict[Identity, Severity] = {}
        """Findings of the incidents that were told and are not over, and how severe each was then."""
        self._due: int | None = None
        """The step from which on one that rests may be told."""

    def notices(self, step: int, changed: Sequence[Finding], run: HasFindings) -> list[Notice]:
        """What is to be told at `step`, where `changed` of all the run's findings did."""
        due = self._due is not None and step >= self._due
        if not due and not any(one.state != "pending" for one in changed):
            return []
        findings = run.findings  # an engine collects and sorts them anew each time
        known = {identity(one) for one in findings}
        self._open = {name: severity for name, severity in self._open.items() if name in known}
        self._due = None
        news: list[tuple[Incident, str]] = []
        ended: list[Incident] = []
        found = incidents(recent(findings))
        for incident in found:
            told = [one for one in incident.findings if identity(one) in self._open]
            loud = [one for one in incident.findings if alerts(one)]
            why = self._why(incident, told, loud, step) if loud else None
            if why is not None:
                news.append((incident, why))
                self._told |= {identity(one)[:3]: step for one in loud if identity(one) not in self._open}
            if told or why is not None:
                self._open |= {identity(one): incident.severity for one in loud}
            if told and not any(one.state == "firing" and one.severity != "info" for one in incident.findings):
                ended.append(incident)
                self._forget(incident)
        fired = [_fired(step, news, recommend(found, run.best))] if news else []
        return [*fired, _ended(step, ended)] if ended else fired

    def _why(self, incident: Incident, told: Sequence[Finding], loud: Sequence[Finding], step: int) -> str | None:
        """Why an incident is told at `step`, of which `told` are known and `loud` firing; None if it is not."""
        cause = incident.cause
        if not told:
            rests_until = min(self._told.get(identity(one)[:3], -math.inf) + one.rule.cooldown_steps for one in loud)
            if step >= rests_until:
                return ""
            self._due = int(min(self._due or rests_until, rests_until))
            return None
        open_at = [SEVERITIES.index(self._open[identity(one)]) for one in told]
        if max(open_at) < SEVERITIES.index(incident.severity):
            return "This was told before, and has become worse."
        if not alerts(cause) or identity(cause) in self._open:
            return None
        if all(one.rule.link == DAMAGE for one in told) and cause.rule.link != DAMAGE:
            return "The fall that was told before comes of this."
        parts = sorted({one.rule.id for one in told if explains(cause, one)})
        return f"This is what lies behind {', '.join(parts)}." if parts else None

    def _forget(self, incident: Incident) -> None:
        for finding in incident.findings:
            self._open.pop(identity(finding), None)

    def state_dict(self) -> dict[str, Any]:
        return {
            "told": [[*about, step] for about, step in self._told.items()],
            "open": [[*identity, severity] for identity, severity in self._open.items()],
            "due": self._due,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._told = {(rule, pair, slice): step for rule, pair, slice, step in state["told"]}
        self._open = {(rule, pair, slice, onset): severity for rule, pair, slice, onset, severity in state["open"]}
        self._due = state["due"]


def recent(findings: Sequence[Finding]) -> list[Finding]:
    """Those that an incident of now may be made of: all but what came and went long ago in a run of many findings."""
    early = len(findings) - MOST
    return [one for i, one in enumerate(findings) if i >= early or one.state == "firing"]


def _fired(step: int, news: Collection[tuple[Incident, str]], what_now: Recommendation | None) -> Notice:
    told = sorted(news, key=lambda one: (-SEVERITIES.index(one[0].severity), one[0].onset))
    (first, why), *others = told
    # What came back is told by what fires now, and not by how it began the first time.
    lead = first.cause if why or alerts(first.cause) else next(filter(alerts, first.findings))
    text = [why, *_told(first, lead)] if why else _told(first, lead)
    text += [f"Also: {_heading(one.cause)}. {one.summary}." for one, _ in others]
    text += [f"Go on? {what_now.says}."] if what_now else []
    text += advice(lead.rule)
    return Notice(step, first.severity, _heading(lead)[:TITLE], "\n".join(text))


def _told(incident: Incident, lead: Finding) -> list[str]:
    """What stands in a notice of `incident`, line by line, with `lead` on top."""
    text = [
        f"{lead.summary}.",
        f"{lead.rule.name} ({lead.rule.link}), onset at step {lead.onset}, fired at {lead.fired}.",
    ]
    text += [f"Damage, since step {one.onset}: {one.summary}." for one in incident.damage]
    return text + [
        f"With it: {_heading(one)}. {one.summary}." for one in incident.symptoms if alerts(one) and one is not lead
    ]


def advice(rule: Rule) -> list[str]:
    """What to do first, if the rule says so, and the command that tells all of it; none shows a rule made in Python."""
    first = [f"First: {rule.remedy[0]}"] if rule.remedy else []
    if rule.own and rule.file is None:
        return first
    place = f" --rules {shlex.quote(str(rule.file))}" if rule.own else ""
    return [*first, f"More: tracker-diag rules show {rule.id}{place}"]


def _ended(step: int, over: Sequence[Incident]) -> Notice:
    parts = [finding for incident in over for finding in incident.findings if finding.severity != "info"]
    text = [f"{_heading(one)}: from step {one.onset} to {one.resolved}." for one in parts if one.resolved is not None]
    return Notice(step, "info", f"{_short(over[0].cause)}: resolved"[:TITLE], "\n".join(text))


def _heading(finding: Finding) -> str:
    return f"{_short(finding)}: {finding.rule.title}"


def _short(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.slice}"
