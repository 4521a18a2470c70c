"""Arms: runs that differ in their seed alone, and the settings in which two arms differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tracker_diag.errors import SECRET_SETTING, SourceError
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.nodes import ConfigChanged
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.trackers.keys import plain

NO_SETTING = re.compile(
    r"(^|[._/-])(\w*seed|(run|exp|experiment|trial|wandb)_(name|id|group)|\w*(output|logging|log|save|checkpoint|cache)"
    r"_(dir|path|folder)|hostname|host|pid|\w*timestamp|date|start_time|notes|tags)$|^(name|id|dir|_wandb.*)$"
)
"""Names of what tells one run from another and changes nothing in training; in lower case."""


@dataclass(frozen=True)
class Setting:
    """A setting in which two arms differ. Several values of an arm stand side by side; none: it does not say."""

    name: str
    reference: tuple[str, ...]
    other: tuple[str, ...]
    evaluation: bool
    """Whether scores of the two cannot be compared because of it, as EVA001 has it."""


def arms(runs: Sequence[Diagnosis]) -> list[tuple[Diagnosis, ...]]:
    """`runs` grouped by equal settings, seeds left out; each by itself where nothing is known, or all would be one."""
    groups: dict[object, list[Diagnosis]] = {}
    for at, run in enumerate(runs):
        known = {name: _text(value) for name, value in run.run.config.items() if not _is_no_setting(name)}
        groups.setdefault(frozenset(known.items()) or at, []).append(run)
    return [tuple(group) for group in groups.values()] if len(groups) > 1 else [(run,) for run in runs]


def each_once(runs: Sequence[Diagnosis]) -> None:
    """Raise SourceError if one of `runs` is given twice."""
    seen: set[str] = set()
    for run in runs:
        if run.run.source in seen:
            raise SourceError(f"{run.run.source}: given twice, expected different runs")
        seen.add(run.run.source)


def differing(reference: Sequence[Diagnosis], other: Sequence[Diagnosis]) -> tuple[Setting, ...]:
    """The settings in which two arms differ, those of the evaluation first; none where one tells no settings at all."""
    before, after = _settings(reference), _settings(other)
    if not before or not after:
        return ()
    found = [
        Setting(name, before.get(name, ()), after.get(name, ()), of_evaluation(name))
        for name in {**before, **after}
        if before.get(name, ()) != after.get(name, ())
    ]
    return tuple(sorted(found, key=lambda one: (not one.evaluation, not (one.reference and one.other), one.name)))


def of_evaluation(name: str) -> bool:
    """Whether EVA001 takes the setting `name` for one of the evaluation."""
    rule = next(rule for rule in catalog() if rule.id == "EVA001")
    patterns = [key for signal in rule.signals.values() if isinstance(signal, ConfigChanged) for key in signal.keys]
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _settings(arm: Sequence[Diagnosis]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for run in arm:
        for name, value in run.run.config.items():
            if not _is_no_setting(name):
                found.setdefault(name, set()).add("***" if SECRET_SETTING.search(name.lower()) else _text(value))
    return {name: tuple(sorted(values)) for name, values in found.items()}


def _is_no_setting(name: str) -> bool:
    return bool(NO_SETTING.search(name.lower()))


def _text(value: object) -> str:
    """`value` as text; a number that one source keeps as text is the same as one that another keeps as a number."""
    given = plain(value) if isinstance(value, str) else value
    if isinstance(given, int | float) and not isinstance(given, bool):
        return f"{given:.12g}"
    if isinstance(given, Mapping):
        return str(dict(given))
    return str(given)
