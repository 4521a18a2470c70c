"""Each example runs as a person would run it, from start to end."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {"agent_rl.py": ["--arm", "widen", "--steps", "130"]}


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_it_runs(example, tmp_path):
    command = [sys.executable, EXAMPLES / example, *ARGUMENTS[example]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "POL002 post_tool firing from step" in done.stdout
