"""What arms that are compared have in common, and what not: their axis, and the settings in which they differ."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from tracker_diag.detect.parting import FEWEST
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.signals.config_changed import ConfigChanged
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.scrub import is_secret
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.finished import FinishedRun
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
        for name in before | after
        if before.get(name) != after.get(name)
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
            if not IDENTIFYING.search(name.lower()):
                values_of.setdefault(name, set()).add("***" if is_secret(name) else _text(value))
    return {name: tuple(sorted(values)) for name, values in values_of.items()}


def _text(value: object) -> str:
    """`value` as text. A number has the same text whether its source keeps it as text or as a number."""
    value = plain(value) if isinstance(value, str) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.12g}"
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


OVERLAP = 0.5
"""The axis covers at least this part of the shorter run; otherwise the units are not the same."""


@dataclass(frozen=True)
class Axis:
    """The axis, from the step by which all runs have begun to the end of the shortest."""

    unit: Literal["step", "share of the run"]
    low: float
    high: float
    why: str = ""
    """Why its unit is not steps; empty if it is."""

    def places(self, run: FinishedRun, steps: Collection[int]) -> Float64Array:
        """(N,) where N `steps` of `run` are on the axis."""
        at = np.fromiter(steps, np.float64, len(steps))
        if self.unit == "step":
            return at
        first, last = next(iter(run.rows)), next(reversed(run.rows))
        places: Float64Array = (at - first) / (last - first)
        return places


def aligned(runs: Sequence[FinishedRun]) -> Axis:
    """The axis of `runs`: steps if they share enough of them for their units to be the same, otherwise shares.

    A run with fewer than `FEWEST` rows is too short to judge; its steps count as the same.
    """
    steps = [np.fromiter(run.rows, np.float64) for run in runs]
    low, high = float(max(at.min() for at in steps)), float(min(at.max() for at in steps))
    shared = min(np.count_nonzero((at >= low) & (at <= high)) for at in steps)
    enough = shared >= FEWEST and high - low >= OVERLAP * min(np.ptp(at) for at in steps)
    if enough or min(map(len, steps)) < FEWEST:
        return Axis("step", low, high)
    ends = ", ".join(f"{min(run.rows):,} to {max(run.rows):,}" for run in runs)
    return Axis("share of the run", 0.0, 1.0, f"their steps are not of one unit ({ends})")
