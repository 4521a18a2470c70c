"""One judge: live and finished runs come to the same, and incidents are computed once a step."""

from dataclasses import replace

import numpy as np
import pytest

from tracker_diag import Monitor, diagnose
from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.rules import judge as module
from tracker_diag.rules import triage
from tracker_diag.rules.judge import Judge, StepInputs, judge_steps
from tracker_diag.rules.loader import catalog


def rows(number=160):
    """A run whose KL and loss explode, and whose reward falls after that."""
    rng = np.random.default_rng(3)
    for step in range(number):
        bad = max(0, step - 80) / 20
        yield (
            step,
            {
                "train/reward": 0.6 - min(0.5, 0.1 * bad) + 0.02 * rng.normal(),
                "train/kl": 0.02 * np.exp(bad + 0.1 * rng.normal()),
                "train/loss": 0.01 * rng.normal() * np.exp(bad),
                "train/grad_norm": 0.5 * np.exp(bad + 0.1 * rng.normal()) if step != 120 else float("nan"),
            },
        )


def state(finding):
    return finding.rule.id, finding.severity, finding.state, finding.onset, finding.fired, finding.resolved


def judged():
    return Judge(catalog(), GrowthSettings.for_run(160).dialled(USUAL))


@pytest.mark.slow
def test_a_monitor_and_a_judge_alone_say_the_same():
    judge = judged()
    _, notices = judge_steps(judge, ((step, StepInputs(row)) for step, row in rows()))
    monitor = Monitor()
    monitor.expect(160)
    for step, row in rows():
        monitor.log(row, step)
    assert [state(item) for item in judge.findings] == [state(item) for item in monitor.summary().findings] != []
    assert notices


@pytest.mark.slow
def test_incidents_are_computed_once_in_a_step_that_changes_a_finding(monkeypatch):
    calls, steps = [], 0
    whole = module.incidents
    monkeypatch.setattr(module, "incidents", lambda findings: calls.append(1) or whole(findings))
    judge = judged()
    for step, row in rows():
        before = len(calls)
        verdict = judge.step(step, StepInputs(row))
        assert judge.incidents is judge.incidents
        steps += bool(verdict.changed)
        assert len(calls) - before <= (1 if verdict.changed else step == 0)
    assert 0 < len(calls) <= steps + 1
    monkeypatch.setattr(triage, "incidents", lambda findings: calls.append(1) or whole(findings))
    before = len(calls)
    summary = judge.summary("x", 160, 0, 159)
    assert replace(summary, over=True).incidents == summary.incidents == whole(summary.findings) != ()
    assert len(calls) == before  # the step has computed them


@pytest.mark.by_day("85")
@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 85, 121])
def test_a_judge_that_continues_from_a_state_says_the_same(cut):
    whole, first, second = judged(), judged(), judged()
    everything = [(step, StepInputs(row)) for step, row in rows()]
    judge_steps(whole, everything)
    judge_steps(first, everything[:cut])
    second.know(everything[0][1].metrics)
    second.load_state_dict(first.state_dict(), StepInputs())
    judge_steps(second, everything[cut:])
    assert [state(item) for item in second.findings] == [state(item) for item in whole.findings]


def test_of_a_metric_that_comes_twice_in_a_step_the_first_value_counts():
    judge = judged()
    judge.step(0, StepInputs({"reward": 1.0}))
    judge.step(0, StepInputs({"reward": 2.0, "kl": 0.1}))
    assert {name: scalar.value for name, scalar in judge.series.items()} == {"reward": 1.0, "kl": 0.1}
    judge.step(1, StepInputs({"reward": float("inf")}))
    assert not judge.series


def test_an_entropy_that_is_0_from_the_first_row_on_is_not_measured():
    rows = [{"entropy": 0.0, "approx_kl": 0.0, "reward": step / 100} for step in range(100)]
    result = diagnose(rows)
    assert not result.summary.incidents
    assert "entropy" not in result.series
    assert "the trainer does not measure it" in result.summary.log[0]
    certain = [row | {"frac_reward_zero_std": 1.0, "reward": 0.1} for row in rows]
    assert "EXP001" in {finding.rule.id for finding in diagnose(certain).summary.findings}
    fallen = [{"entropy": 0.5 if step < 50 else 0.0, "reward": 0.1} for step in range(100)]
    assert "EXP001" in {finding.rule.id for finding in diagnose(fallen).summary.findings}
