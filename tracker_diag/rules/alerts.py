"""Alerts: each incident is reported once, again if it gets worse, and when it ends."""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracker_diag.rules.findings import Finding, Identity, identity
from tracker_diag.rules.incidents import DAMAGE, SEVERITIES, Incident, beginning, explains
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.recommendation import Recommendation, recommend

TITLE = 63
"""The longest title that W&B takes, in characters."""

PLACE = 30
"""The longest rule and slice at the end of a title, in characters."""

IN_WORDS: Mapping[Severity, str] = {"info": "a note", "warn": "a warning", "error": "an error"}

MOST = 256
"""Ended findings that a live run still groups into incidents: the latest ones."""


def is_loud(finding: Finding) -> bool:
    """Whether a person should know: it fires at warn or above, and no firing rule explains it."""
    return finding.state == "firing" and finding.severity != "info" and finding.inhibited_by is None


@dataclass(frozen=True)
class Notice:
    """One alert, of one step: the incidents that fired or got worse, or those that ended."""

    step: int
    level: Severity
    title: str
    """Under 64 characters, as W&B asks."""
    text: str
    id: str = ""
    """Unique. If a notice is sent twice, the receiver can see it by this."""
    decision: str = ""
    """What to do with the run, in a few words; empty where an incident has ended."""
    headline: str = ""
    """What to do, what is wrong, since when, what broke first, where to resume: for lists of titles; empty as above."""


@dataclass(frozen=True)
class _News:
    """An incident to report."""

    incident: Incident
    why: str = ""
    """What is new since the last report; empty on the first one."""
    worse: Finding | None = None
    """The finding that made it worse."""


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

    An incident gives one notice, whatever joins it later. It gives a second one if it becomes an error or gets another
    cause, and one at its end. All news of a step is in one notice, the severest with the earliest onset first. If a
    rule fires again on a slice, it begins a new incident only `cooldown_steps` after its last report.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str | None, str], int] = {}
        """The step of the last report, by rule, pair and slice."""
        self._open: dict[Identity, Severity] = {}
        """Findings of the reported incidents that have not ended, and their severity in that report."""
        self._due: int | None = None
        """The first step at which a cooldown ends, if one holds a report back."""

    def look_again(self, step: int) -> None:
        """Make `notices` check all incidents at `step`, even if none has changed."""
        self._due = step

    def notices(self, step: int, changed: Sequence[Finding], run: HasFindings) -> list[Notice]:
        """The notices of `step`, after `changed` of the run's findings did."""
        due = self._due is not None and step >= self._due
        if not due and not any(finding.state != "pending" for finding in changed):
            return []
        findings = run.findings  # an engine collects and sorts them anew each time
        known = {identity(finding) for finding in findings}
        self._open = {name: severity for name, severity in self._open.items() if name in known}
        self._due = None
        news: list[_News] = []
        ended: list[Incident] = []
        for incident in run.incidents:
            reported = [finding for finding in incident.findings if identity(finding) in self._open]
            loud = [finding for finding in incident.findings if is_loud(finding)]
            new = self._news(incident, reported, loud, step) if loud and not incident.acknowledged else None
            if new is not None:
                news.append(new)
                self._reported |= {identity(part)[:3]: step for part in loud if identity(part) not in self._open}
            if reported or new is not None:
                self._open |= {identity(finding): incident.severity for finding in loud}
            if reported and not any(part.state == "firing" and part.severity != "info" for part in incident.findings):
                ended.append(incident)
                for finding in incident.findings:
                    self._open.pop(identity(finding), None)
        what_now = recommend(run.incidents, run.best, underway=True, checkpoints=run.checkpoints)
        fired = [_fired(step, news, what_now)] if news else []
        return [*fired, _ended(step, ended)] if ended else fired

    def _news(
        self, incident: Incident, reported: Sequence[Finding], loud: Sequence[Finding], step: int
    ) -> _News | None:
        """The news of an incident at `step`: some findings are `reported`, others `loud`. None if there is none."""
        cause = incident.cause
        if not reported:
            rests_until = min(
                self._reported.get(identity(finding)[:3], -math.inf) + finding.rule.cooldown_steps for finding in loud
            )
            if step >= rests_until:
                return _News(incident)
            self._due = int(min(self._due or rests_until, rests_until))
            return None
        known: list[Severity] = [self._open[identity(finding)] for finding in reported]
        was = max(known, key=SEVERITIES.index)
        if SEVERITIES.index(was) < SEVERITIES.index(incident.severity):
            worse = self._made_worse(incident)
            at, rule = max((self._reported.get(identity(part)[:3], -1), part.rule.id) for part in reported)
            when = f"at step {at}" if at >= 0 else "before"
            why = f"{_heading(worse)}, since {beginning(worse)}."
            now = f"Now {IN_WORDS[incident.severity]}: {why}"
            return _News(incident, f"Reported {when} as {IN_WORDS[was]} ({rule}). {now}", worse)
        if not is_loud(cause) or identity(cause) in self._open:
            return None
        fall = all(finding.rule.link == DAMAGE for finding in reported) and cause.rule.link != DAMAGE
        parts = sorted({finding.rule.id for finding in reported if fall or explains(cause, finding)})
        return _News(incident, f"This is the cause of {', '.join(parts)}, reported before.") if parts else None

    def _made_worse(self, incident: Incident) -> Finding:
        """The latest of the new findings that harm most: damage, or those as severe as the incident."""
        new = [finding for finding in incident.findings if identity(finding) not in self._open] or [incident.cause]
        harm = [finding for finding in new if finding.rule.link == DAMAGE or finding.severity == incident.severity]
        return max(harm or new, key=lambda finding: (finding.state == "firing", finding.fired or 0))

    def state_dict(self) -> dict[str, Any]:
        return {
            "reported": [[*place, step] for place, step in self._reported.items()],
            "open": [[*identity, severity] for identity, severity in self._open.items()],
            "due": self._due,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reported = {(rule, pair, slice): step for rule, pair, slice, step in state["reported"]}
        self._open = {(rule, pair, slice, onset): severity for rule, pair, slice, onset, severity in state["open"]}
        self._due = state["due"]


def recent(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that current incidents use. In a run of many findings, those that ended long ago are left out."""
    early = len(findings) - MOST
    return [finding for i, finding in enumerate(findings) if i >= early or finding.state == "firing"]


def _fired(step: int, news: Collection[_News], what_now: Recommendation) -> Notice:
    first, *others = sorted(news, key=lambda part: (-SEVERITIES.index(part.incident.severity), part.incident.onset))
    cause = first.incident.cause
    # A returning cause may be quiet now: then the notice leads with what fires.
    lead = cause if first.why or is_loud(cause) else next(filter(is_loud, first.incident.findings))
    todo, more = advice(lead.rule)
    text = [f"Continue? {what_now.says}.", *todo, *_paragraphs(first, lead)]
    text += [
        f"Also{' worse' if other.worse else ''}: {_heading(other.incident.cause)}. {other.incident.summary}."
        for other in others
    ]
    text += more
    worse = lead if first.worse is None else first.worse
    begins = "Now also: " if worse is not lead else f"Now {IN_WORDS[first.incident.severity]}: " if first.worse else ""
    parts = [f"{it.rule.title}, since {beginning(it)}" for it in (lead, worse)[: 1 + (worse is not lead)]]
    back = what_now.back and f"{what_now.back.capitalize()} "
    return Notice(
        step,
        first.incident.severity,
        _title(worse, lead, begins),
        "\n".join(text),
        decision=what_now.in_short,
        headline=f"{what_now.verb}. {'. Now also: '.join(parts)}. {back}({_short(lead)})",
    )


def _title(finding: Finding, lead: Finding, begins: str = "") -> str:
    """The title of what `finding` says, with rule and slice of `lead` at its end, in `TITLE` characters."""
    place = f" ({_cut(_short(lead), PLACE)})"
    return _cut(f"{begins}{finding.rule.title}", TITLE - len(place)) + place


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _paragraphs(news: _News, lead: Finding) -> list[str]:
    """The lines on one incident in a notice, with `lead` first; if it got worse, the damage comes first."""
    incident = news.incident
    damage = [f"Damage, since {beginning(part)}: {part.summary}." for part in incident.damage if part is not lead]
    about = [
        f"Since {beginning(lead)}, detected at {lead.fired}: {lead.summary}.",
        f"{lead.rule.name} ({lead.rule.link}).",
    ]
    symptoms = [part for part in incident.symptoms if is_loud(part) and part is not lead]
    return [
        *([news.why] if news.why else []),
        *([*damage, *about] if news.worse else [*about, *damage]),
        *(f"Symptom: {_heading(part)}. {part.summary}." for part in symptoms),
    ]


def advice(rule: Rule) -> tuple[list[str], list[str]]:
    """The first remedy, if there is one, and the command that shows the rule. A rule made in Python has no command."""
    first = [f"First: {rule.remedy[0]}"] if rule.remedy else []
    if rule.own and rule.file is None:
        return first, []
    place = f" --rules {shlex.quote(str(rule.file))}" if rule.own else ""
    return first, [f"More: tracker-diag rules show {rule.id}{place}"]


def _ended(step: int, over: Sequence[Incident]) -> Notice:
    parts = [finding for incident in over for finding in incident.findings if finding.severity != "info"]
    text = [
        f"{_heading(part)}: from step {part.onset} to {part.resolved}." for part in parts if part.resolved is not None
    ]
    return Notice(step, "info", _title(over[0].cause, over[0].cause, "Over: "), "\n".join(text))


def _heading(finding: Finding) -> str:
    return f"{finding.rule.title} ({_short(finding)})"


def _short(finding: Finding) -> str:
    return finding.rule.id if finding.slice == "all" else f"{finding.rule.id} {finding.slice}"
