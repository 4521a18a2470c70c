"""Alerts: which incidents a person is told of, once each, again when they get worse, and when they are over."""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracker_diag.rules.findings import Finding, Identity, identity
from tracker_diag.rules.incidents import DAMAGE, SEVERITIES, Incident, explains
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.recommendation import Recommendation, recommend

TITLE = 63
"""Characters of a title that W&B takes."""

PLACE = 30
"""Characters of a rule and its slice that stand behind what has become worse."""

CALLED: Mapping[Severity, str] = {"info": "a note", "warn": "a warning", "error": "an error"}

MOST = 256
"""Findings that are over, of which incidents are made while the run goes on: the last ones."""


def alerts(finding: Finding) -> bool:
    """Whether a person is to be told: it fired, at warn or above, and nothing firing explains it."""
    return finding.state == "firing" and finding.severity != "info" and finding.inhibited_by is None


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


@dataclass(frozen=True)
class _News:
    """An incident that is to be told."""

    incident: Incident
    why: str = ""
    """What it has to do with what was told before; empty where nothing was."""
    worse: Finding | None = None
    """What has made it worse than when it was told."""


class HasFindings(Protocol):
    """A run with its findings by onset, its incidents, the best levels of its outcomes, its checkpoints: a `Judge`."""

    @property
    def findings(self) -> list[Finding]: ...

    @property
    def incidents(self) -> tuple[Incident, ...]: ...

    @property
    def best(self) -> tuple[Reading, ...]: ...

    @property
    def checkpoints(self) -> Sequence[int]: ...


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

    def look_again(self, step: int) -> None:
        """Have `notices` look at all incidents at `step`, whether or not any has changed."""
        self._due = step

    def notices(self, step: int, changed: Sequence[Finding], run: HasFindings) -> list[Notice]:
        """What is to be told at `step`, where `changed` of all the run's findings did."""
        due = self._due is not None and step >= self._due
        if not due and not any(one.state != "pending" for one in changed):
            return []
        findings = run.findings  # an engine collects and sorts them anew each time
        known = {identity(one) for one in findings}
        self._open = {name: severity for name, severity in self._open.items() if name in known}
        self._due = None
        news: list[_News] = []
        ended: list[Incident] = []
        for incident in run.incidents:
            told = [one for one in incident.findings if identity(one) in self._open]
            loud = [one for one in incident.findings if alerts(one)]
            new = self._news(incident, told, loud, step) if loud and not incident.acknowledged else None
            if new is not None:
                news.append(new)
                self._told |= {identity(one)[:3]: step for one in loud if identity(one) not in self._open}
            if told or new is not None:
                self._open |= {identity(one): incident.severity for one in loud}
            if told and not any(one.state == "firing" and one.severity != "info" for one in incident.findings):
                ended.append(incident)
                self._forget(incident)
        what_now = recommend(run.incidents, run.best, goes_on=True, checkpoints=run.checkpoints)
        fired = [_fired(step, news, what_now)] if news else []
        return [*fired, _ended(step, ended)] if ended else fired

    def _news(self, incident: Incident, told: Sequence[Finding], loud: Sequence[Finding], step: int) -> _News | None:
        """What is told at `step` of an incident of which `told` are known and `loud` firing; None for nothing."""
        cause = incident.cause
        if not told:
            rests_until = min(self._told.get(identity(one)[:3], -math.inf) + one.rule.cooldown_steps for one in loud)
            if step >= rests_until:
                return _News(incident)
            self._due = int(min(self._due or rests_until, rests_until))
            return None
        known: list[Severity] = [self._open[identity(one)] for one in told]
        was = max(known, key=SEVERITIES.index)
        if SEVERITIES.index(was) < SEVERITIES.index(incident.severity):
            worse = self._made_worse(incident)
            then = max((self._told.get(identity(one)[:3], -1), one.rule.id) for one in told)
            when = f"at step {then[0]}" if then[0] >= 0 else "before"
            why = f"{_heading(worse)}, since step {worse.onset}."
            now = f"It is {CALLED[incident.severity]} now, with {why}"
            return _News(incident, f"{then[1]} was told {when} as {CALLED[was]}. {now}", worse)
        if not alerts(cause) or identity(cause) in self._open:
            return None
        fall = all(one.rule.link == DAMAGE for one in told) and cause.rule.link != DAMAGE
        parts = sorted({one.rule.id for one in told if fall or explains(cause, one)})
        return _News(incident, f"This is what lies behind {', '.join(parts)}, told before.") if parts else None

    def _made_worse(self, incident: Incident) -> Finding:
        """Of what nobody was told of, what harms most: damage, or what is as severe as the whole; the latest of it."""
        new = [one for one in incident.findings if identity(one) not in self._open] or [incident.cause]
        harm = [one for one in new if one.rule.link == DAMAGE or one.severity == incident.severity]
        return max(harm or new, key=lambda one: (one.state == "firing", one.fired or 0))

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


def _fired(step: int, news: Collection[_News], what_now: Recommendation) -> Notice:
    told = sorted(news, key=lambda one: (-SEVERITIES.index(one.incident.severity), one.incident.onset))
    first, *others = told
    cause = first.incident.cause
    # What came back is told by what fires now, and not by how it began the first time.
    lead = cause if first.why or alerts(cause) else next(filter(alerts, first.incident.findings))
    todo, more = advice(lead.rule)
    text = [f"Continue? {what_now.says}."] if what_now else []
    text += [*todo, *_told(first, lead, step)]
    text += [
        f"Also{' worse' if one.worse else ''}: {_heading(one.incident.cause)}. {one.incident.summary}."
        for one in others
    ]
    text += more
    title = _heading(lead) if first.worse is None else _worse(first.worse, lead)
    return Notice(step, first.incident.severity, title[:TITLE], "\n".join(text))


def _worse(finding: Finding, lead: Finding) -> str:
    """The title of an incident headed by `lead` that `finding` has made worse."""
    if finding is lead:
        return f"Worse: {_heading(lead)}"
    place = f" ({_cut(_short(lead), PLACE)})"
    return _cut(f"Worse: {finding.rule.title}", TITLE - len(place)) + place


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _told(news: _News, lead: Finding, step: int) -> list[str]:
    """What stands in a notice at `step` of an incident with `lead` on top, line by line: what is new of it first."""
    incident = news.incident
    damage = [f"Damage, since step {one.onset}: {one.summary}." for one in incident.damage if one is not lead]
    then = f"At step {lead.fired}: " if lead.fired != step else ""  # it may be long ago, and is not so any more
    about = [
        f"{then}{lead.summary}.",
        f"{lead.rule.name} ({lead.rule.link}), onset at step {lead.onset}, fired at {lead.fired}.",
    ]
    symptoms = [one for one in incident.symptoms if alerts(one) and one is not lead]
    return [
        *([news.why] if news.why else []),
        *([*damage, *about] if news.worse else [*about, *damage]),
        *(f"With it: {_heading(one)}. {one.summary}." for one in symptoms),
    ]


def advice(rule: Rule) -> tuple[list[str], list[str]]:
    """What to do first, if the rule says so; and the command that shows all of it, which a rule in Python lacks."""
    first = [f"First: {rule.remedy[0]}"] if rule.remedy else []
    if rule.own and rule.file is None:
        return first, []
    place = f" --rules {shlex.quote(str(rule.file))}" if rule.own else ""
    return first, [f"More: tracker-diag rules show {rule.id}{place}"]


def _ended(step: int, over: Sequence[Incident]) -> Notice:
    parts = [finding for incident in over for finding in incident.findings if finding.severity != "info"]
    text = [f"{_heading(one)}: from step {one.onset} to {one.resolved}." for one in parts if one.resolved is not None]
    return Notice(step, "info", f"{_short(over[0].cause)}: resolved"[:TITLE], "\n".join(text))


def _heading(finding: Finding) -> str:
    return f"{_short(finding)}: {finding.rule.title}"


def _short(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.slice}"
