"""The decision on a run in one sentence and four tiles: how far off, at what cost, where to resume, what to do."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import declared
from tracker_diag.report.console import digits
from tracker_diag.report.curves import PLACES, QUANTILES, baselines, rests_on
from tracker_diag.report.evidence import damage, spent
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import UNSURE
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

SMALL = 0.05
"""Part of the best level below which a fall that no test has found is not mentioned."""

Tone: TypeAlias = Literal["error", "warn", "ok", "unknown", ""]


@dataclass(frozen=True)
class Tile:
    """One answer: a large value, what it is, and a remark."""

    value: str
    what: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Decision:
    """What to do with a run, and why."""

    verb: str
    """Stop, Watch, Continue, or that the run is too short to judge."""
    why: str
    tone: Tone
    tiles: tuple[Tile, ...]

    def __str__(self) -> str:
        """One sentence or two: the verb and the reason."""
        return f"{self.verb}. {self.why}"


def decide(summary: Summary, cost: str = "") -> Decision:
    """The decision on a run.

    Args:
        cost: what was spent since the onset of the first break; the number of steps by default.
    """
    first, advice = summary.first_break, summary.recommendation
    if first is not None:
        verb = advice.action.capitalize() if advice else "Watch"
        now = _now(summary, first)
        tiles = (_how_far(summary, first, now), _harm(summary, cost), _resume(summary, now), _next(first))
        tones: dict[str, Tone] = {"Stop": "error", "Watch": "warn", "Continue": "ok"}
        return Decision(verb, broke(first, now), tones[verb], tiles)
    rows = f"{summary.steps:,} row{'s' * (summary.steps != 1)}"
    if not summary.judged:
        needs = [f"; the first rules need {line.partition(':')[0]}" for line in summary.short[1:2]]
        return Decision(
            "Too short to judge",
            "".join([f"There {'is' if summary.steps == 1 else 'are'} {rows}", *needs]),
            "unknown",
            (),
        )
    if advice.action != "continue":  # no rule with a record says why: candidates, or the outcome alone
        _, _, why = advice.says.partition(". ")
        return Decision(advice.action.capitalize(), why, "error" if advice.action == "stop" else "warn", _calm(summary))
    return Decision("Continue", f"Nothing is wrong in {rows}, as far as the rules could see", "ok", _calm(summary))


def broke(first: Finding, now: "Now | None" = None) -> str:
    """What broke first, where, how far and since when, in one sentence without a full stop."""
    factor = f", {now.factor} the usual level" if now and now.factor else ""
    end = "" if first.resolved is None else f" to {first.resolved:,}"
    return f"{first.rule.title}{where(first)}{factor}, {'from' if end else 'since'} {since(first)}{end}"


def where(finding: Finding) -> str:
    """The slice in words with a comma before it; empty where it is the whole, or the title says it."""
    place = PLACES.get(finding.slice, f"on {finding.slice}")
    return f", {place}" if place and place not in finding.rule.title else ""


def since(finding: Finding) -> str:
    """The onset: "step 85", or "about step 85" where it is an estimate."""
    return f"{'about ' * _unsure(finding)}step {finding.onset:,}"


def _unsure(finding: Finding) -> bool:
    """Whether the onset is an estimate that may be off by more than a step."""
    return UNSURE * ((finding.fired or finding.onset) - finding.onset) > 1


@dataclass(frozen=True)
class Now:
    """Where the series is that the cause rests on."""

    series: str
    value: float
    step: int
    usual: float | None

    @property
    def factor(self) -> str:
        """The value over the usual one, where the scale is one of factors: "46×"; empty where it is as usual."""
        if declared(self.series).scale != "log" or not self.usual or self.value / self.usual <= 0:
            return ""
        factor = times(self.value / self.usual)
        return "" if factor == times(1.0) else factor


def times(ratio: float) -> str:
    """A factor with two digits: "3.9×", "46×", "0.20×"."""
    return f"{digits(ratio) if ratio >= 99.5 else f'{ratio:.0f}' if ratio >= 9.95 else f'{ratio:.2g}'}×"


def _now(summary: Summary, first: Finding) -> Now | None:
    """The series at its last step; at detection where what broke is over."""
    main = rests_on(first, summary.curves)
    if main is None:
        return None
    name, reading = main
    until = math.inf if first.resolved is None else first.fired or first.onset
    points = {step: value for step, value in summary.curves[name].items() if step <= until and math.isfinite(value)}
    if not points:
        return None
    step = max(points)
    known = baselines(summary).get(name)
    usual = known if known is not None or len(reading.keys) > 1 else reading.baseline
    return Now(name, points[step], step, usual)


def _how_far(summary: Summary, first: Finding, now: Now | None) -> Tile:
    if now is None:
        return Tile("off", f"{first.summary}", f"at step {first.fired}", "error")
    metric = declared(now.series)
    unit = f" {metric.unit}" if metric.unit not in ("", *now.series.split("_")) else ""
    level = digits(now.value) if now.usual is None else f"{digits(now.usual)} → {digits(now.value)}"
    what = name_of(now.series)
    note = ", ".join(filter(None, [f"step {now.step:,}", _other_slice(summary, now, first)]))
    tone: Tone = "error" if summary.level == "error" else "warn"
    if now.factor:
        return Tile(now.factor, f"{what}, {level}{unit}", note, tone)
    return Tile(level, f"{what}{unit and ','}{unit}", note, tone)


def _other_slice(summary: Summary, now: Now, first: Finding) -> str:
    """How the other slice of `context` has moved meanwhile, against its mean before the onset."""
    key = StatKey.parse(now.series)
    if key is None or key.slice not in PLACES or key.slice == "all":
        return ""
    other = "text_only" if key.slice == "post_tool" else "post_tool"
    points = summary.curves.get(StatKey(key.pair, other, key.stat), {})
    before = [value for step, value in points.items() if step < first.onset and value > 0]
    if not before or now.step not in points or points[now.step] <= 0:
        return ""
    return f"{PLACES[other]}: {times(points[now.step] * len(before) / sum(before))}"


def name_of(series: str) -> str:
    """A series in words: "p95 |log-ratio| after tool calls", "reward"."""
    key = StatKey.parse(series)
    if key is None:
        return series.removeprefix("diag/")
    stat = key.stat.removesuffix("_step")
    size = " |log-ratio|" if stat in QUANTILES else ""
    return f"{stat}{size} {PLACES.get(key.slice, key.slice)}".rstrip()


def _outcome(summary: Summary) -> Reading | None:
    """The outcome that lost most of its best level: an evaluation before the reward, what fell before what did not."""
    targets = [reading for reading in summary.best if reading.series != "loss"]
    return min(
        targets,
        key=lambda reading: (not reading.holds, reading.onset is None, reading.series == "reward"),
        default=None,
    )


def harm_began(summary: Summary) -> int | None:
    """Since when the first break's damage is seen: by its findings, or by an outcome that is lost."""
    findings = [
        f.onset for incident in summary.incidents if incident.cause is summary.first_break for f in incident.damage
    ]
    return min([*findings, *(r.onset for r in summary.best if r.holds and r.onset is not None)], default=None)


def marks_of(summary: Summary) -> list[tuple[int, str]]:
    """Where the first break began, was detected, did damage and ended; none where nothing broke."""
    first = summary.first_break
    if first is None:
        return []
    began = f"began{' about' * _unsure(first)}"
    marks = ((first.onset, began), (first.fired, "alert"), (harm_began(summary), "damage"), (first.resolved, "over"))
    return [(step, label) for step, label in marks if step is not None]


def _harm(summary: Summary, cost: str) -> Tile:
    """What it cost: the outcome, then the steps and the time."""
    spending = cost or spent(summary)
    since_onset = f"it began {spending} ago" if spending else ""
    outcome, harm = _outcome(summary), damage(summary)
    if outcome is None or outcome.value is None or outcome.baseline is None:
        what = harm[0] if harm else "no reward and no evaluation could be judged"
        return Tile("harmed" if harm else "not known", what, since_onset, "error" if harm else "unknown")
    began = harm_began(summary)
    proven = began is not None or outcome.holds is True
    lost = (outcome.value - outcome.baseline) / abs(outcome.baseline) if outcome.baseline else math.nan
    if not proven and not lost < -SMALL:
        return Tile("no harm yet", _levels(summary, outcome), since_onset)
    when = "may be noise" if not proven else "" if began is None else f"since step {began:,}"
    value = f"{100 * lost:+.0f} %".replace("-", "\N{MINUS SIGN}") if abs(lost) < 10 else "lost"
    note = "; ".join(filter(None, (when, since_onset)))
    return Tile(value, _levels(summary, outcome), note, "error" if proven else "warn")


def _levels(summary: Summary, outcome: Reading) -> str:
    """Best and last level of an outcome, each a mean of some rows that end at the named step."""
    best, last = (digits(level or 0.0) for level in (outcome.baseline, outcome.value))
    end = max(summary.curves.get(outcome.series, {}), default=summary.last_step or 0)
    return f"{outcome.series}, mean {best} at step {outcome.at or 0:,} → {last} at {end:,}"


def _resume(summary: Summary, now: Now | None) -> Tile:
    """The last step before it began, and why not the best one."""
    advice = summary.recommendation
    if advice is not None and advice.go_on:
        return Tile("no need", "to go back: nothing is off any more")
    good = None if advice is None else advice.last_good_step
    if good is None:
        return Tile("none known", "no step before it is known to be good")
    best = max((r.at for r in summary.best if r.at is not None and r.series != "loss"), default=None)
    note = ""
    if best is not None and best > good and now and now.usual and now.factor:
        points = summary.curves[now.series]
        at = max((step for step in points if step <= best), default=None)
        ratio = 0.0 if at is None else points[at] / now.usual
        note = (
            f"not step {best:,}, the best level: {name_of(now.series)} is {times(ratio)} there" if ratio > 1.2 else ""
        )
    return Tile(f"Step {good:,}", "is the last safe one: resume there or earlier", note)


def _next(first: Finding) -> Tile:
    text = first.rule.remedy[0] if first.rule.remedy else "See the evidence below."
    return Tile("Do first:", text)


def _calm(summary: Summary) -> tuple[Tile, ...]:
    """Of a run in which nothing was found: its outcomes, what could see, and what would show more."""
    levels = [
        Tile(
            digits(r.value),
            f"{r.series}, its last level",
            f"{digits(r.baseline)} at its best, up to step {r.at:,}; each a mean of some rows",
        )
        for r in summary.best
        if r.value is not None and r.baseline is not None and r.at is not None
    ]
    opens = remedies(summary.blind)
    more = [Tile("To see more:", opens[0][0], f"opens {len(opens[0][1])} rules")] if opens else []
    seeing, _, lacking = sighted(summary).partition(" active, ")
    return (*levels[:2], Tile(f"{seeing} rules", "could see, and found nothing", lacking), *more)
