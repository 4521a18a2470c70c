"""Alerts: which incidents a person is told of, once each, again when they get worse, and when they are over."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident, explains, incidents, reaches
from tracker_diag.rules.model import Rule, Severity

TITLE = 63
"""Characters of a title that W&B takes."""

Identity: TypeAlias = tuple[str, str | None, str, int]


def alerts(finding: Finding) -> bool:
    """Whether a person is to be told: it fired, at warn or above, and nothing firing explains it."""
    return finding.state == "firing" and finding.rule.severity != "info" and finding.inhibited_by is None


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

    def notices(self, step: int, changed: Sequence[Finding], findings: Collection[Finding]) -> list[Notice]:
        """What is to be told at `step`, where `changed` of all the run's `findings` did."""
        if not any(one.state != "pending" for one in changed):
            return []
        news: list[tuple[Incident, str]] = []
        ended: list[Incident] = []
        for incident in incidents([one for one in findings if identity(one) in self._open or reaches(one, step)]):
            told = [one for one in incident.findings if identity(one) in self._open]
            loud = [one for one in incident.findings if alerts(one)]
            if not loud:
                if told:
                    ended.append(incident)
                    self._forget(incident)
                continue
            if not told and all(self._rests(one, step) for one in loud):
                continue
            why = self._why_again(incident, told) if told else ""
            if why is not None:
                news.append((incident, why))
            for one in loud:
                if identity(one) not in self._open:
                    self._told[identity(one)[:3]] = step
                self._open[identity(one)] = incident.severity
        fired = [_fired(step, news)] if news else []
        return [*fired, _ended(step, ended)] if ended else fired

    def _why_again(self, incident: Incident, told: Sequence[Finding]) -> str | None:
        """Why an incident of which `told` are known is told once more, if it is."""
        open_at = [SEVERITIES.index(self._open[identity(one)]) for one in told]
        if max(open_at) < SEVERITIES.index(incident.severity):
            return "This was told before, and has become worse."
        parts = [] if identity(incident.cause) in self._open else _parts(incident.cause, told)
        return f"This is what lies behind {', '.join(parts)}." if parts else None

    def _rests(self, finding: Finding, step: int) -> bool:
        last = self._told.get(identity(finding)[:3])
        return last is not None and step - last < finding.rule.cooldown_steps

    def _forget(self, incident: Incident) -> None:
        for finding in incident.findings:
            self._open.pop(identity(finding), None)

    def state_dict(self) -> dict[str, Any]:
        return {
            "told": [[*about, step] for about, step in self._told.items()],
            "open": [[*identity, severity] for identity, severity in self._open.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._told = {(rule, pair, slice): step for rule, pair, slice, step in state["told"]}
        self._open = {(rule, pair, slice, onset): severity for rule, pair, slice, onset, severity in state["open"]}


def _parts(cause: Finding, told: Sequence[Finding]) -> list[str]:
    """Rules among `told` that are a part of what `cause` names."""
    return sorted({one.rule.id for one in told if explains(cause, one)})


def _fired(step: int, news: Collection[tuple[Incident, str]]) -> Notice:
    told = sorted(news, key=lambda one: (-SEVERITIES.index(one[0].severity), one[0].onset))
    (first, why), *others = told
    text = [why, *_told(first)] if why else _told(first)
    text += [f"Also: {_heading(one.cause)}. {one.summary}." for one, _ in others]
    return Notice(step, first.severity, _heading(first.cause)[:TITLE], "\n".join(text))


def _told(incident: Incident) -> list[str]:
    """What stands in a notice of `incident`, line by line."""
    cause = incident.cause
    text = [
        f"{cause.summary}.",
        f"{cause.rule.name} ({cause.rule.link}), onset at step {cause.onset}, fired at {cause.fired}.",
    ]
    text += [f"Damage, since step {one.onset}: {one.summary}." for one in incident.damage]
    text += [f"With it: {_heading(one)}. {one.summary}." for one in incident.symptoms if alerts(one)]
    return [*text, *advice(cause.rule)]


def advice(rule: Rule) -> list[str]:
    """What to do first, if the rule says so, and the command that tells all of it; none shows a rule made in Python."""
    first = [f"First: {rule.remedy[0]}"] if rule.remedy else []
    if rule.own and rule.file is None:
        return first
    place = f" --rules {shlex.quote(str(rule.file))}" if rule.own else ""
    return [*first, f"More: tracker-diag rules show {rule.id}{place}"]


def _ended(step: int, over: Sequence[Incident]) -> Notice:
    parts = [finding for incident in over for finding in incident.findings if finding.rule.severity != "info"]
    text = [f"{_heading(one)}: from step {one.onset} to {one.resolved}." for one in parts if one.resolved is not None]
    return Notice(step, "info", f"{_short(over[0].cause)}: resolved"[:TITLE], "\n".join(text))


def _heading(finding: Finding) -> str:
    return f"{_short(finding)}: {finding.rule.title}"


def _short(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.slice}"
