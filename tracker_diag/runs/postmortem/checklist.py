"""Checklists: what to ask before, during and after a run, answered from its own record as far as that goes.

The lists are data, in `checklists/`. What the record does not answer is unknown, with what to log; what only a person
can answer stays a question, with what the record has on it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from tracker_diag.errors import UnknownName
from tracker_diag.monitor.context import Context
from tracker_diag.report.evidence import best_level
from tracker_diag.report.markdown import escaped
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.runs.postmortem.read import context_kept

FOLDER = Path(__file__).parent / "checklists"

When: TypeAlias = Literal["before", "during", "after"]
Verdict: TypeAlias = Literal["yes", "no", "unknown", "person"]
Part: TypeAlias = Literal["config", "seed", "data", "evaluation", "versions", "code"]

SAYS: dict[Verdict, str] = {"yes": "Yes", "no": "No", "unknown": "Cannot know", "person": "For a person"}
STRONGEST: tuple[Verdict, ...] = ("no", "unknown", "yes")
"""What counts where the parts of a record say different things."""
MOST = 3
"""Settings, incidents and findings that an answer names."""


class Item(BaseModel):
    """One question, and what of a run's record answers it: yes if all of that does, no if any of it says so."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ask: str
    why: str
    person: bool = False
    """Whether a person has to answer; the record then only adds what it knows."""
    rules: tuple[str, ...] = ()
    """No where one has fired, yes where all could see and none did."""
    settings: tuple[str, ...] = ()
    """Patterns of the names of settings: yes where one is set."""
    context: tuple[Part, ...] = ()
    """Parts of the context record: no where one is missing."""
    series: tuple[str, ...] = ()
    """Metrics by their canonical names: yes where all are logged."""
    incidents: bool = False
    """Whether to name what went wrong."""
    best: bool = False
    """Whether to name the best level of reward and evaluation."""
    log: str = ""
    """What to log, where the answer cannot be known."""


@dataclass(frozen=True)
class Answer:
    """A question with what the record says."""

    ask: str
    why: str
    verdict: Verdict
    evidence: tuple[str, ...]
    log: str
    """What to log so that it can be answered; empty where it was."""


@cache
def items(when: When) -> tuple[Item, ...]:
    """The questions of one list."""
    if when not in get_args(When):
        raise UnknownName("checklist", when, get_args(When))
    return TypeAdapter(tuple[Item, ...]).validate_python(yaml.safe_load((FOLDER / f"{when}.yaml").read_text("utf-8")))


def answers(when: When, diagnosis: Diagnosis) -> tuple[Answer, ...]:
    """The list, answered from a run."""
    context = context_kept(diagnosis)
    return tuple(_answer(item, diagnosis, context) for item in items(when))


def _answer(item: Item, diagnosis: Diagnosis, context: Context) -> Answer:
    parts = [*_parts(item, diagnosis, context)]
    verdicts = {verdict for verdict, _ in parts}
    verdict: Verdict = next((strong for strong in STRONGEST if strong in verdicts), "unknown")
    verdict = "person" if item.person else verdict
    evidence = [text for _, text in parts]
    if item.incidents:
        loud = [str(incident) for incident in diagnosis.summary.incidents if incident.severity != "info"]
        evidence.append("; ".join(loud[:MOST]) or "no incident at warn or above")
    if item.best:
        evidence.append("; ".join(map(best_level, diagnosis.summary.best)) or "no reward or evaluation is logged")
    log = item.log if verdict == "unknown" or (verdict == "no" and item.context) else ""
    return Answer(item.ask, item.why, verdict, tuple(evidence), log)


def _parts(item: Item, diagnosis: Diagnosis, context: Context) -> Iterator[tuple[Verdict, str]]:
    for rule in item.rules:
        yield _of_rule(rule, diagnosis.summary)
    if item.settings:
        there = [
            f"{name}={value}"
            for name, value in context.config.items()
            if value not in (None, "") and any(fnmatchcase(name.lower(), pattern) for pattern in item.settings)
        ]
        none = f"no setting {' or '.join(item.settings[:MOST])} among {len(context.config)}"
        yield ("yes", ", ".join(there[:MOST])) if there else ("unknown", none)
    for part in item.context:
        yield _of_context(part, context)
    for name in item.series:
        if points := diagnosis.series.get(name, {}):
            levels = f"{points[min(points)]:.3g} at first and {points[max(points)]:.3g} now"
            yield "yes", f"{name} in {len(points)} rows, {levels}"
        else:
            yield "unknown", f"no series {name}"


def _of_rule(rule: str, summary: Summary) -> tuple[Verdict, str]:
    fired = [finding for finding in summary.findings if finding.rule.id == rule and finding.fired is not None]
    if fired:
        return "no", "; ".join(str(finding).rstrip(".") for finding in fired[:MOST])
    if rule in summary.blind:
        return "unknown", f"{rule} could not see: {'; '.join(map(str, summary.blind[rule]))}"
    if rule in summary.explained:
        return "no", f"{rule}: {summary.explained[rule]} has fired, which covers it"
    if rule in summary.healthy:
        return "yes", f"{rule} could see and found nothing"
    return "unknown", f"{rule} is about to fire, or was not looked for"


def _of_context(part: Part, context: Context) -> tuple[Verdict, str]:
    if part == "code":
        if context.code is None:
            return "no", "no revision of the code is recorded"
        commit = f"commit {context.code.commit[:12]}"
        return ("no", f"{commit} with changes that are not committed") if context.code.dirty else ("yes", commit)
    known: dict[str, object] = dict(getattr(context, part))
    if not known:
        return "no", f"{part}: not recorded"
    if part in ("config", "versions"):
        return "yes", f"{part}: {len(known)} recorded"
    return "yes", ", ".join(f"{name}={value}" for name, value in list(known.items())[:MOST])


def to_json(when: When, source: str, given: Sequence[Answer]) -> dict[str, Any]:
    """The JSON of `tracker-diag export checklist --json`."""
    return {"when": when, "run": source, "answers": [asdict(answer) for answer in given]}


def page(when: When, source: str, given: Sequence[Answer]) -> str:
    """The list in Markdown, as tasks: ticked where the answer is yes."""
    number = Counter(answer.verdict for answer in given)
    counts = ", ".join(f"{number[verdict]} {says.lower()}" for verdict, says in SAYS.items())
    lines = [f"## Checklist {when} training: {escaped(source)}", "", f"{counts}.", ""]
    for answer in given:
        lines.append(f"- [{'x' if answer.verdict == 'yes' else ' '}] **{escaped(answer.ask)}** {SAYS[answer.verdict]}.")
        lines += [f"  - {escaped(text)}" for text in answer.evidence]
        lines += [f"  - log {escaped(answer.log)}"] if answer.log else []
        lines += [f"  - {escaped(answer.why)}"] if answer.verdict != "yes" else []
    return "\n".join(lines)
