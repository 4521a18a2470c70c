"""Findings: a rule that is pending, firing or resolved on a slice, with the evidence it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any, Literal, TypeAlias

from tracker_diag.metrics.series import ALL, Pair, any_of
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.record import tier_of
from tracker_diag.stats.attribution import Carrier

State: TypeAlias = Literal["pending", "firing", "resolved"]

EVIDENCE = ("signal", "series", "holds", "value", "baseline", "n")
"""What JSON has of a reading."""


@dataclass(frozen=True, repr=False)
class Finding:
    """A rule on a slice, from its onset on. Steps are training steps."""

    rule: Rule
    pair: Pair | None
    slice: str
    state: State
    onset: int
    """First step of the change, as the signals date it; never after `fired`."""
    fired: int | None
    resolved: int | None
    summary: str
    evidence: tuple[Reading, ...]
    inhibited_by: str | None = None
    carried_by: tuple[Carrier, ...] = ()
    """Cells that carried most of it when it fired, if tensors showed them."""
    spared: bool = False
    """Whether no harm has been seen since it fired: the rule's `harmless` has held all the while."""
    raised: int | None = None
    """The step at which harm was first seen, if none was when it fired; until then it is a note."""
    unproven: bool = False
    """Whether it is in an incident that no rule with a record is above info in; see `rules.record`."""
    before: int | None = None
    """The last step before its onset that the run logged; None where that is not known."""

    @property
    def good_until(self) -> int:
        """The last step that it says nothing against: runs do not log at every step."""
        return self.onset - 1 if self.before is None else self.before

    @property
    def severity(self) -> Severity:
        """That of its rule, or info where no harm is seen or no rule with a record confirms it."""
        return "info" if self.unproven else self.full_severity

    @property
    def full_severity(self) -> Severity:
        """That of its rule, or info where no harm is seen, whatever its record."""
        return "info" if self.spared else self.rule.severity

    def __str__(self) -> str:
        """One line: rule, place, state and what it says."""
        place = self.slice if self.pair is None else f"{self.pair}, {self.slice}"
        when = f"from step {self.onset}" + (f" to {self.resolved}" if self.resolved is not None else "")
        return f"{self.rule.id} {self.rule.title} ({place}): {self.severity}, {self.state} {when}. {self.summary}."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows: the same, with what to do."""
        place = "" if self.slice == "all" else f" on {self.slice}"
        when = f"onset at step {self.onset}" + ("" if self.fired is None else f", detected at step {self.fired}")
        head = f"<b>{escape(self.rule.title + place)}</b> ({self.rule.id}, {self.severity}, {self.state}): {when}"
        todo = "".join(f"<li>{escape(text)}</li>" for text in self.rule.remedy)
        return f"<div>{head}<br>{escape(self.summary)}.<ol>{todo}</ol></div>"

    def moved(self, **changes: object) -> "Finding":
        return replace(self, **changes)  # type: ignore[arg-type]  # the names are this class's own fields

    def covers(self, rule: Rule, pair: Pair | None, slice: str) -> bool:
        """Whether what `rule` finds on this pair and slice is a part of what this finding names.

        A rule that looks at several pairs is about one of them; what another pair does explains nothing. Where a rule
        without pairs finds one tool, that explains what it finds of all of them.
        """
        if rule.id == self.rule.id:
            return self.pair is None and any_of(self.slice) is not None and slice == ALL
        same_pair = self.pair == pair or self.pair not in rule.pairs
        covered = self.slice in (slice, "all") or any_of(self.slice) is not None  # its tokens are in every context
        return rule.id in self.rule.inhibits and covered and same_pair

    def state_dict(self) -> dict[str, Any]:
        """All but the rule, in JSON values."""
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "rule"}
        evidence = [reading.state_dict() for reading in self.evidence]
        return kept | {"evidence": evidence, "carried_by": [carrier.to_json() for carrier in self.carried_by]}

    @classmethod
    def of_state(cls, rule: Rule, state: Mapping[str, Any]) -> "Finding":
        """The finding of `rule` that `state_dict` was taken of."""
        evidence = tuple(Reading.of_state(reading) for reading in state["evidence"])
        carried_by = tuple(Carrier(**carrier) for carrier in state["carried_by"])
        kept: dict[str, Any] = {**state, "evidence": evidence, "carried_by": carried_by}
        return cls(rule=rule, **kept)

    def to_json(self) -> dict[str, object]:
        """The finding as `tracker-diag diagnose --json` prints it."""
        rule = self.rule
        return {
            "rule": rule.id,
            "name": rule.name,
            "link": rule.link,
            "tier": tier_of(rule),
            "pair": self.pair,
            "slice": self.slice,
            "severity": self.severity,
            "state": self.state,
            "onset": self.onset,
            "fired": self.fired,
            "resolved": self.resolved,
            "summary": self.summary,
            "evidence": [{name: getattr(reading, name) for name in EVIDENCE} for reading in self.evidence],
            "remedy": list(rule.remedy),
            "inhibited_by": self.inhibited_by,
            "carried_by": [carrier.to_json() for carrier in self.carried_by],
        }


Identity: TypeAlias = tuple[str, str | None, str, int]


def identity(finding: Finding) -> Identity:
    """What makes two states of a finding the same finding."""
    return finding.rule.id, finding.pair, finding.slice, finding.onset
