"""What a user imports: 25 names, nothing by accident, and cheap until it is used."""

import ast
import math
import subprocess
import sys
from pathlib import Path

import pytest

import tracker_diag
from tracker_diag import errors

NAMES = [
    "AllReduce",
    "Decision",
    "DiagError",
    "Finding",
    "GrowthSettings",
    "Guard",
    "Incident",
    "Monitor",
    "Notifier",
    "Rule",
    "Summary",
    "ThroughStore",
    "Tracker",
    "audit",
    "catalog",
    "compare",
    "diagnose",
    "errors",
    "load_rules",
    "preflight",
    "read_run",
    "read_traces",
    "replay",
    "watch",
    "wrap",
]


def in_a_new_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_public_names_are_pinned():
    assert sorted(tracker_diag.__all__) == NAMES
    assert len(NAMES) <= 25


def test_a_checker_sees_the_very_objects_that_a_user_gets():
    tree = ast.parse(Path(tracker_diag.__file__).read_text())
    imported = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tracker_diag.")
        for name in node.names
    }
    assert sorted((*imported, "errors")) == NAMES
    for name, module in imported.items():
        there = __import__(module, fromlist=[name])
        assert getattr(tracker_diag, name) is getattr(there, name)


@pytest.mark.slow
def test_no_submodule_appears_by_accident():
    code = "import tracker_diag, tracker_diag.rules.loader, tracker_diag.preflight.files; print(*dir(tracker_diag))"
    assert in_a_new_process(code) == NAMES


@pytest.mark.by_day("function")
@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import tracker_diag.preflight.files; "], ids=["function", "room"])
def test_preflight_is_the_function_whatever_was_imported_first(first):
    code = f"{first}import tracker_diag as td; print(type(td.preflight).__name__, td.preflight.__module__)"
    assert in_a_new_process(code) == ["function", "tracker_diag.preflight.run"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tracker_diag' has no attribute 'wrp'"):
        _ = tracker_diag.wrp


def test_the_import_loads_nothing_that_takes_long():
    code = "import sys, tracker_diag; print(*{name.partition('.')[0] for name in sys.modules})"
    assert not {"numpy", "pydantic", "yaml", "rich", "typer", "wrapt"} & set(in_a_new_process(code))


def test_the_import_costs_at_most_three_tenths_of_a_second_of_cpu():
    code = "import time; before = time.process_time(); import tracker_diag; print(time.process_time() - before)"
    assert float(in_a_new_process(code)[0]) < 0.3


def test_every_public_error_has_the_one_base():
    own = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__]
    assert {kind.__name__ for kind in own} == {
        "DiagError", "BatchError", "StepError", "UnknownName", "RuleError", "SourceError", "MissingExtra"
    }  # fmt: skip
    assert all(issubclass(kind, tracker_diag.DiagError) for kind in own)


@pytest.mark.slow
def test_what_a_run_adds_up_to_prints_as_a_short_paragraph(make_batch, rng):
    monitor = tracker_diag.Monitor()
    for step in range(3):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": math.nan if step == 2 else 0.5}, step)
    summary = monitor.close()
    assert len(str(summary)) < 500
    assert str(summary).startswith(
        "live, 3 steps. Broke first: NUM004 NaN or infinity (all): error, firing from step 2. "
    )
    assert repr(summary) == str(summary)
    assert repr(summary.findings) == f"({summary.first_break},)"


def test_a_file_is_diagnosed_in_two_calls(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {step}, "reward": 0.5}}\n' for step in range(5)))
    result = tracker_diag.diagnose(tracker_diag.read_run(str(file)))
    assert repr(result).startswith(f"{file}, 5 steps. Too short to judge. ")
