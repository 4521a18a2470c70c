"""A run of docs/guards.json made anew."""

import json
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[2] / "docs"


def test_a_run_of_the_study_of_guards_is_as_its_results_say():
    """Two machines part late in a run; this one ends at its first incident."""
    ((_, found),) = runpy.run_path(str(DOCS / "guards_demo.py"))["runs"]("collapse", ["stop_training"], 0)
    told = json.loads((DOCS / "guards.json").read_text())
    (run,) = (one for one in told if (one["case"], one["guard"], one["seed"]) == ("collapse", "stop_training", 0))
    ((step, do),) = found["acted"]
    assert do == "stop_training"
    assert found["updates"] == step + 1
    assert abs(step - run["acted"][0][0]) <= 5
    for name in ("reward", "text", "narrow", "wide", "logged", "ess"):
        assert found[name] == pytest.approx(run[name], abs=0.05), name
    assert found.keys() == run.keys() - {"case", "guard", "seed"}
