"""The decision on a run in one sentence and four tiles: how far off, at what cost, what to do, where to resume."""

from dataclasses import dataclass

from tracker_diag.report import tiles
from tracker_diag.report.console import cut
from tracker_diag.report.curves import PLACES, main_finding
from tracker_diag.report.tiles import Tile, Tone
from tracker_diag.rules.few_rows import waiting
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import UNSURE, beginning, never_rose
from tracker_diag.rules.signals.non_finite import NonFinite
from tracker_diag.rules.triage import Summary

TONES: dict[str, Tone] = {"stop": "error", "watch": "warn", "continue": "ok", "too_short": "unknown"}
"""Of a decision, by the action that is recommended."""


@dataclass(frozen=True)
class Decision:
    """What to do with a run, and why."""

    verb: str
    """Stop, Watch, Continue, or that the run is too short to judge."""
    why: str
    tone: Tone
    tiles: tuple[Tile, ...]
    remark: str = ""
    """How much the reason can be trusted, where that is to be known."""

    def __str__(self) -> str:
        """One sentence or two: the verb and the reason."""
        return f"{self.verb}. {self.why}"


def decide(summary: Summary, cost: str = "") -> Decision:
    """The decision on a run; `cost` is what was spent since the onset of the first break, by default in steps."""
    first, action = main_finding(summary), summary.recommendation.action
    verb, rows = _verb(summary), f"{summary.steps:,} row{'s' * (summary.steps != 1)}"
    if first is not None:
        now = tiles.where_it_is(summary, first)
        tone: Tone = "info" if first.unproven else TONES[action]
        end = "" if first.resolved is None else f" to {first.resolved:,}"
        when = f"{'from' if end else 'since'} {since(first)}{end}"
        if now and now.factor:
            why = f"{what(first)} {when}, {now.factor} the usual level at step {now.step:,}"
        else:
            why = f"{what(first)}{tiles.levels(summary, first, now)}, {when}"
        remark = f"A note, no alarm: how often {first.rule.id} is right is not measured well enough yet"
        shown = tiles.tiles_of(summary, first, now, cost, tone)
        return Decision(verb, why, tone, shown, remark if first.unproven else "")
    if not summary.judged:
        groups = waiting(summary.blind)
        first_rules = f"; the first rules can judge after {summary.steps + groups[0].more:,}" if groups else ""
        return Decision("Too short to judge", f"{rows} so far{first_rules}", "unknown", tiles.short_tiles(summary))
    if action != "continue":  # the outcome is lost, and no rule says why
        _, _, why = summary.recommendation.says.partition(". ")
        return Decision(verb, why, TONES[action], tiles.calm_tiles(summary))
    why = f"Nothing is wrong in {rows}, as far as the rules could see"
    if fell := " and ".join(map(tiles.fallen, filter(tiles.has_fallen, summary.best))):
        why = f"But {fell}; no rule knows why"
    return Decision(verb, why, "warn" if fell else TONES[action], tiles.calm_tiles(summary))


def _verb(summary: Summary) -> str:
    """What to do, in a few words that fit a run that has ended too."""
    advice = summary.recommendation
    if not summary.over or advice.action not in ("stop", "watch"):
        return advice.verb
    back = "start again" if advice.last_good_step is None else f"resume from step {advice.last_good_step:,}"
    return f"Fix it, then {back}" if advice.action == "stop" else "Check it"


def what(finding: Finding) -> str:
    """What a finding says and where, with the name of a series that is not finite."""
    signals = finding.rule.signals
    nan = (f" in {it.series}" for it in finding.evidence if it.holds and isinstance(signals.get(it.signal), NonFinite))
    return f"{finding.rule.title}{next(nan, '')}{where(finding)}"


def where(finding: Finding) -> str:
    """The slice in words with a comma before it; empty where it is the whole, or the title says it."""
    place = PLACES.get(finding.slice, f"on {cut(finding.slice, 60)}")
    return f", {place}" if place and place not in finding.rule.title else ""


def since(finding: Finding) -> str:
    """The onset: "step 85", or "about step 85" where it is an estimate."""
    return f"{'about ' * _unsure(finding)}{beginning(finding)}"


def _unsure(finding: Finding) -> bool:
    """Whether the onset is an estimate that may be off by more than a step."""
    return not never_rose(finding) and UNSURE * ((finding.fired or finding.onset) - finding.onset) > 1


def marks_of(summary: Summary) -> list[tuple[int, str, Tone]]:
    """Where the first break began, was detected, did damage and ended: step, label, tone; none where nothing broke."""
    first = main_finding(summary)
    if first is None:
        return []
    began, seen = f"since{' about' * _unsure(first)}", "noted" if first.unproven else "alert"
    tone: Tone = "info" if first.unproven else "warn" if summary.recommendation.action == "watch" else "error"
    marks: tuple[tuple[int | None, str, Tone], ...] = (
        (None if never_rose(first) else first.onset, began, tone),
        (first.fired, seen, ""),
        (tiles.harm_began(summary), "damage", tone),
        (first.resolved, "over", ""),
    )
    return [(step, f"{label} {step:,}", tone) for step, label, tone in marks if step is not None]
