"""The record of a rule: what its alarms were worth on runs that were made after its last change.

`record.json` is written by `tests/faults/record.py`, never by hand. A rule that has changed since has no record.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from tracker_diag.rules.model import Rule

Tier: TypeAlias = Literal["own", "fact", "measured", "candidate"]
"""own: a rule of the user. fact: what it reports cannot be otherwise. measured: its record is good enough. candidate:
any other rule of the catalogue."""

TIERS: tuple[Tier, ...] = get_args(Tier)

FACTS = frozenset({"NUM004", "NUM009", "NUM010", "RES007"})
"""Values that are not finite, a mismatch where zero was promised, a missing rank."""
FOUND, PLACES = 5, 2
"""Runs with its own pathology in which a measured rule has alarmed, and their tasks or frameworks; at least."""
HEALTHY, ALARMED = 200, 0.01
"""Healthy runs that had its inputs, at least, and the share of them in which it alarmed, at most."""

FILE = Path(__file__).with_name("record.json")

DECIDES = {
    "pairs", "slices", "algorithms", "severity", "predicates", "when", "harmless", "for_steps", "keep_firing_steps",
}  # fmt: skip
"""Fields of a rule that decide, besides its signals, when it alarms."""


@dataclass(frozen=True)
class Record:
    """Counts of runs."""

    hash: str
    """Of the rule that was counted; see `hash_of`."""
    hits: int
    """Runs with its pathology in which it alarmed."""
    faulty: int
    """All runs with its pathology that had its inputs."""
    places: int
    """Tasks or frameworks of those found."""
    false_alarms: int
    """Healthy runs in which it alarmed."""
    healthy: int
    """All healthy runs that had its inputs."""

    @property
    def needs(self) -> list[str]:
        """What it lacks to be measured."""
        lacking = [
            (self.hits < FOUND, f"{FOUND - self.hits} more true finding{'s' if self.hits < FOUND - 1 else ''}"),
            (self.places < PLACES, f"{PLACES} tasks or frameworks"),
            (self.healthy < HEALTHY, f"{HEALTHY - self.healthy} more healthy runs"),
            (self.false_alarms > ALARMED * self.healthy, f"alarms in at most {ALARMED:.0%} of healthy runs"),
        ]
        return [need for is_lacking, need in lacking if is_lacking]

    def __str__(self) -> str:
        return f"alarmed in {self.false_alarms} of {self.healthy} healthy runs; found {self.hits} of {self.faulty}"


class Records(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    made: str
    """The date of the runs."""
    corpora: dict[str, str]
    """What was run, by name."""
    demoted: tuple[str, ...] = ()
    """Rules that would be measured, but with which all loud rules together alarm in too many healthy runs."""
    rules: dict[str, Record]


def hash_of(rule: Rule) -> str:
    """16 digits of SHA-256 of what decides when `rule` alarms: its signals, shared ones too, and its ways."""
    data = rule.model_dump(mode="json", include=DECIDES) | {"signals": rule.signal_data}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


@cache
def records() -> Records:
    """All records.

    Raises:
        pydantic.ValidationError: the file is of another form; it comes with the package.
    """
    return Records.model_validate_json(FILE.read_bytes())


def record_of(rule: Rule) -> Record | None:
    """The record of a rule of the catalogue, as it is now; None if it has none."""
    record = None if rule.own else records().rules.get(rule.id)
    return record if record and record.hash == hash_of(rule) else None


def tier_of(rule: Rule) -> Tier:
    """How far an alarm of `rule` is backed by evidence."""
    if rule.own:
        return "own"
    if rule.id in FACTS:
        return "fact"
    record = record_of(rule)
    if record is None or rule.id in records().demoted:
        return "candidate"
    return "candidate" if record.needs else "measured"


def why(rule: Rule) -> str:
    """One line: the tier, and the record or what it lacks."""
    tier, record = tier_of(rule), record_of(rule)
    if tier == "own":
        return "own"
    if record is None:
        has_changed = rule.id in records().rules
        lacking = "the rule has changed since its record" if has_changed else "no run of the record has its inputs"
        return tier if tier == "fact" else f"{tier}: {lacking}"
    if rule.id in records().demoted:
        return f"{tier}: {record}; with it, all rules together alarm too often"
    needs = f"; it needs {', '.join(record.needs)}" if tier == "candidate" else ""
    return f"{tier}: {record}{needs}"
