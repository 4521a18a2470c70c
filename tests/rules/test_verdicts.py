"""A verdict never contradicts its own numbers: invariants over every planted run and its prefixes."""

import itertools
import sys
from pathlib import Path

import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.rules.incidents import DAMAGE, SEVERITIES, UNSURE
from tracker_diag.rules.judge import Judge
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.logged import inputs_of

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from dataset import read  # its own folder

LOOKS = 6
"""Prefixes of a run whose verdict is looked at, the whole run among them."""


def identity(finding):
    return finding.rule.id, finding.pair, finding.slice, finding.fired


def verdicts(run):
    """The summary after each sixth of `run`, as a monitor in it would give it."""
    rows = {int(row.pop("step")): row for row in run.rows()}
    judge = Judge(catalog(), GrowthSettings.for_run(len(rows)))
    judge.know(dict.fromkeys(key for row in rows.values() for key in row))
    looks = {len(rows) * look // LOOKS for look in range(1, LOOKS + 1)}
    for count, (step, inputs) in enumerate(inputs_of(rows), 1):
        judge.step(step, inputs)
        if count in looks:
            yield judge.summary(run.name, count, min(rows), step)


def contradictions(summary):
    """What of one verdict contradicts the rest of it."""
    yield from of_incidents(summary)
    yield from of_advice(summary)
    if overlap := {*summary.healthy} & {*summary.blind, *(finding.rule.id for finding in summary.findings)}:
        yield f"healthy, and blind or found: {overlap}"


def of_incidents(summary):
    for incident in summary.incidents:
        worst = max((finding.severity for finding in incident.findings), key=SEVERITIES.index)
        if SEVERITIES.index(incident.severity) < SEVERITIES.index(worst) and incident.cause.rule.link != DAMAGE:
            yield f"{incident.id} is {incident.severity}, one of its findings is {worst}"
        for symptom in incident.symptoms:
            unsure = sum(UNSURE * (finding.fired - finding.onset) for finding in (incident.cause, symptom))
            leads = symptom.rule.id in incident.cause.rule.leads_to and symptom.severity != "info"
            if leads and incident.cause.onset - symptom.onset > unsure:
                yield f"{incident.id} begins after its symptom {symptom.rule.id} at {symptom.onset}"


def of_advice(summary):
    advice = summary.recommendation
    loud = [finding for i in summary.incidents if i.severity != "info" for finding in i.findings]
    ongoing = [finding for finding in loud if finding.state == "firing" and finding.severity != "info"]
    if advice and advice.go_on and ongoing:
        yield f"continue, while {ongoing[0].rule.id} is ongoing"
    if advice and advice.last_good_step is not None and ongoing:
        first = min(finding.onset for finding in ongoing)
        if advice.last_good_step > first:
            yield f"last good step {advice.last_good_step}, and {first} is the onset of what is ongoing"


def check(run):
    before = None
    for summary in verdicts(run):
        assert [*contradictions(summary)] == [], (run.name, summary.steps)
        fired = {identity(finding): finding for finding in summary.findings if finding.fired is not None}
        if before is not None:
            assert before <= {*fired}, f"{run.name}: what had fired is not in the verdict after {summary.steps} rows"
        before = {*fired}


@pytest.mark.slow
def test_no_verdict_contradicts_itself_on_some_planted_runs():
    for run in itertools.islice(read(), 0, None, 60):
        check(run)


@pytest.mark.nightly
def test_no_verdict_contradicts_itself_on_any_planted_run():
    for run in read():
        check(run)
