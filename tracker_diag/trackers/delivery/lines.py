"""Lines: what is written to a tracker as a line of its journal, and back."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import rule_called
from tracker_diag.rules.model import Rule
from tracker_diag.trackers.tracker import Description, Entry, Event, File, Metrics

PLAIN: Mapping[str, type[Metrics | Notice | Event | Description | File]] = {
    "metrics": Metrics, "alert": Notice, "event": Event, "description": Description, "file": File,
}  # fmt: skip
"""Entries whose values are JSON, by their key in a line."""

LINED = (Finding, *PLAIN.values())
"""All that a line can be made of, but for scalars."""


def line_of(entry: Entry) -> dict[str, Any]:
    """A line of an entry of `PLAIN`, or of a finding.

    A finding has the id of its rule, or the whole rule if it is a user's own.
    """
    if isinstance(entry, Finding):
        rule = entry.rule
        own = {"own_rule": rule.model_dump(mode="json", by_alias=True)} if rule.own else {}
        return {"finding": entry.state_dict(), "rule": rule.id, **own}
    return {next(name for name, kind in PLAIN.items() if isinstance(entry, kind)): dict(vars(entry))}


def entry_of(line: Mapping[str, Any]) -> Entry:
    """The entry that `line` was made of.

    Raises:
        UnknownName: a finding's rule is not in this version's catalogue.
    """
    if "finding" in line:
        own = line.get("own_rule")
        rule = rule_called(line["rule"]) if own is None else Rule.model_validate(own)
        return Finding.of_state(rule, line["finding"])
    name = next(name for name in PLAIN if name in line)
    return PLAIN[name](**line[name])
