"""The trainings of agents with tools: their plan, and that a run kept on disk can be judged again."""

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from tracker_diag.rules.loader import catalog

HERE = Path(__file__).parent


@pytest.fixture
def faults():
    """Imports a module as the scripts have it."""
    before = set(sys.modules)
    sys.path.insert(0, str(HERE))
    try:
        yield import_module
    finally:
        sys.path.remove(str(HERE))
        for name in {file.stem for file in HERE.glob("*.py")} & (set(sys.modules) - before):
            del sys.modules[name]


def test_each_fault_is_planted_in_four_places_next_to_its_healthy_twin(faults):
    plan = faults("tool_plan")
    runs = plan.planned(1)
    healthy = {(run.algorithm, run.task, run.seed) for run in runs if not run.fault}
    faulty = [run for run in runs if run.fault]
    assert len(healthy) >= 200
    assert all((run.algorithm, run.task, run.seed) in healthy and run.kind.fits(run.settings) for run in faulty)
    assert set(Counter((run.fault, run.algorithm, run.task) for run in faulty).values()) == {plan.FAULTY}
    assert {rule for kind in plan.KINDS for rule in kind.right.split()} <= {rule.id for rule in catalog()}


@pytest.mark.nightly
def test_a_faulty_run_is_its_healthy_twin_up_to_the_fault_and_is_judged_from_its_file(faults, tmp_path):
    runs = faults("tool_runs")
    ill = next(run for run in runs.planned(1) if run.fault == "tools fail")
    well = runs.Planned(ill.algorithm, ill.task, ill.seed)
    kept, twin = (runs.Kept(runs.made(run, tmp_path)) for run in (ill, well))
    onset = kept.label["onset"]
    assert 0 < onset < len(kept.steps) == len(twin.steps)
    assert kept.steps[:onset] == twin.steps[:onset]
    assert kept.steps[onset:] != twin.steps[onset:]
    assert not twin.label["right"]
    summary = kept.judged()
    assert (summary.steps, summary.last_step) == (len(kept.steps), len(kept.steps) - 1)
