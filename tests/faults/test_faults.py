"""The fault benchmark: that its data are what the page says, and that the figures are those of today's rules."""

import asyncio
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracker_diag.cli.answers import LARGEST
from tracker_diag.cli.mcp import make_server
from tracker_diag.report.console import plain
from tracker_diag.rules.loader import catalog
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.runs.page import on_screen
from tracker_diag.trackers.open import read_run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = json.loads((ROOT / "docs" / "faults.json").read_text())


@pytest.fixture(scope="module")
def benchmark():
    """The benchmark's modules, as its scripts have them."""
    sys.path.insert(0, str(HERE))
    try:
        names = ("dataset", "labels", "plan", "score")
        yield SimpleNamespace(**{name: SimpleNamespace(**runpy.run_path(str(HERE / f"{name}.py"))) for name in names})
    finally:
        sys.path.remove(str(HERE))
        for name in ("dataset", "labels", "plan", "score"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def runs(benchmark):
    return list(benchmark.dataset.read_runs())


def test_every_planned_run_is_there_once_with_its_labels(benchmark, runs):
    planned = benchmark.plan.planned()
    assert sorted(run.name for run in runs) == sorted(item.name for item in planned)
    right = {item.name: item.fault.right if item.fault else frozenset() for item in planned}
    assert all(set(run.right) == right[run.name] for run in runs)
    assert all(run.half == benchmark.plan.HALVES[run.trainer, run.task] for run in runs)


def test_no_list_has_a_log_that_is_reserved(benchmark):
    from public_logs import LISTS, listed

    lines = Path(__file__).with_name("reserved.txt").read_text(encoding="utf-8").splitlines()
    reserved = [line.removesuffix("*") for line in lines if not line.startswith("#")]
    repositories = {repository for name in LISTS for repository, *_ in listed(name)}
    assert len(repositories) > 60
    assert not [it for it in repositories if it.startswith(tuple(reserved))]


def test_right_names_are_rules(benchmark):
    known = {rule.id for rule in catalog()}
    assert {name for fault in benchmark.plan.FAULTS for name in fault.right} <= known


def test_the_development_runs_have_the_faults_of_other_runs_and_other_tasks(benchmark, runs):
    development, untouched = ([run for run in runs if run.half == half] for half in ("development", "untouched"))
    assert {run.trainer for run in development} == {run.trainer for run in untouched} | {"SFT", "SAC"}
    assert not {run.task for run in development} & {run.task for run in runs if run.half != "development"}
    right = {(run.trainer, run.fault): run.right for run in runs if run.half != "development"}
    messages = {(run.trainer, run.fault): run.right for run in development if run.fault}
    assert {part: messages[part] for part in messages.keys() & right.keys()} == {
        part: right[part] for part in messages.keys() & right.keys()
    }
    assert messages.keys() - right.keys() == {("DPO", "learning rate times 300 midway"), ("SFT", "learning rate 1e-9")}
    assert sum(run.fault is None for run in development) >= 40
    assert sum(run.fault is not None for run in development) >= 40


def test_both_halves_have_healthy_runs_and_forty_faults_between_them(runs):
    for half in ("tuned", "untouched"):
        assert sum(run.half == half and run.fault is None for run in runs) >= 40
        assert sum(run.half == half and run.fault is not None for run in runs) >= 60
    assert len({run.fault for run in runs if run.fault}) >= 40


def test_a_thinned_run_keeps_what_is_logged_at_every_second_step(benchmark):
    columns = {"loss": [5, 4, 3, 2, 1], "reward": [0.1, None, 0.3, None, None]}
    label = {"seed": 0, "half": "tuned", "fault": None, "onset": None, "right": [], "collapsed": False}
    part = benchmark.dataset.Run(trainer="TRL", task="t", steps=[1, 2, 3, 4, 5], columns=columns, **label)
    assert [set(row) - {"step", "loss"} for row in part.rows()] == [{"reward"}, set(), {"reward"}, set(), set()]
    first, third = {"step": 1, "loss": 5, "reward": 0.1}, {"step": 3, "loss": 3, "reward": 0.3}
    assert part.rows(3) == [first, third, {"step": 5, "loss": 1}]
    assert part.rows(2) == [{"step": 2, "loss": 4, "reward": 0.1}, {"step": 5, "loss": 1, "reward": 0.3}]


def test_the_schema_and_the_labels_are_those_of_the_data(benchmark, runs):
    assert (HERE / "schema.json").read_text() == benchmark.dataset.schema()
    assert all(
        again.collapsed == run.collapsed for run, again in zip(runs, benchmark.labels.labelled(runs), strict=True)
    )


def test_a_run_without_a_fault_that_learns_nothing_is_no_healthy_one(benchmark, runs):
    stuck = {run.name for run in runs if not run.fault and benchmark.labels.idle(run)}
    assert stuck == {"A2C, Maze, healthy, 5", *(f"one-file PPO, Acrobot, healthy, {seed}" for seed in (14, 22))}
    assert not any(benchmark.score.is_healthy(run) for run in runs if run.name in stuck)


def test_harm_is_an_end_that_no_healthy_run_has(benchmark):
    def run(seed, fault, *ends):
        columns = {"reward": [0.0] * 5 + [end for end in ends for _ in range(5)]} if ends else {"loss": [0.1] * 10}
        label = {"half": "tuned", "onset": None, "right": [], "collapsed": False, "steps": list(range(10))}
        return benchmark.dataset.Run(trainer="TRL", task="t", seed=seed, fault=fault, columns=columns, **label)

    healthy = [run(0, None, 0.8), run(1, None, 1.0)]
    margin = 0.9 / 4
    cases = {0.8 - margin + 0.01: False, 0.8 - margin - 0.01: True, 1.0 + margin + 0.01: True, 0.9: False, "nan": True}
    for end, harm in cases.items():
        result = benchmark.labels.harmed([*healthy, run(0, "a fault", end)])
        assert result == ({"TRL, t, a fault, 0"} if harm else set())
    assert benchmark.labels.harmed([*healthy, run(0, "no reward any more")]) == {"TRL, t, no reward any more, 0"}
    assert benchmark.labels.harmed([*healthy, run(2, None, 0.1)]) == set()  # nobody has planted anything


@pytest.mark.slow
def test_a_thinned_run_keeps_its_last_row(runs):
    for run in runs[::20]:
        thin = run.rows(40)
        assert len(thin) <= 40
        last, kept = ({key: str(value) for key, value in part[-1].items()} for part in (run.rows(), thin))  # NaN too
        assert last.items() <= kept.items()  # and what came since the row before it


@pytest.mark.slow
def test_the_page_of_finished_runs_shows_what_diagnose_says_today(benchmark, runs, tmp_path):
    (run,) = [run for run in runs if run.name == "GRPO, numbers, learning rate times 100 midway, 0"]
    output = plain(on_screen(diagnose(read_run(str(benchmark.score.written(run, tmp_path))))))
    assert output.rstrip() in (ROOT / "docs" / "finished.md").read_text()


def test_the_page_says_how_many_runs_there_are(runs):
    assert f"{len(runs)} training runs, made by" in (ROOT / "docs" / "faults.md").read_text()


@pytest.mark.nightly
def test_the_page_shows_what_the_rules_say_today(benchmark, runs):
    for run in [run for run in runs if run.half in benchmark.score.SEEN][::10]:
        result = benchmark.score.ours(run)
        assert [result.alarmed, list(result.names)] == KEPT["runs"][run.name], run.name


@pytest.mark.nightly
def test_the_rules_of_today_judge_a_sample_of_all_runs_as_the_page_counts_them(benchmark, runs):
    """By fingerprints, so that nobody reads a verdict on the untouched half; `make faults` judges all of them."""
    assert sorted(KEPT["sealed"]) == sorted(run.name for run in runs)
    for run in sorted(runs, key=lambda run: run.name)[::8]:
        assert benchmark.score.sealed(run, benchmark.score.ours(run)) == KEPT["sealed"][run.name], run.name


def by_status(benchmark, runs, folder):
    """What a scripted agent makes of each run by one call of `status`: is it ill, and which two rules it names."""
    from mcp import Client

    async def ask():
        async with Client(make_server()) as client:
            for run in runs:
                answer = await client.call_tool("status", {"run": str(benchmark.score.written(run, folder))})
                text = answer.content[0].text
                assert len(text.encode()) <= LARGEST
                status = json.loads(text)
                names = [named["rule"] for named in (status["cause"], *status["followed"]) if named]
                answers[run.name] = status["health"] in {"ill", "recovered"}, tuple(names[:2])

    answers = {}
    asyncio.run(ask())
    return answers


@pytest.mark.slow
def test_an_agent_reads_in_status_what_the_benchmark_counts(benchmark, runs, tmp_path):
    sample = [run for run in runs if run.half == "tuned"][::25]
    counted = {run.name: benchmark.score.ours(run) for run in sample}
    expected = {name: (verdict.alarmed, verdict.names) for name, verdict in counted.items()}
    assert by_status(benchmark, sample, tmp_path) == expected
    assert any(alarmed for alarmed, _ in expected.values())


@pytest.mark.nightly
def test_an_agent_without_a_language_model_finds_planted_faults_by_status_alone(benchmark, runs, tmp_path):
    tuned = [run for run in runs if run.half == "tuned"]
    harm = benchmark.labels.harmed(tuned)
    answers = by_status(benchmark, tuned, tmp_path)
    named = sum(bool(set(answers[run.name][1]) & set(run.right)) for run in tuned if run.name in harm)
    healthy = [answers[run.name][0] for run in tuned if benchmark.score.is_healthy(run)]
    assert named >= 0.85 * len(harm)
    assert sum(healthy) <= 0.05 * len(healthy)
