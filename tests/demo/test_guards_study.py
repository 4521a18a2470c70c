"""A run of docs/guards.json made anew."""

import json
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[2] / "docs"


def test_a_run_of_the_study_of_guards_is_as_its_results_say():
    """Two machines part late in a run; this one ends at its first incident."""
    ((_, result),) = runpy.run_path(str(DOCS / "guards_demo.py"))["runs"]("collapse", ["stop_training"], 0)
    messages = json.loads((DOCS / "guards.json").read_text())
    (run,) = (
        item for item in messages if (item["case"], item["guard"], item["seed"]) == ("collapse", "stop_training", 0)
    )
    ((step, do),) = result["acted"]
    assert do == "stop_training"
    assert result["updates"] == step + 1
    assert abs(step - run["acted"][0][0]) <= 5
    for name in ("reward", "text", "narrow", "wide", "logged", "ess"):
        assert result[name] == pytest.approx(run[name], abs=0.05), name
    assert result.keys() == run.keys() - {"case", "guard", "seed"}
