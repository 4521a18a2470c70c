"""Incidents: findings that belong together, reported as one: the cause first, then its symptoms, the damage last.

The rules have what leads to what: `inhibits` names the parts of a pathology, `leads_to` what it brings about. The
outcome is the damage of whatever harms the update.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tracker_diag.metrics.series import any_of
from tracker_diag.rules.findings import Finding, identity
from tracker_diag.rules.model import Link, Severity
from tracker_diag.rules.record import tier_of
from tracker_diag.rules.signals.gain import Gain

DIAGNOSTIC_ORDER: tuple[str, ...] = get_args(Link)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

DAMAGE: Link = "outcome"

MOST_CAUSES = 64
"""Findings of one incident among which its cause is looked for, the first ones."""

UNSURE = 0.25
"""Part of the time until a finding fired by which its onset is unsure. Of 100 planted onsets, 97 are no earlier."""

AT_ONCE = 0.1
"""A reward never rose by some step. A cause within this part of the time until then has begun with the run."""

HARMLESS: frozenset[Link] = frozenset({"resources", DAMAGE})
"""Links that cost time or are the damage themselves, and so bring no damage about."""


@dataclass(frozen=True, repr=False)
class Incident:
    """One thing that went wrong, with all that is seen of it."""

    cause: Finding
    """The earliest that none of the others leads to."""
    symptoms: tuple[Finding, ...] = ()
    """By onset; what repeats the cause or another symptom, or is a part of it, comes last."""
    damage: tuple[Finding, ...] = ()
    """What it has done to reward or evaluation, by onset."""
    acknowledged: str = ""
    """Why it needs no action, as a person said; empty where nobody did. See `rules.acknowledged`."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of it: the cause, its symptoms, the damage; and last what is a part of the cause, and so says no more."""
        parts = [symptom for symptom in self.symptoms if symptom.rule.id in self.cause.rule.inhibits]
        others = [symptom for symptom in self.symptoms if symptom.rule.id not in self.cause.rule.inhibits]
        return (self.cause, *others, *self.damage, *parts)

    @property
    def onset(self) -> int:
        return self.cause.onset

    @property
    def good_until(self) -> int:
        """The last step that it says nothing against."""
        return self.cause.good_until

    @property
    def id(self) -> str:
        """Its name among those of the run; another one if a better cause is found."""
        place = ":".join(part for part in (self.cause.pair, self.cause.slice) if part)
        return f"{self.cause.rule.id}@{self.onset}:{place}"

    @property
    def severity(self) -> Severity:
        """By consequence: error where the outcome is harmed by what is named, else the highest of its findings.

        A fall of the outcome that nothing explains, and that it has made good, has had no consequence: info.
        """
        if self.cause.unproven or (self.cause.rule.link == DAMAGE and self.state == "resolved"):
            return "info"
        severities: set[Severity] = {finding.severity for finding in self.findings}
        worst = max(severities, key=SEVERITIES.index)
        return "error" if self.damage and self.cause.rule.link != DAMAGE else worst

    @property
    def state(self) -> Literal["firing", "resolved"]:
        return "firing" if any(finding.state == "firing" for finding in self.findings) else "resolved"

    @property
    def cell(self) -> str | None:
        """The tool, the environment or another cell that it is about, where one is known."""
        if any_of(self.cause.slice):
            return self.cause.slice
        return self.cause.carried_by[0].cell if self.cause.carried_by else None

    @property
    def summary(self) -> str:
        """One line: what the cause says, and how much hangs on it."""
        rules = dict.fromkeys(finding.rule.id for finding in self.symptoms)
        parts = [self.cause.summary]
        if rules:
            parts.append(f"with it {', '.join(rules)}")
        known = [f"acknowledged: {self.acknowledged}"] if self.acknowledged else []
        return "; ".join([*parts, *(finding.summary for finding in self.damage), *known])

    def __str__(self) -> str:
        """One line: severity, since when, what and where."""
        return f"{self.severity}, {self.state} since step {self.onset}: {self.cause.rule.title}. {self.summary}."

    __repr__ = __str__

    def as_note(self) -> "Incident":
        """The incident with every finding lowered to a note."""
        findings = (self.cause, *self.symptoms, *self.damage)
        cause, *others = (finding.moved(unproven=True) for finding in findings)
        return Incident(cause, tuple(others[: len(self.symptoms)]), tuple(others[len(self.symptoms) :]))

    def to_json(self) -> dict[str, object]:
        """The incident as `tracker-diag diagnose --json` prints it; its findings are named, not repeated."""
        return {
            "id": self.id,
            "severity": self.severity,
            "onset": self.onset,
            "state": self.state,
            "acknowledged": self.acknowledged or None,
            "cause": _named(self.cause),
            "symptoms": [_named(finding) for finding in self.symptoms],
            "damage": [_named(finding) for finding in self.damage],
            "cell": self.cell,
            "summary": self.summary,
        }


def incidents(findings: Collection[Finding]) -> tuple[Incident, ...]:
    """The incidents of those `findings` that fired, the earliest first.

    A candidate opens no incident: what candidates alone have found is a note.
    """
    together = connected(findings)
    settled = (it if it.severity == "info" or any(map(_is_proven, it.findings)) else it.as_note() for it in together)
    return tuple(sorted(settled, key=_rank))


def weighed(findings: Collection[Finding], together: Iterable[Incident]) -> list[Finding]:
    """`findings`, in their order, each with the severity that it has in its incident of `together`.

    What is pending is part of no incident: there a candidate is a note.
    """
    parts = {identity(part): part for incident in together for part in incident.findings}
    settled = [parts.get(identity(finding), finding) for finding in findings]
    return [it.moved(unproven=True) if it.fired is None and not _is_proven(it) else it for it in settled]


def connected(findings: Collection[Finding]) -> tuple[Incident, ...]:
    """The same, as loud as their rules are, whatever record these have.

    Damage goes with what began last before it; where nothing had, with the last that had begun when it was seen; if
    there is none, it is alone. Of a reward that has never risen it is what began with the run. What has recovered by
    itself and what is of severity info alone comes after what has not. What has harmed the outcome comes before what
    has not, and what only costs time comes last.
    """
    fired = sorted((f for f in findings if f.fired is not None), key=_order)
    groups = _connected([f for f in fired if f.rule.link != DAMAGE])
    causes = [_cause(group) for group in groups]
    for at, (cause, group) in enumerate(zip(causes, groups, strict=True)):
        harm = [it.fired if it.raised is None else it.raised for it in group if it.full_severity != "info"]
        if cause.spared and harm:
            since = min(step for step in harm if step is not None)
            causes[at] = cause.moved(spared=False, raised=since if since > (cause.fired or 0) else None)
            groups[at] = [causes[at] if finding is cause else finding for finding in group]
    harmed: dict[int, list[Finding]] = {}
    alone: list[Finding] = []
    for damage in (f for f in fired if f.rule.link == DAMAGE):
        of_damage = alone if (i := _behind(damage, groups)) is None else harmed.setdefault(i, [])
        of_damage.append(damage)
    together = [
        Incident(cause, _symptoms(cause, group), tuple(harmed.get(i, ())))
        for i, (cause, group) in enumerate(zip(causes, groups, strict=True))
    ]
    for group in _overlapping(alone):
        cause = _cause(group)
        together.append(Incident(cause, (), tuple(finding for finding in group if finding is not cause)))
    return tuple(sorted(together, key=_rank))


def _rank(incident: Incident) -> tuple[bool, bool, bool, tuple[int, int, int]]:
    """Its place: a note comes last, before it what only makes the machines dear."""
    only_costs = all(finding.rule.link == "resources" for finding in incident.findings)
    return incident.severity == "info", only_costs, incident.severity != "error", _order(incident.cause)


def never_rose(finding: Finding) -> bool:
    """Whether it is of an outcome that has gained nothing in the whole run. Its onset is when that was seen."""
    return any(isinstance(signal, Gain) and signal.never for signal in finding.rule.signals.values())


def beginning(finding: Finding) -> str:
    """Since when it is so, in words: "step 85"."""
    return "the first step" if never_rose(finding) else f"step {finding.onset:,}"


def reaches(cause: Finding, step: int) -> bool:
    """Whether what begins at `step` may come of `cause`: it is not over, or not for as long as it lasted."""
    return cause.resolved is None or step <= 2 * cause.resolved - cause.onset


def explains(cause: Finding, finding: Finding) -> bool:
    """Whether `finding` is a part of what `cause` names: its rule says so, on the same slice and at the same time.

    A cause does not begin after what it explains. But an onset is an estimate. So the cause may seem to begin later
    than `finding` fired, by its own time to fire.
    """
    if cause.fired is None or finding.fired is None:
        return False
    too_late = cause.onset - finding.fired > cause.fired - cause.onset
    over = cause.resolved is not None and cause.resolved < finding.onset
    return cause.covers(finding.rule, finding.pair, finding.slice) and not too_late and not over


def _symptoms(cause: Finding, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """All but the cause: each rule once, then those that fired again or on another slice, or are parts of others."""
    listed, parts = {cause.rule.id}, _parts(findings)
    first, again = list[Finding](), list[Finding]()
    for i, finding in enumerate(findings):
        if finding is not cause:
            (again if finding.rule.id in listed or i in parts else first).append(finding)
            listed.add(finding.rule.id)
    return (*first, *again)


def _parts(findings: Sequence[Finding]) -> set[int]:
    """Those that others explain, by index."""
    pairs = ((whole, part) for i, j in _related(findings) for whole, part in ((i, j), (j, i)))
    return {part for whole, part in pairs if explains(findings[whole], findings[part])}


def _cause(findings: Sequence[Finding]) -> Finding:
    """The earliest finding with no cause of its own, above info or with such an effect; of a cycle, its earliest."""
    loud = [finding for finding in findings if finding.full_severity != "info"]
    # A note that led to something loud is the cause of it.
    notes = [note for note in findings if note.spared and any(_leads_to(note, effect) for effect in loud)]
    loud = sorted((*loud, *notes), key=_order) or list(findings)
    parts = _parts(loud)
    whole = [finding for i, finding in enumerate(loud) if i not in parts] or loud  # rules may explain each other
    candidates = whole[:MOST_CAUSES]
    direct: list[set[int]] = [set() for _ in candidates]
    for i, j in _related(candidates):
        for cause, effect in ((i, j), (j, i)):
            if _leads_to(candidates[cause], candidates[effect]):
                direct[effect].add(cause)
    causes = [
        {i for i in _all_causes(at, direct) if candidates[i].onset - effect.onset <= _unsure(effect)}
        for at, effect in enumerate(candidates)
    ]
    return next(finding for i, finding in enumerate(candidates) if all(i in causes[j] for j in causes[i]))


def _all_causes(effect: int, direct: Sequence[set[int]]) -> set[int]:
    """Direct and indirect causes of `effect`, by index."""
    causes: set[int] = set()
    new = set(direct[effect])
    while new:
        causes |= new
        new = {further for cause in new for further in direct[cause]} - causes
    return causes


def _leads_to(cause: Finding, finding: Finding) -> bool:
    """Whether the rule of `cause` leads to that of `finding`, and the onsets allow it within their uncertainty."""
    is_listed = finding.rule.id in cause.rule.leads_to
    return is_listed and cause.onset - finding.onset <= _unsure(finding) and _overlap(cause, finding)


def _hangs_together(a: Finding, b: Finding) -> bool:
    """Whether the two belong to one incident, whichever came first."""
    if a.rule.id == b.rule.id:
        first, second = sorted((a, b), key=_order)
        same_place = (a.pair, a.slice) == (b.pair, b.slice)
        return _overlap(a, b) and (same_place or second.onset <= (first.fired or 0))
    near = b.rule.id in a.rule.leads_to or a.rule.id in b.rule.leads_to
    return (near and _overlap(a, b)) or explains(a, b) or explains(b, a)


def _behind(damage: Finding, groups: Sequence[Sequence[Finding]]) -> int | None:
    """The group that `damage` goes with, by index; None if nothing that harms had begun when it was seen."""
    begun = [(finding, i) for i, group in enumerate(groups) for finding in group if _harms(finding, damage)]
    if not begun:
        return None
    seen = damage.fired or damage.onset
    whole = never_rose(damage)
    by = AT_ONCE * seen if whole else damage.onset + _unsure(damage)
    before = [(finding, i) for finding, i in begun if finding.onset - _unsure(finding) <= by]
    first_or_last = min if whole and before else max
    return first_or_last(before or begun, key=lambda pair: pair[0].onset)[1]


def _unsure(finding: Finding) -> float:
    """Steps by which the onset may be another one."""
    return UNSURE * ((finding.fired or finding.onset) - finding.onset)


def _harms(cause: Finding, damage: Finding) -> bool:
    """Whether `cause` can harm, had begun when `damage` was seen, and still had an effect when that began."""
    can_harm = cause.rule.link not in HARMLESS and cause.full_severity != "info"
    return can_harm and damage.fired is not None and cause.onset <= damage.fired and _overlap(cause, damage)


def _overlap(a: Finding, b: Finding) -> bool:
    """Whether the later of both began before the earlier had been over for as long as it had lasted."""
    first, second = sorted((a, b), key=_order)
    return reaches(first, second.onset)


def _related(findings: Sequence[Finding]) -> Iterator[tuple[int, int]]:
    """Pairs of `findings`, by index, of which one rule is the other, a part of it, or its symptom."""
    by_rule: dict[str, list[int]] = {}
    for i, finding in enumerate(findings):
        by_rule.setdefault(finding.rule.id, []).append(i)
    for rule, its in by_rule.items():
        first = findings[its[0]].rule
        for other in {rule, *first.leads_to, *first.inhibits} & by_rule.keys():
            yield from ((i, j) for i in its for j in by_rule[other] if i < j or (other != rule and i != j))


def _connected(findings: Sequence[Finding]) -> list[list[Finding]]:
    """`findings`, in their order, in groups of which each is held together by pairs that hang together."""
    into = list(range(len(findings)))

    def group(i: int) -> int:
        while into[i] != i:
            into[i] = into[into[i]]
            i = into[i]
        return i

    for i, j in _related(findings):
        first, second = sorted((group(i), group(j)))
        if first != second and _hangs_together(findings[i], findings[j]):
            into[second] = first
    groups: dict[int, list[Finding]] = {}
    for i, finding in enumerate(findings):
        groups.setdefault(group(i), []).append(finding)
    return list(groups.values())


def _overlapping(findings: Sequence[Finding]) -> list[list[Finding]]:
    """`findings`, in their order, in groups of which each overlaps with its first."""
    groups: list[list[Finding]] = []
    for finding in findings:
        if groups and _overlap(groups[-1][0], finding):
            groups[-1].append(finding)
        else:
            groups.append([finding])
    return groups


def _order(finding: Finding) -> tuple[int, int, int]:
    return finding.onset, DIAGNOSTIC_ORDER.index(finding.rule.link), finding.fired or 0


def _is_proven(finding: Finding) -> bool:
    return finding.full_severity != "info" and tier_of(finding.rule) != "candidate"


def _named(finding: Finding) -> dict[str, object]:
    return {"rule": finding.rule.id, "pair": finding.pair, "slice": finding.slice, "onset": finding.onset}
