"""Finished runs from their metrics alone: what is found, what it has cost, what was read as what."""

import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tracker_diag import Monitor
from tracker_diag.cli.app import app
from tracker_diag.errors import SourceError, UnknownName
from tracker_diag.report.console import plain
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.runs import diagnose as diagnosing
from tracker_diag.runs.diagnose import Cost, SoFar, diagnose
from tracker_diag.runs.page import on_screen, run_page
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.finished import FinishedRun


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def finished(rows, config=None, seconds=None, notes=()):
    by_step = rows if isinstance(rows, dict) else dict(enumerate(rows))
    return FinishedRun("a run", by_step, config or {}, seconds or {}, tuple(notes))


def healthy(rng, steps=200):
    """A calm GRPO run under TRL's names."""
    return [
        {
            "reward": 0.5 + 0.001 * step + 0.01 * rng.normal(),
            "kl": 0.02 * (1 + 0.05 * rng.normal()),
            "entropy": 1.0 + 0.01 * rng.normal(),
            "loss": 0.01 * rng.normal(),
            "grad_norm": 0.5 * math.exp(0.1 * rng.normal()),
            "completions/mean_length": 200 + 5 * rng.normal(),
            "frac_reward_zero_std": 0.2 + 0.02 * rng.normal(),
        }
        for step in range(steps)
    ]


@pytest.mark.slow
def test_looks_at_a_run_that_grows_say_what_one_look_at_all_of_it_says(rng):
    rows, so_far, judges = healthy(rng), SoFar(), []
    for row in rows[100:]:
        row["reward"], row["entropy"] = 0.1 + 0.01 * rng.normal(), row["entropy"] / 4
    rows[130]["kl"] = math.nan

    def read_so_far(n):
        again, anew = (
            diagnose(finished(rows[:n]), underway=True, so_far=kept) for kept in (so_far, None)
        )  # fmt: skip
        assert again.to_json() == anew.to_json()
        assert str(again.series) == str(anew.series)
        assert again.notices == anew.notices
        judges.append(so_far.judge)

    for n in (90, 91, 120, 160):
        read_so_far(n)
    assert judges == judges[:1] * 4
    assert len(so_far.notices) > 0
    rows[3]["reward"] = 0.4  # rows that were judged have changed, and then a key has come
    read_so_far(161)
    rows[165]["eval_reward"] = 0.4
    read_so_far(170)
    assert len({*map(id, judges)}) == 3


@pytest.mark.slow
def test_a_folder_of_a_run_that_had_samples_says_what_the_run_itself_has_said(rng, tmp_path):
    monitor = Monitor([JsonlTracker(tmp_path / "run")])
    for step in range(150):
        good = 0.2 + 0.6 * min(step, 60) / 60 if step < 100 else 0.1
        monitor.samples(reward=good + 0.05 * rng.normal(size=64), success=rng.random(64) < good)
        monitor.log({"loss": 0.1 + 0.01 * rng.normal()}, step)
    live = monitor.close()
    results = diagnose(str(tmp_path / "run")).summary
    assert (results.first_break.rule.id, results.first_break.onset) == (
        live.first_break.rule.id,
        live.first_break.onset,
    )
    assert {(item.rule.id, item.onset, item.fired) for item in results.findings} >= {
        (item.rule.id, item.onset, item.fired) for item in live.findings if item.rule.link == "outcome"
    }
    assert "OUT001" in {item.rule.id for item in results.findings}


@pytest.mark.slow
def test_a_nan_is_found_and_costs_what_came_after_it(rng):
    rows = healthy(rng)
    for step in range(120, 200):
        rows[step]["loss"] = math.nan
    seconds = {step: 60.0 * step for step in range(200)}
    results = diagnose(finished(rows, seconds=seconds))
    first = results.summary.first_break
    assert (first.rule.id, first.onset) == ("NUM004", 120)
    cost = results.cost(first)
    assert (cost.steps, cost.seconds) == (79, 79 * 60)
    assert str(cost) == "79 steps, 1.3 h"
    assert str(Cost(2, 119.0)) == "2 steps, 2 min"
    assert str(Cost(2, 0.4)) == "2 steps, 0 s"


@pytest.mark.slow
def test_a_long_finished_run_is_judged_in_fewer_rows_and_says_so(rng, monkeypatch):
    monkeypatch.setattr(diagnosing, "LONG", 150)
    monkeypatch.setattr(diagnosing, "JUDGED", 60)
    rows = healthy(rng)
    rows[121]["loss"] = math.nan
    summary = diagnose(finished(rows)).summary
    assert (summary.steps, summary.last_step) == (200, 199)
    assert summary.log == ("the log is long: its 200 rows are judged as 50, each a mean of neighbours",)
    (first,) = [finding for finding in summary.findings if finding.rule.id == "NUM004"]
    assert first.onset == 123
    underway = diagnose(finished(rows), underway=True).summary
    assert [finding.onset for finding in underway.findings if finding.rule.id == "NUM004"] == [121]


@pytest.mark.slow
def test_from_a_step_on_and_with_some_rules(rng):
    from tracker_diag.rules.loader import chosen

    rows = healthy(rng)
    rows[10]["loss"] = math.inf
    assert diagnose(finished(rows)).summary.first_break.rule.id == "NUM004"
    later = diagnose(finished(rows), rules=chosen("NUM004"), catalog=False, since=50)
    assert later.summary.findings == ()
    assert later.summary.healthy == ("NUM004",)
    assert later.summary.steps == 150


@pytest.mark.parametrize(
    ("config", "algorithm"),
    [
        ({"algorithm.adv_estimator": "grpo"}, "grpo"),
        ({"algorithm.adv_estimator": "gae"}, "ppo"),
        ({"importance_sampling_level": "sequence", "loss_type": "grpo"}, "gspo"),
        ({"args.trainer_type": "DPO"}, "dpo"),
        ({"learning_rate": 1e-6}, None),
    ],
)
def test_the_algorithm_is_read_from_the_settings(config, algorithm):
    assert algorithm_of(config) == algorithm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "algorithm"),
    [
        (["rollout/ep_rew_mean", "train/clip_range", "time/fps"], "ppo"),
        (["rollout/ep_rew_mean", "train/ent_coef_loss", "time/fps"], None),
        (["charts/episodic_return", "losses/clipfrac", "charts/SPS"], "ppo"),
        (["train/reward", "train/frac_reward_zero_std", "train/completions/mean_length"], "grpo"),
        (["logps/chosen", "rewards/margins", "mean_token_accuracy"], "dpo"),
        (["loss", "mean_token_accuracy", "num_tokens"], "sft"),
        (["reward", "kl"], None),
    ],
)
def test_the_algorithm_is_reported_by_keys_that_it_alone_logs(keys, algorithm):
    rows = {step: dict.fromkeys(keys, 0.5) for step in range(12)}
    assert diagnose(FinishedRun("a run", rows, {}, {}, ())).algorithm == algorithm
    assert diagnose(FinishedRun("a run", rows, {"loss_type": "gspo"}, {}, ())).algorithm == "gspo"
    assert diagnose(FinishedRun("a run", rows, {}, {}, ()), algorithm="grpo").algorithm == "grpo"


def test_a_finished_run_of_which_nothing_is_known_is_refused():
    rows = [{"step": step, "foo": 1.0, "bar": 2.0} for step in range(50)]
    with pytest.raises(SourceError, match=r"none of its metrics is known here \(it has foo, bar\); name its framework"):
        diagnose(rows)
    assert diagnose(rows, underway=True).series == {}
    assert diagnose(rows, evaluation="foo").series["eval_score"]


@pytest.mark.parametrize("evaluations", [("val-core/math/acc/mean@1", "val-core/aime/acc/mean@1"), ()])
def test_an_evaluation_that_was_not_logged_is_refused_with_those_that_were(evaluations):
    rows = [{"critic/score/mean": 0.5, "actor/ppo_kl": 0.0, **dict.fromkeys(evaluations, 1.0)}] * 20
    with pytest.raises(UnknownName, match=f"'val-core/c' given, expected one of {', '.join(evaluations) or 'none'}"):
        diagnose(finished(rows), evaluation="val-core/c")


def test_a_framework_that_nobody_knows_is_reported(rng):
    with pytest.raises(UnknownName, match="framework: 'trll' given, expected one of"):
        diagnose(finished(healthy(rng)), framework="trll")


@pytest.fixture
def metrics_file(rng, tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = healthy(rng)
    for step in range(120, 200):
        rows[step]["loss"] = math.nan
    file.write_text("".join(json.dumps({"step": step} | row) + "\n" for step, row in enumerate(rows)))
    return file


@pytest.mark.slow
def test_the_command_prints_the_verdict_the_keys_and_the_curve(metrics_file):
    result = run("diagnose", metrics_file)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for part in ("broke first", "NUM004 NaN or infinity", "79 steps", "7 of 7 keys", "reward"):
        assert part in text


@pytest.mark.slow
def test_the_json_is_that_of_the_interface_and_more(metrics_file):
    results = json.loads(run("diagnose", metrics_file, "--json").stdout)
    assert results["run"] == {"source": str(metrics_file), "steps": 200, "first_step": 0, "last_step": 199}
    assert results["first_break"] == {"rule": "NUM004", "slice": "all", "onset": 120}
    assert results["findings"][0]["cost"] == {"steps": 79, "seconds": None}
    assert results["keys"]["mapped"]["completions/mean_length"] == "response_length"


@pytest.mark.slow
def test_exit_codes(metrics_file, tmp_path):
    assert run("diagnose", metrics_file, "--fail-on", "warn").exit_code == 1
    assert run("diagnose", metrics_file, "--rules", "REW001", "--fail-on", "warn").exit_code == 0
    for arguments in (
        [tmp_path / "none.jsonl"],
        [metrics_file, "--rules", "XYZ"],
        [metrics_file, "--algorithm", "ppp"],
        [metrics_file, "--framework", "trll"],
    ):
        result = run("diagnose", *arguments)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith("tracker-diag: ")
    empty = tmp_path / "other.jsonl"
    empty.write_text(json.dumps({"step": 1, "weather": 3}) + "\n")
    result = run("diagnose", empty)
    assert result.exit_code == 2
    assert "none of its metrics is known here (it has weather)" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "key", "seconds"),
    [("TRL", "step_time", 79 * 30), ("verl", "perf/time_per_step", 79 * 30), ("TRL", "nothing", None)],
)
def test_what_steps_take_makes_up_for_a_clock(rng, framework, key, seconds):
    rows = [row | {key: 30.0} for row in healthy(rng)]
    for step in range(120, 200):
        rows[step]["loss"] = math.nan
    results = diagnose(finished(rows), framework=framework)
    assert results.cost(results.summary.first_break).seconds == (seconds and pytest.approx(seconds))


@pytest.mark.slow
def test_the_time_of_rows_that_stand_for_ten_steps_and_of_a_row_without_one(rng):
    rows = {10 * step: row | {"step_time": 30.0 if step < 100 else 60.0} for step, row in enumerate(healthy(rng))}
    del rows[1000]["step_time"]
    seconds = diagnose(finished(rows)).run.seconds
    assert seconds[990] == pytest.approx(990 * 30)
    assert seconds[1000] == pytest.approx(1000 * 30)
    assert seconds[1990] == pytest.approx(1000 * 30 + 990 * 60)


@pytest.mark.slow
def test_the_whole_trainings_time_is_spread_over_its_steps(rng):
    rows = dict(enumerate(healthy(rng), 1))
    rows[200]["train_runtime"] = 4000.0
    seconds = diagnose(finished(rows)).run.seconds
    assert seconds[200] - seconds[100] == pytest.approx(2000)
    clock = {step: 7.0 * step for step in rows}
    assert diagnose(finished(rows, seconds=clock)).run.seconds == clock  # what the source knows goes first


@pytest.mark.slow
def test_a_curve_and_a_cost_stand_next_to_a_finding(rng):
    rows = healthy(rng)
    for step in range(120, 200):
        rows[step]["loss"] = math.nan
    results = diagnose(finished(rows))
    output = plain(on_screen(results))
    assert "since        step 120 (79 steps ago), detected at step 120 by rule NUM004" in output
    assert re.search(r"^reward \(min [\d.]+, max [\d.]+\) +[▁-█]{36}$", output, re.MULTILINE)
    assert run_page(results).startswith("<!doctype html>")


def test_a_run_of_one_step_and_of_none():
    assert diagnose(finished([{"reward": 0.5}])).summary.steps == 1
    none = diagnose(finished([]))
    assert (none.summary.steps, none.summary.findings) == (0, ())
    assert "NUM004" in none.summary.blind


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_the_best_reward_and_evaluation_are_reported_with_their_step(lost):
    rows = {}
    for step in range(1, 61):
        fallen = 0.6 * (lost and step > 40)
        rows[step] = {"reward": min(step, 30) / 30 - fallen}
        if step % 4 == 0:
            rows[step]["eval_score"] = 0.2 + min(step, 40) / 100 - fallen
    results = diagnose(finished(rows))
    best = {item["series"]: item for item in results.summary.to_json()["best"]}
    assert best["reward"]["level"] == pytest.approx(1)
    assert 30 < best["reward"]["step"] <= 40
    assert best["reward"]["last"] == pytest.approx(0.4 if lost else 1)
    assert best["eval_score"]["level"] == pytest.approx(0.6 if not lost else 0.58, abs=0.03)
    assert best["eval_score"]["step"] in ((40, 44, 48, 52) if not lost else (36, 40))
    assert ("OUT001" in {item.rule.id for item in results.summary.findings}) is lost
    assert ("1 → 0.4" if lost else "its best: 1, the mean of several rows up to step") in run_page(results)


@pytest.mark.slow
def test_fifteen_rows_tell_that_nothing_was_learnt_and_what_is_not_logged(rng):
    """A rule that asks whether a metric is logged at all does not wait for more rows than a short run has."""
    noise = 0.3 + 0.02 * rng.normal(size=15)
    results = diagnose(finished([{"reward": float(value), "loss": 0.1} for value in noise])).summary
    assert [item.rule.id for item in results.findings if item.severity != "info"] == ["OUT003"]
    learns = [{"reward": float(value), "loss": 0.1} for value in noise + np.linspace(0, 0.4, 15)]
    assert not [item for item in diagnose(finished(learns)).summary.findings if item.severity != "info"]


def ruined(rng):
    """120 rows of PPO: the learning rate jumps at row 60, the KL follows, and the reward is lost."""
    rows = []
    for step in range(120):
        lost = step >= 60
        rows.append({
            "rollout/ep_rew_mean": (10.0 if lost else min(step, 40) * 2.0) + float(rng.normal()),
            "train/approx_kl": (3.0 if lost else 0.01) * float(np.exp(0.1 * rng.normal())),
            "train/learning_rate": 0.1 if lost else 0.001,
            "train/clip_range": 0.2,
            "train/n_updates": float(step),
        })  # fmt: skip
    return finished(rows)


@pytest.mark.slow
def test_a_jump_of_the_learning_rate_is_the_cause_of_what_follows(rng):
    results = diagnose(ruined(rng)).summary
    assert results.first_break.rule.id == "POL020"
    assert results.first_break.onset == 60
    assert "learning rate is 0.1, 0.001 before" in results.first_break.summary
    assert {"POL010", "OUT001"} <= {item.rule.id for item in results.incidents[0].findings}
