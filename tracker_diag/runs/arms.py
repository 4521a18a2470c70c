"""The settings in which two arms differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tracker_diag.rules.loader import catalog
from tracker_diag.rules.signals.config_changed import ConfigChanged
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.scrub import is_secret
from tracker_diag.trackers.keys import plain

IDENTIFYING = re.compile(
    r"(^|[._/-])(\w*seed|(run|exp|experiment|trial|wandb)_(name|id|group)|\w*(output|logging|log|save|checkpoint|cache)"
    r"_(dir|path|folder)|hostname|host|pid|\w*timestamp|date|start_time|notes|tags)$|^(name|id|dir|_wandb.*)$"
)
"""Names, in lower case, of settings that identify a run and do not change its training."""


@dataclass(frozen=True)
class Setting:
    """A setting in which two arms differ. An arm may have several values, or none if its runs do not log it."""

    name: str
    reference: tuple[str, ...]
    other: tuple[str, ...]
    evaluation: bool
    """Whether it makes the scores of the two arms incomparable, by rule EVA001."""


def differing(reference: Sequence[Diagnosis], other: Sequence[Diagnosis]) -> tuple[Setting, ...]:
    """The settings in which two arms differ, those of the evaluation first; empty if an arm has logged no settings."""
    before, after = _settings(reference), _settings(other)
    if not before or not after:
        return ()
    settings = [
        Setting(name, before.get(name, ()), after.get(name, ()), concerns_evaluation(name))
        for name in {**before, **after}
        if before.get(name, ()) != after.get(name, ())
    ]
    return tuple(sorted(settings, key=lambda it: (not it.evaluation, not (it.reference and it.other), it.name)))


def concerns_evaluation(name: str) -> bool:
    """Whether rule EVA001 treats the setting `name` as part of the evaluation."""
    rule = next(rule for rule in catalog() if rule.id == "EVA001")
    patterns = [key for signal in rule.signals.values() if isinstance(signal, ConfigChanged) for key in signal.keys]
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _settings(arm: Sequence[Diagnosis]) -> dict[str, tuple[str, ...]]:
    values_of: dict[str, set[str]] = {}
    for run in arm:
        for name, value in run.run.config.items():
            if not _identifies_a_run(name):
                values_of.setdefault(name, set()).add("***" if is_secret(name) else _text(value))
    return {name: tuple(sorted(values)) for name, values in values_of.items()}


def _identifies_a_run(name: str) -> bool:
    return bool(IDENTIFYING.search(name.lower()))


def _text(value: object) -> str:
    """`value` as text. A number has the same text whether its source keeps it as text or as a number."""
    value = plain(value) if isinstance(value, str) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.12g}"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
