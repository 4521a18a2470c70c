"""What type checkers say of `wrap`: its options are checked, and what it gives may be declared."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


def checked(*command):
    # The checkers are to find this checkout, and not one that may be installed.
    environment = {**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'integrations'}"}
    return subprocess.run(
        [sys.executable, "-m", *command], check=False, cwd=ROOT, capture_output=True, text=True, env=environment
    )


def pyright(file):
    out = checked("pyright", "--pythonpath", sys.executable, "--outputjson", str(file)).stdout
    return json.loads(out)["generalDiagnostics"]


def test_mypy_has_nothing_to_say():
    done = checked("mypy", str(HERE / "own.py"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_has_nothing_to_say():
    assert pyright(HERE / "own.py") == []
