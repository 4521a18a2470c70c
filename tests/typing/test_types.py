"""What an editor knows of a wrapped tracker: its own methods, and `.diag`."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.slow


def checked(*command):
    # The checkers are to find this checkout, and not one that may be installed.
    environment = {**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'integrations'}"}
    return subprocess.run(
        [sys.executable, "-m", *command], check=False, cwd=ROOT, capture_output=True, text=True, env=environment
    )


def pyright(file):
    out = checked("pyright", "--pythonpath", sys.executable, "--outputjson", str(file)).stdout
    return json.loads(out)["generalDiagnostics"]


@pytest.mark.parametrize("name", ["own", "trackers"])
def test_mypy_has_nothing_to_say(name):
    done = checked("mypy", str(HERE / f"{name}.py"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_knows_your_own_logger():
    assert pyright(HERE / "own.py") == []


OWN = {
    ("wandb_run", "run.log"): "(data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None",
    ("wandb_run", "td.wrap(run)"): "WandbRun",
    ("mlflow_module", "run.log_metrics"): "(metrics: dict[str, float], step: int | None = None, synchronous: ",
    ("mlflow_run", "run.log_metrics"): "(metrics: dict[str, float], step: int | None = None) -> None",
    ("mlflow_run", "run.info.run_id"): "str",
    ("mlflow_client", "client.log_batch"): "(run_id: str, metrics: Sequence[Metric] = (), ",
    ("trackio_run", "run.finish"): "() -> None",
    ("summary_writer", "writer.add_scalar"): "(tag: ",
}
"""What pyright is to know of the trackers' own methods, or how that begins."""


def test_pyright_knows_each_tracker_and_diag():
    told = pyright(HERE / "trackers.py")
    assert {one["severity"] for one in told} == {"information"}, told
    types = {one["range"]["start"]["line"] + 1: one["message"].partition(" is ")[2].strip('"') for one in told}
    asked = revealed(HERE / "trackers.py")
    assert {types[line] for (_, what), line in asked.items() if what.endswith(".diag")} == {"Monitor"}
    assert {function for function, what in asked if what.endswith(".diag")} == {function for function, _ in OWN}
    for what, kind in OWN.items():
        assert types[asked[what]].startswith(kind)


def revealed(file):
    """Where a type is asked for, by function and expression."""
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    calls = [
        (function.name, node) for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)
    ]
    return {
        (name, ast.unparse(call.args[0])): call.lineno
        for name, call in calls
        if ast.unparse(call.func) == "reveal_type"
    }


def test_the_types_load_no_tracker():
    code = "import sys, tracker_diag.attach.kinds; print(*{'wandb', 'mlflow', 'trackio', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
