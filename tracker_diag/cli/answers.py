"""What an agent is answered: JSON of at most 4 KB, from the functions that the commands use."""

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tracker_diag.errors import UnknownName
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.in_words import fires
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.loader import in_force
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.compare import compare
from tracker_diag.runs.diagnose import Diagnosis, diagnose
from tracker_diag.trackers.listing import list_runs

LARGEST = 4096
"""Bytes of an answer, at most."""
LONGEST = 400
"""Characters of a text in an answer, at most."""
POINTS = 32
"""Parts of a curve."""


def runs_answer(project: str) -> str:
    """The runs of a project, as far as its tracker describes them without reading them."""
    runs = sorted(list_runs(project, project=True), key=lambda run: -(run.updated or 0))
    return fitted({
        "project": project,
        "runs": [
            {"run": run.source, "name": run.name, "ended": run.over, "updated": run.updated, "diagnostics": run.state}
            for run in runs
        ],
    })  # fmt: skip


def status_answer(run: str, evaluation: str = "") -> str:
    """Whether a run is ill, by what cause, since when, on what evidence, and what to do."""
    diagnosis = diagnose(run, evaluation=evaluation)
    summary, advice = diagnosis.summary, diagnosis.summary.recommendation
    loud = [incident for incident in summary.incidents if incident.severity != "info"]
    first = loud[0] if loud else None
    return fitted({
        "run": diagnosis.run.source,
        "steps": summary.steps,
        "last_step": summary.last_step,
        "health": _health(summary, loud),
        "severity": summary.level if first else None,
        "cause": first and _named(first.cause),
        "since": first and first.onset,
        "detected": first and first.cause.fired,
        "evidence": _evidence(diagnosis, first) if first else [],
        "followed": [_named(finding) for finding in first.findings[1:] if finding.severity != "info"] if first else [],
        "further_causes": [_named(incident.cause) for incident in loud[1:]],
        "best": [
            {"key": _key(diagnosis, level.series), "step": level.at, "level": level.baseline, "last": level.value}
            for level in summary.best
        ],
        "action": advice.action,
        "advice": advice.says,
        "resume_at_or_before": advice.last_good_step,
        "do_first": list(first.cause.rule.remedy[:2]) if first else [],
        "caveats": [*summary.short, *summary.log, *summary.caveats],
        "blind_rules": len(summary.blind),
        "next_command": _next(diagnosis.run.source, first, judged=summary.judged),
    })  # fmt: skip


def _health(summary: Summary, loud: list[Incident]) -> str:
    if any(incident.state == "firing" for incident in loud) or summary.recommendation.action == "stop":
        return "ill"
    return "recovered" if loud else "healthy" if summary.judged else "too_short"


def _named(finding: Finding) -> dict[str, object]:
    """A finding without its evidence."""
    rule = {"rule": finding.rule.id, "title": finding.rule.title, "link": finding.rule.link}
    return rule | _fields(finding, "slice", "onset", "state")


def _fields(value: object, *names: str) -> dict[str, object]:
    """The attributes of `value` that are called `names`."""
    return {name: getattr(value, name) for name in names}


def _evidence(diagnosis: Diagnosis, incident: Incident) -> list[dict[str, object]]:
    """The readings that hold, those of the cause first, each with the key that the run logged it under."""
    return [
        {
            "run": diagnosis.run.source,
            "key": _key(diagnosis, reading.keys[0] if reading.keys else reading.series),
            "step": finding.fired,
            "rule": finding.rule.id,
            "value": reading.value,
            "before": reading.baseline,
        }
        for finding in incident.findings
        for reading in finding.evidence
        if reading.holds and reading.value is not None
    ]


def _key(diagnosis: Diagnosis, series: str) -> str:
    """The key under which the run logged `series`; a statistic of ours has its own."""
    return next((key for key, metric in diagnosis.keys.mapped.items() if metric.name == series), series)


def _next(run: str, first: Incident | None, *, judged: bool) -> str:
    if first is not None:
        return f"tracker-diag rules show {first.cause.rule.id}"
    return f"tracker-diag {'watch --once' if judged else 'diagnose --blind'} {shlex.quote(run)}"


def curve_answer(run: str, key: str) -> str:
    """One series of a run, under its own key or under ours, in at most 32 parts."""
    diagnosis = diagnose(run)
    series = diagnosis.series.get(diagnosis.keys.mapped[key].name if key in diagnosis.keys.mapped else key)
    if series is None:
        series = {step: row[key] for step, row in diagnosis.run.rows.items() if key in row}
    if not series:
        raise UnknownName("key", key, (*diagnosis.keys.mapped, *diagnosis.series)[:POINTS])
    parts = np.array_split(np.array([*series.items()], float), min(POINTS, len(series)))
    return fitted({
        "run": diagnosis.run.source,
        "key": key,
        "values": len(series),
        "columns": ["first_step", "last_step", "lowest", "mean", "highest"],
        "parts": [
            [int(part[0, 0]), int(part[-1, 0]), *map(float, (part[:, 1].min(), part[:, 1].mean(), part[:, 1].max()))]
            for part in parts
        ],
    })  # fmt: skip


def compare_answer(reference: str, other: str) -> str:
    """Where `other` parted from `reference`, which settings differ, and which incidents only one of them has."""
    (against,) = compare(diagnose(reference), diagnose(other)).others
    return fitted({
        "reference": reference,
        "other": other,
        "axis": against.axis.unit,
        "parted": [
            _fields(series, "series", "step", "reference", "other") | {"ends": series.end} for series in against.parted
        ],
        "settings": [_fields(setting, "name", "reference", "other") for setting in against.settings],
        "incidents": [
            _fields(incident, "rule", "title", "onset") | {"only_in": incident.arm} for incident in against.incidents
        ],
        "alike": list(against.alike),
        "unjudged": [f"{name}: {why}" for name, why in against.unjudged.items()],
    })  # fmt: skip


def rule_answer(rule: str) -> str:
    """What a rule detects, when it holds, when it is wrong, and what to do."""
    named = {known.id: known for known in in_force(())}
    asked = named.get(rule.upper())
    if asked is None:
        raise UnknownName("rule", rule, tuple(named))
    return fitted({
        "rule": asked.id,
        **_fields(asked, "title", "severity", "link"),
        "detects": asked.description,
        "why": asked.rationale,
        "holds_if": "; or ".join(fires(asked)).replace("`", ""),
        "for_steps": asked.for_steps,
        "do": list(asked.remedy),
        "wrong_if": list(asked.false_positives),
        "leads_to": list(asked.leads_to),
    })  # fmt: skip


def worst_answer(tokens: str, *, texts: bool) -> str:
    """The sequences behind the tails of a token log: by default only where they are, with `texts` what they say."""
    from tracker_diag.runs.replay.replay import replay

    names = ("pair", "slice", "step", "sequence", "tool", "length", "position", "largest", "share")
    sequences = [
        _fields(sequence, *names) | ({"text": "".join(sequence.texts)} if texts and sequence.texts else {})
        for sequence in replay(tokens).worst
    ]
    return fitted({"tokens": tokens, "sequences": sequences})


def fitted(answer: Mapping[str, Any]) -> str:
    """`answer` as JSON of at most `LARGEST` bytes. Lists lose their last entries, the longest list first.

    `left_out` counts what a list lost. A text is cut at `LONGEST` characters. A number has 5 digits. NaN and infinity
    are strings.
    """
    kept: dict[str, Any] = {name: _short(value) for name, value in answer.items()}
    left_out: dict[str, int] = {}
    while len(text := _json(kept | ({"left_out": left_out} if left_out else {})).encode()) > LARGEST:
        longest = max((name for name in kept if isinstance(kept[name], list)), key=lambda name: len(_json(kept[name])))
        kept[longest] = kept[longest][:-1]
        left_out[longest] = left_out.get(longest, 0) + 1
    return text.decode()


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, str):
        text = " ".join(value.split())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    if isinstance(value, Iterable):
        return [_short(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if np.isfinite(value) else str(value)
    return value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
