"""The tiles below a decision, each with one answer: how far it is off, at what cost, where to resume, what to do."""

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import declared
from tracker_diag.report.console import cut, digits
from tracker_diag.report.curves import PLACES, QUANTILES, baselines, main_finding, other_slice, rests_on
from tracker_diag.report.evidence import damage, spent
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.rules.few_rows import waiting
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.reading import Reading, different
from tracker_diag.rules.recommendation import watched_level
from tracker_diag.rules.triage import Summary

Tone: TypeAlias = Literal["error", "warn", "info", "ok", "unknown", ""]


@dataclass(frozen=True)
class Tile:
    """One answer: a large value, what it is, and a remark."""

    value: str
    what: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Now:
    """Where a series is that the cause rests on."""

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


def where_it_is(summary: Summary, first: Finding) -> Now | None:
    """The series that the cause rests on at its last step; at detection where what broke is over."""
    main = rests_on(first, summary.curves)
    return main and _now(summary, first, *main)


def _now(summary: Summary, first: Finding, name: str, reading: Reading) -> Now | None:
    until = math.inf if first.resolved is None else first.fired or first.onset
    points = {step: value for step, value in summary.curves[name].items() if step <= until and math.isfinite(value)}
    if not points:
        return None
    step = max(points)
    own = reading.baseline if len(reading.keys) == 1 else None
    return Now(name, points[step], step, baselines(summary).get(name) if own is None else own)


def tiles_of(summary: Summary, first: Finding, now: Now | None, cost: str, tone: Tone) -> tuple[Tile, ...]:
    """How far the first break is off, its cost, what to do first, where to resume or what to watch."""
    spending, shown = cost or spent(summary), _next_to_outcome(summary, first, now)
    lasted = f"visible for {spending}" if first.resolved is None else f"the finding lasted {spending}"
    if now is not None and shown is None:  # no other series shows how far it is off
        steps, _, time = spending.partition(", ")
        what = f"since it began, {time}" if time else "since it began"
        far = Tile(steps or "just now", what, f"seen at step {first.fired}")
    else:
        far = _how_far(summary, first, shown, lasted if spending else "", tone)
    todo = Tile("Do first", first.rule.remedy[0] if first.rule.remedy else "See the evidence below.")
    tiles = (far, _harm(summary), todo, _resume(summary, first, now))
    return tuple(replace(tile, tone=tile.tone and tone) for tile in tiles) if tone == "info" else tiles


def levels(summary: Summary, first: Finding, now: Now | None) -> str:
    """What the first break rests on, usual and now, as in the tiles: " (reward 0.2 → 0.9, eval_score 0.4 → 0.3)"."""
    if now is None or now.usual is None:
        return ""
    outcome, shown = _outcome(summary), _next_to_outcome(summary, first, now)
    known = [(it.series, it.usual or 0.0, it.value) for it in [shown] if it is not None]
    if outcome is not None and (now.series == outcome.series or declared(now.series).outcome):
        known.append((outcome.series, outcome.baseline or 0.0, outcome.value or 0.0))
    return f" ({', '.join(f'{name_of(name)} {digits(usual)} → {digits(value)}' for name, usual, value in known)})"


def has_fallen(outcome: Reading) -> bool:
    """Whether an outcome that is to be high is lost or falling, by its test."""
    known = outcome.series != "loss" and outcome.value is not None and outcome.baseline is not None
    return known and (bool(outcome.holds) or outcome.onset is not None)


def fallen(outcome: Reading) -> str:
    """How far an outcome fell, and since when."""
    best, last = _both(outcome.baseline or 0.0, outcome.value or 0.0)
    when = "" if outcome.onset is None else f" since about step {outcome.onset:,}"
    return f"{outcome.series} fell from {best} to {last}{when}"


def _both(best: float, now: float) -> tuple[str, str]:
    """Two levels of an outcome, so that they look different if they are."""
    texts = digits(best), digits(now)
    return different(best, now) if texts[0] == texts[1] else texts


def _next_to_outcome(summary: Summary, first: Finding, now: Now | None) -> Now | None:
    """`now`; if that is the outcome, which has a tile of its own, another series that the finding rests on."""
    outcome = _outcome(summary)
    if now is None or outcome is None or now.series != outcome.series:
        return now
    held = [it for it in first.evidence if it.holds and it.baseline is not None and len(it.keys) == 1]
    drawn = [(str(it.keys[0]), it) for it in held if str(it.keys[0]) in summary.curves]
    there = (_now(summary, first, name, reading) for name, reading in drawn if name != now.series)
    return next(filter(None, there), None)


def _how_far(summary: Summary, first: Finding, now: Now | None, ago: str, tone: Tone) -> Tile:
    if now is None:
        return Tile("off", cut(first.summary, 150), "; ".join(filter(None, [f"at step {first.fired}", ago])), tone)
    metric = declared(now.series)
    unit = f" {metric.unit}" if metric.unit not in ("", *now.series.split("_")) else ""
    level = digits(now.value) if now.usual is None else f"{digits(now.usual)} → {digits(now.value)}"
    what = name_of(now.series)
    note = "; ".join(filter(None, [ago, _other_slice(summary, now, first)]))
    if now.factor:
        return Tile(now.factor, f"{what}, {level}{unit} at step {now.step:,}", note, tone)
    when = f"at step {now.step:,}" if now.usual is None else f"its usual level and at step {now.step:,}"
    return Tile(level, f"{what}{unit and ','}{unit}, {when}", note, tone)


def _other_slice(summary: Summary, now: Now, first: Finding) -> str:
    """How the other slice of `context` has moved meanwhile, against its mean before the onset."""
    for other in other_slice(now.series):
        points = summary.curves.get(other, {})
        before = [value for step, value in points.items() if step < first.onset and value > 0]
        if before and points.get(now.step, 0.0) > 0:
            return f"{PLACES[other.slice]}: {times(points[now.step] * len(before) / sum(before))} the usual level"
    return ""


def name_of(series: str) -> str:
    """A series in words: "p95 |log-ratio| after tool results", "reward"."""
    key = StatKey.parse(series)
    if key is None:
        return series.removeprefix("diag/")
    stat = key.stat.removesuffix("_step")
    size = " |log-ratio|" if stat in QUANTILES else ""
    return f"{stat}{size} {PLACES.get(key.slice, key.slice)}".rstrip()


def _outcome(summary: Summary) -> Reading | None:
    """The outcome that lost most of its best level: an evaluation before the reward, what fell before what did not."""
    targets = [it for it in summary.best if it.series != "loss" and it.value is not None and it.baseline is not None]
    return min(targets, key=lambda it: (not it.holds, it.onset is None, it.series == "reward"), default=None)


def harm_began(summary: Summary) -> int | None:
    """Since when the first break's damage is seen: by its findings, or by an outcome that is lost."""
    first = main_finding(summary)
    findings = [f.onset for incident in summary.incidents if incident.cause is first for f in incident.damage]
    return min([*findings, *(r.onset for r in summary.best if r.holds and r.onset is not None)], default=None)


def _harm(summary: Summary) -> Tile:
    """What it did to the outcome, and since when."""
    outcome, harm = _outcome(summary), damage(summary)
    if outcome is None or outcome.value is None or outcome.baseline is None:
        what = harm[0] if harm else "no reward and no evaluation could be judged"
        return Tile("harmed" if harm else "not known", what, "", "error" if harm else "unknown")
    began, sinks = harm_began(summary), outcome.onset
    proven = began is not None or outcome.holds is True
    lost = (outcome.value - outcome.baseline) / abs(outcome.baseline) if outcome.baseline else math.nan
    best, now = _both(outcome.baseline, outcome.value)
    levels = f"{outcome.series}, {best} at its best → {now} recently"
    end = max(summary.curves.get(outcome.series, {}), default=summary.last_step or 0)
    means = f"means of several steps: the first ends at step {outcome.at or 0:,}, the second at step {end:,}"
    if not proven and sinks is None and not lost < -0.05:
        return Tile("no harm yet", levels, means)
    onset = sinks if began is None else began
    when = [f"damage since step {onset:,}"] if onset is not None else ["no sure fall yet"] * (not proven)
    value = f"{100 * lost:+.0f} %".replace("-", "\N{MINUS SIGN}") if abs(lost) < 10 else "lost"
    return Tile(value, levels, "; ".join([*when, means]), "error" if proven or sinks is not None else "warn")


def _resume(summary: Summary, first: Finding, now: Now | None) -> Tile:
    """The last step before it began, and why not the best one; what to watch where the run may continue so far."""
    advice = summary.recommendation
    if advice.action == "watch":
        return _watch(summary, first)
    if advice.go_on:
        return Tile("no need", "to go back: nothing is off any more")
    good = advice.last_good_step
    if good is None:
        return Tile("none known", "no step before it is known to be good")
    best = max((r.at for r in summary.best if r.at is not None and r.series != "loss"), default=good)
    note = ""
    if best > good and now and now.usual and now.factor:
        points = summary.curves[now.series]
        step = max((step for step in points if step <= best), default=None)
        ratio = 0.0 if step is None else points[step] / now.usual
        note = "later steps scored higher, but the fault had begun" * (ratio > 1.2)
    where = "this checkpoint" if good in summary.checkpoints else "your last checkpoint at or before this step"
    return Tile(f"Step {good:,}", f"fix the cause first, then resume from {where}", note)


def _watch(summary: Summary, first: Finding) -> Tile:
    """What to look at, and until when."""
    level, advice = watched_level(first, summary.best), summary.recommendation
    what = f"{name_of(level.series)} is near {digits(level.baseline or 0.0)} again" if level else "this finding is over"
    good = advice.last_good_step
    then = "stop" if good is None else f"resume from step {good:,}"
    return Tile("Watch until", what, f"if {advice.target} falls, {then}")


def calm_tiles(summary: Summary) -> tuple[Tile, ...]:
    """Of a run in which nothing was found: its outcomes, what could see, and what would show more."""
    shown = [
        Tile(
            digits(r.value),
            f"{r.series}, mean of the last rows",
            f"its best: {digits(r.baseline)}, the mean of several rows up to step {r.at:,}",
            "warn" if has_fallen(r) else "",
        )
        for r in summary.best
        if r.value is not None and r.baseline is not None and r.at is not None
    ]
    seeing, _, lacking = sighted(summary).partition(" active, ")
    return (*shown[:2], Tile(f"{seeing} rules", "could see, and found nothing", lacking), *_to_see_more(summary))


def short_tiles(summary: Summary) -> tuple[Tile, ...]:
    """Of a run that is too short: how many rows it takes, and what would show more."""
    groups = waiting(summary.blind)
    waits: dict[int, Tile] = {}
    for more in [groups[0].more, groups[-1].more] if groups else []:
        many = sum(len(group.rules) for group in groups if group.more <= more)
        waits[more] = Tile(f"After {summary.steps + more:,} rows", f"{many} rule{'s' * (many != 1)} can judge")
    return (*waits.values(), *_to_see_more(summary))


def _to_see_more(summary: Summary) -> list[Tile]:
    opens = remedies(summary.blind)[:1]
    return [Tile("To see more", f"add {what}", f"{len(rules)} more rules can judge then") for what, rules in opens]
