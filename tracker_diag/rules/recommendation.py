"""What to do with a run: stop, watch or continue, by its outcome and by what is ongoing."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from tracker_diag.metrics.registry import find
from tracker_diag.metrics.series import StatKey, any_of
from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import DAMAGE, UNSURE, Incident, never_rose
from tracker_diag.rules.model import Link
from tracker_diag.rules.reading import Reading, different
from tracker_diag.rules.signals.collapse import Collapse
from tracker_diag.rules.signals.gain import Gain

Action: TypeAlias = Literal["stop", "watch", "continue", "too_short"]
"""stop: fix the cause first. watch: something is off that has not reached the outcome. continue: nothing is off now.
too_short: there are too few rows to say any of these."""

TARGET = "eval_score"
"""The evaluation that decides. What is lost in another one is to be watched."""

NOT_TO_BE_TRUSTED: frozenset[Link] = frozenset({"environment", "evaluation", "reward"})
"""Links of which a fault means that the reward, or what it is paid for, is not what was meant."""


@dataclass(frozen=True)
class Recommendation:
    """Whether a run in which something broke is to continue."""

    action: Action
    go_on: bool
    """Whether the run may continue as it is: never while something above info is ongoing."""
    last_good_step: int | None
    """The latest step to resume from; None where the run may continue, or none is known."""
    says: str
    """The answer in one sentence, with what it rests on."""
    target: str
    """The outcome that decides, such as the reward: if it falls, the run is to be stopped."""

    @property
    def verb(self) -> str:
        """Stop, Watch, Continue or Too short."""
        return self.action.replace("_", " ").capitalize()

    @property
    def in_short(self) -> str:
        """What to do in a few words: "Stop: fix it, resume from step 84"."""
        return ": ".join(filter(None, [self.verb, self.back]))

    @property
    def back(self) -> str:
        """When and where to resume: "fix it, resume from step 84"; empty if no step is known to be good."""
        if self.last_good_step is None:
            return ""
        when = f"if {self.target} falls" if self.action == "watch" else "fix it"
        return f"{when}, resume from step {self.last_good_step:,}"

    def to_json(self) -> dict[str, object]:
        """As `tracker-diag diagnose --json` prints it."""
        return asdict(self)


def recommend(
    incidents: Sequence[Incident],
    best: Sequence[Reading],
    *,
    underway: bool = False,
    stopped: bool = False,
    judged: bool = True,
    checkpoints: Collection[int] = (),
) -> Recommendation:
    """What is to be done with the run.

    Args:
        best: of each outcome its last level, and its best one as baseline with the step.
        underway: whether the run has not ended. A level is the mean of a tenth of it. So the best one, and with it the
            last good step, may change with more steps.
        stopped: whether a guard has stopped the training: it must not continue then, even if no harm is seen.
        judged: whether there were rows enough to judge it.
        checkpoints: steps of the checkpoints that are registered. Where there are any, one of them is named.
    """
    loud = [incident for incident in incidents if incident.severity != "info" and not incident.acknowledged]
    notes = [incident for incident in incidents if incident.cause.unproven and not incident.acknowledged]
    outcomes = [outcome for outcome in best if outcome.series != "loss"]
    evaluations = [outcome for outcome in outcomes if outcome.series != "reward"]
    targets = [outcome for outcome in evaluations if outcome.series == TARGET] or evaluations or outcomes
    target = targets[0].series if targets else "reward"
    lost = [outcome for outcome in targets if outcome.holds]
    if not loud and not judged:
        return Recommendation("too_short", False, None, "There are too few rows to judge", target)
    if not loud and not lost:
        known = ", but for what is acknowledged" if any(incident.acknowledged for incident in incidents) else ""
        nothing = Recommendation("continue", True, None, f"Yes. No rule fired at warn or above{known}", target)
        return _noted(notes, outcomes, target) or _sinks(targets, target) or nothing
    ongoing = [f for incident in loud for f in incident.findings if f.state == "firing" and f.severity != "info"]
    if not ongoing and not lost:
        over = max((f.resolved for incident in loud for f in incident.findings if f.resolved is not None), default=None)
        since = "any more" if over is None else f"any more since step {over}"
        return Recommendation("continue", True, None, f"Yes. What was found is not detected {since}", target)
    good = _last_good(ongoing, lost, {outcome.series: outcome for outcome in outcomes})
    if good and checkpoints:
        last = max((step for step in checkpoints if step <= good[0]), default=None)
        good = None if last is None else (last, f"a registered checkpoint; {good[1]}")
    reason = _stops(ongoing, lost) or ("A guard stopped it" if stopped else None)
    if reason is None:
        says = _watches(ongoing, outcomes, good and f"if {target} falls, resume from step {good[0]}")
        return Recommendation("watch", False, good and good[0], says, target)
    if good is None:
        what = "checkpoint" if checkpoints else "step"
        says = f"No. {reason}; no earlier {what} is known to be good: fix it, start again"
        return Recommendation("stop", False, None, says, target)
    step, why = good
    so_far = "so far " if underway else ""
    says = f"No. {reason}; fix it, then resume from step {step} or earlier ({so_far}{why})"
    return Recommendation("stop", False, step, says, target)


def _sinks(targets: Sequence[Reading], target: str) -> Recommendation | None:
    """That a target is to be watched whose fall is not long enough yet for a rule."""
    falling = next((outcome for outcome in targets if outcome.onset is not None), None)
    if falling is None:
        return None
    return Recommendation("watch", False, None, f"Watch. {_fall(falling)}; no rule is sure yet", target)


def _fall(outcome: Reading) -> str:
    now, best = different(outcome.value or 0.0, outcome.baseline or 0.0)
    return f"{outcome.series} is {now} since step {outcome.onset}, {best} at its best"


def _noted(notes: Sequence[Incident], outcomes: Sequence[Reading], target: str) -> Recommendation | None:
    """That the run may continue and is to be watched, where candidates alone have found something that is ongoing."""
    ongoing = [f for incident in notes for f in incident.findings if f.state == "firing" and f.full_severity != "info"]
    if not ongoing:
        return None
    says = f"{_watches(ongoing, outcomes, None)}. It is a note: {ongoing[0].rule.id} is a candidate"
    return Recommendation("watch", True, None, says, target)


def _stops(ongoing: Sequence[Finding], lost: Sequence[Reading]) -> str | None:
    """Why the run must not continue; None if it may be watched."""
    if lost:
        now, best = different(lost[0].value or 0.0, lost[0].baseline or 0.0)
        return f"{lost[0].series} is {now} recently, {best} at its best"
    harm = [f for f in ongoing if f.severity == "error" or (f.rule.link == DAMAGE and not any_of(f.slice))]
    faults = harm or [f for f in ongoing if f.rule.link in NOT_TO_BE_TRUSTED and not _is_only_slow(f)]
    if not faults:
        return None
    return faults[0].rule.title + ("" if never_rose(faults[0]) else f" since step {faults[0].onset}")


def _is_only_slow(finding: Finding) -> bool:
    """Whether it rests on times alone, such as that of a tool: what the tool returns may be as good as before."""
    asked = signals_of(finding.rule.when, finding.rule.predicates)
    keys = [key for reading in finding.evidence if reading.holds and reading.signal in asked for key in reading.keys]
    metrics = [None if isinstance(key, StatKey) else find(key) for key in keys]
    return bool(metrics) and all(metric is not None and metric.unit == "s" for metric in metrics)


def _watches(ongoing: Sequence[Finding], outcomes: Sequence[Reading], otherwise: str | None) -> str:
    """What to watch, until when, and what to do if the outcome is harmed.

    Args:
        ongoing: the first is named, the cause before what came of it.
    """
    level = watched_level(ongoing[0], outcomes)
    until = f"until {level.series} is near {level.baseline:.3g} again" if level else "until it ends"
    parts = [f"Watch. {ongoing[0].rule.title} since step {ongoing[0].onset}, {until}"]
    if sinks := next((outcome for outcome in outcomes if outcome.onset is not None), None):
        parts.append(_fall(sinks))
    elif outcomes:
        names = " and ".join(outcome.series for outcome in outcomes[:2])
        parts.append(f"{names} {'has' if len(outcomes) == 1 else 'have'} not clearly fallen so far")
    else:
        parts.append("no reward and no evaluation could be judged, so harm would not be seen")
    if otherwise:
        parts.append(otherwise)
    return "; ".join(parts)


def watched_level(finding: Finding, outcomes: Sequence[Reading]) -> Reading | None:
    """The series of `finding` to watch, with its usual level as baseline; None where it rests on outcomes alone.

    What only supports the finding decides nothing. A series of its own comes before a ratio, which no page draws.
    """
    judged = {outcome.series for outcome in outcomes}
    asked = signals_of(finding.rule.when, finding.rule.predicates)
    held = (
        reading
        for reading in finding.evidence
        if reading.holds and reading.baseline is not None and reading.series not in judged and reading.signal in asked
    )
    return min(held, key=lambda reading: len(reading.keys), default=None)


def _last_good(
    ongoing: Sequence[Finding], lost: Sequence[Reading], outcomes: Mapping[str, Reading]
) -> tuple[int, str] | None:
    """The last step before anything that is ongoing may have begun, no later than the best of what is lost; and why.

    The best level of an outcome is that of now, as everywhere else, and not that when a rule fired.
    """
    steps: list[tuple[int, str]] = [
        (outcome.at, f"{outcome.series} {outcome.baseline:.3g}, its best") for outcome in lost if outcome.at is not None
    ]
    for finding in ongoing:
        held = [(r, finding.rule.signals.get(r.signal)) for r in finding.evidence if r.holds]
        levels = [outcomes.get(reading.series, reading) for reading, signal in held if isinstance(signal, Collapse)]
        # A later best does not make good what began before it and is still ongoing.
        levels = [level for level in levels if level.at is not None and level.at < finding.onset]
        steps += [(level.at or 0, f"{level.series} {level.baseline:.3g}, its best") for level in levels]
        began_with_the_run = any(isinstance(signal, Gain) and signal.never for _, signal in held)
        if not levels and not began_with_the_run:
            unsure = math.ceil(UNSURE * ((finding.fired or finding.onset) - finding.onset))
            before = finding.good_until
            steps.append((before - unsure if before > unsure else before, f"before {finding.rule.id} began"))
    step, why = min(steps, key=lambda good: good[0], default=(-1, ""))
    return (step, why) if step > 0 else None
