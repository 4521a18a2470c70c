"""What contradicts itself in a verdict: the invariants of a verdict, over any run and its prefixes."""

from collections.abc import Iterator, Mapping

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.rules.incidents import DAMAGE, SEVERITIES, UNSURE, explains
from tracker_diag.rules.judge import Judge
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.logged import inputs_of
from tracker_diag.rules.recommendation import TARGET
from tracker_diag.rules.triage import Summary

LOOKS = 6
"""Prefixes of a run whose verdict is looked at, the whole run among them."""


def verdicts(name: str, rows: Mapping[int, Mapping[str, float]]) -> Iterator[Summary]:
    """The summary after each sixth of a run, as a monitor in it would give it."""
    judge = Judge(catalog(), GrowthSettings.for_run(len(rows)))
    judge.know(dict.fromkeys(key for row in rows.values() for key in row))
    looks = {len(rows) * look // LOOKS for look in range(1, LOOKS + 1)}
    for count, (step, inputs) in enumerate(inputs_of(rows), 1):
        judge.step(step, inputs)
        if count in looks:
            yield judge.summary(name, count, min(rows), step)


def contradictions(summary: Summary) -> Iterator[str]:
    """What of one verdict contradicts the rest of it."""
    yield from of_incidents(summary)
    yield from of_advice(summary)
    if overlap := {*summary.healthy} & {*summary.blind, *(finding.rule.id for finding in summary.findings)}:
        yield f"healthy, and blind or found: {overlap}"


def of_incidents(summary: Summary) -> Iterator[str]:
    for incident in summary.incidents:
        worst = max((finding.severity for finding in incident.findings), key=SEVERITIES.index)
        if SEVERITIES.index(incident.severity) < SEVERITIES.index(worst) and incident.cause.rule.link != DAMAGE:
            yield f"{incident.id} is {incident.severity}, one of its findings is {worst}"
        for symptom in incident.symptoms:
            unsure = sum(UNSURE * (finding.fired - finding.onset) for finding in (incident.cause, symptom))
            leads = symptom.rule.id in incident.cause.rule.leads_to and symptom.severity != "info"
            is_part = any(explains(whole, symptom) for whole in incident.findings)
            if leads and not is_part and incident.cause.onset - symptom.onset > unsure:
                yield f"{incident.id} begins after its symptom {symptom.rule.id} at {symptom.onset}"


def of_advice(summary: Summary) -> Iterator[str]:
    advice = summary.recommendation
    heard = [incident for incident in summary.incidents if incident.severity != "info" and not incident.acknowledged]
    loud = [finding for incident in heard for finding in incident.findings]
    ongoing = [finding for finding in loud if finding.state == "firing" and finding.severity != "info"]
    lost = [best for best in summary.best if best.series == TARGET and best.holds]
    if advice.go_on and lost:
        yield f"continue, while {lost[0].series} is {lost[0].value}, {lost[0].baseline} at its best"
    if advice.go_on and ongoing:
        yield f"continue, while {ongoing[0].rule.id} is ongoing"
    if advice.last_good_step is not None and ongoing:
        first = min(finding.onset for finding in ongoing)
        if advice.last_good_step > first:
            yield f"last good step {advice.last_good_step}, and {first} is the onset of what is ongoing"


def of_run(name: str, rows: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """What contradicts itself in the verdicts on a run and its prefixes."""
    before = set[tuple[object, ...]]()
    for summary in verdicts(name, rows):
        yield from (f"{name}, {summary.steps} rows: {what}" for what in contradictions(summary))
        fired = {(f.rule.id, f.pair, f.slice, f.fired) for f in summary.findings if f.fired is not None}
        if gone := before - fired:
            yield f"{name}, {summary.steps} rows: {gone} had fired and is not in the verdict"
        before = fired
