"""Alerts: which changes of findings a person is told of, grouped by step, and not again too soon."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.triage import SEVERITIES

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
    """What a person is told at one step: all that fired there, or all that ended."""

    step: int
    level: Severity
    title: str
    """Under 64 characters, as W&B asks."""
    text: str


class Alerts:
    """Turns changes of findings into notices.

    What fires at one step makes one notice, headed by the severest of the earliest onset. A rule that comes and
    goes on one slice is told again only `cooldown_steps` after the last time, and its end only if its beginning was.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str | None, str], int] = {}
        self._open: set[Identity] = set()

    def notices(self, step: int, changed: Sequence[Finding]) -> list[Notice]:
        """What is to be told of the findings that `changed` at `step`."""
        news, ended = [], []
        for finding in changed:
            if alerts(finding) and identity(finding) not in self._open:
                about = identity(finding)[:3]
                last = self._told.get(about)
                if last is None or step - last >= finding.rule.cooldown_steps:
                    news.append(finding)
                    self._told[about] = step
                    self._open.add(identity(finding))
            elif finding.state == "resolved" and identity(finding) in self._open:
                ended.append(finding)
                self._open.discard(identity(finding))
        told = [_fired(step, news)] if news else []
        return [*told, _ended(step, ended)] if ended else told

    def state_dict(self) -> dict[str, Any]:
        return {
            "told": [[*about, step] for about, step in self._told.items()],
            "open": [list(identity) for identity in sorted(self._open, key=str)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._told = {(rule, pair, slice): step for rule, pair, slice, step in state["told"]}
        self._open = {(rule, pair, slice, onset) for rule, pair, slice, onset in state["open"]}


def _fired(step: int, findings: Collection[Finding]) -> Notice:
    first, *others = sorted(findings, key=lambda f: (-SEVERITIES.index(f.rule.severity), f.onset))
    rule = first.rule
    text = [
        f"{first.summary}.",
        f"{rule.name} ({rule.link}), onset at step {first.onset}, fired at {first.fired}.",
        *advice(rule),
    ]
    text += [f"Also: {_heading(other)}. {other.summary}." for other in others]
    return Notice(step, rule.severity, _heading(first)[:TITLE], "\n".join(text))


def advice(rule: Rule) -> list[str]:
    """What to do first, if the rule says so, and the command that tells all of it; none shows a rule made in Python."""
    first = [f"First: {rule.remedy[0]}"] if rule.remedy else []
    if rule.own and rule.file is None:
        return first
    place = f" --rules {shlex.quote(str(rule.file))}" if rule.own else ""
    return [*first, f"More: tracker-diag rules show {rule.id}{place}"]


def _ended(step: int, findings: Sequence[Finding]) -> Notice:
    text = [f"{_heading(f)}: from step {f.onset} to {f.resolved}." for f in findings]
    return Notice(step, "info", f"{findings[0].rule.id} {findings[0].slice}: resolved"[:TITLE], "\n".join(text))


def _heading(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.slice}: {finding.rule.title}"
