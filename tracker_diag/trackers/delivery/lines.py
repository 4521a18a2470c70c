"""Lines: what is written to a tracker as a line of its journal, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.records import Record, Scalar
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import rule_called
from tracker_diag.rules.model import Rule
from tracker_diag.trackers.tracker import Description, Entry, Event, File, Metrics, Standing

PLAIN: Mapping[str, type[Metrics | Notice | Event | Description | File]] = {
    "metrics": Metrics, "alert": Notice, "event": Event, "description": Description, "file": File,
}  # fmt: skip
"""Entries whose values are JSON, by their key in a line."""

LINED = (Finding, Standing, *PLAIN.values())
"""All that a line can be made of, but for scalars."""


def scalars_line(step: int, records: Sequence[Record], at: float) -> dict[str, Any]:
    """A line of the scalars of a step; what else is among `records` is too large for a file."""
    scalars = {record.name: record.value for record in records if isinstance(record, Scalar)}
    return {"scalars": scalars, "step": step, "at": at, "n": step}


def line_of(entry: Entry) -> dict[str, Any]:
    """A line of an entry of `LINED`."""
    if isinstance(entry, Standing):
        return {"standing": [_of_finding(finding) for finding in entry.findings]}
    if isinstance(entry, Finding):
        return {"finding": _of_finding(entry)}
    return {next(name for name, kind in PLAIN.items() if isinstance(entry, kind)): dict(vars(entry))}


def entry_of(line: Mapping[str, Any]) -> Entry:
    """The entry that `line` was made of.

    Raises:
        UnknownName: a finding's rule is not in this version's catalogue.
    """
    if "standing" in line:
        return Standing(tuple(map(_finding, line["standing"])))
    if "finding" in line:
        return _finding(line["finding"])
    name = next(name for name in PLAIN if name in line)
    return PLAIN[name](**line[name])


def _of_finding(finding: Finding) -> dict[str, Any]:
    """With the id of its rule, or the whole rule if it is a user's own."""
    rule = finding.rule
    return {"state": finding.state_dict(), "rule": rule.model_dump(mode="json", by_alias=True) if rule.own else rule.id}


def _finding(kept: Mapping[str, Any]) -> Finding:
    rule = kept["rule"]
    return Finding.of_state(rule_called(rule) if isinstance(rule, str) else Rule.model_validate(rule), kept["state"])
