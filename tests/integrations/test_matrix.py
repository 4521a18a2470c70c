"""docs/matrix.md is made from what is kept, and that from the tests that there are."""

import ast
import json
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATRIX, PAGES = (runpy.run_path(str(ROOT / "docs" / name)) for name in ("make_matrix.py", "generate.py"))
KEPT = json.loads(MATRIX["KEPT"].read_text())["tests"]
RELEASED = json.loads(MATRIX["RELEASED"].read_text())


def marked():
    """Each function with the mark, with what the mark says; read and not imported, as most need their framework."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        text = file.read_text()
        if "mark.matrix(" not in text:
            continue
        for function in ast.parse(text).body:
            for mark in getattr(function, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.matrix":
                    yield f"{file.relative_to(ROOT)}::{function.name}", *map(ast.literal_eval, mark.args)


def test_the_page_is_made_from_what_is_kept():
    assert (ROOT / "docs" / "matrix.md").read_text() == MATRIX["page"](KEPT, RELEASED), "run docs/make_matrix.py"


@pytest.mark.slow
def test_each_test_with_the_mark_has_its_rows_and_no_row_is_without_its_test():
    rows = {
        (item["test"].partition("[")[0], item["package"], item["how"], *([item["setup"]] if "setup" in item else []))
        for item in KEPT
    }
    assert rows == set(marked()), "run `make matrix`"


def test_what_the_integrations_say_of_themselves_is_what_the_tests_show():
    for row in KEPT:
        name = MATRIX["integration"](row["package"])
        package = import_module(f"tracker_diag_{name}")
        minor = ".".join(row["version"].split(".")[:2])
        tested = package.TESTED
        assert re.search(rf"(?<![\d.]){re.escape(minor)}(?!\d)", tested), (row["package"], minor, tested)
        assert PAGES["about"](package)["how"] == row["how"]


@pytest.mark.parametrize("run", RELEASED["runs"], ids=lambda run: "-".join(map(str, list(run.values())[:3])))
def test_the_losses_of_released_sources_have_run_and_reported(run):
    assert run["same"]
    assert run["failures"] == []
    assert run["alerts"] == (["mlflow"] if run["backends"] else ["jsonl"])
    assert run["release"] in import_module(f"tracker_diag_{run['framework']}").TESTED or "v0." in run["release"]
