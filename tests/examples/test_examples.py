"""Each example runs as a person would run it, from start to end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "agent_rl.py --arm widen --steps 130": "POL002 post_tool firing from step",
    "cleanrl_ppo.py --total-timesteps 8192": "highest severity: none",
    "cleanrl_ppo.py --clip-coef 1000 --learning-rate 0.02 --total-timesteps 12800": "POL005 text_only",
    "distributed.py": "9728 model tokens of 2 ranks in the last 8 steps, 5120 after the tool",
    "own_loop.py": "highest severity: none",
    "own_loop.py --ewma 0.9": "mismatch post_tool",
}
"""What a person reads in the end."""


def run(arguments, folder):
    command = [sys.executable, EXAMPLES / arguments.split()[0], *arguments.split()[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packed_tensors_say_what_padded_ones_say(printed, folder):
    assert "post_tool" in printed
    assert run("own_loop.py --packed", folder) == printed


def cleanrl_writes_the_diagnostics_beside_its_own_rows(_, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = set()
    for path in {path.parent for path in folder.glob("runs/**/events*")}:
        events = EventAccumulator(str(path))
        events.Reload()
        tags |= set(events.Tags()["scalars"])
    assert {"losses/clipfrac", "charts/episodic_return", "diag/policy/text_only/p95"} <= tags


BESIDES = {
    "cleanrl_ppo.py --total-timesteps 8192": cleanrl_writes_the_diagnostics_beside_its_own_rows,
    "own_loop.py": packed_tensors_say_what_padded_ones_say,
}
"""What else holds of the same run."""


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", EXPECTED)
def test_it_runs(arguments, tmp_path, migrated_mlflow):
    shutil.copyfile(migrated_mlflow, tmp_path / "agent_rl.db")  # as if that example had run here before
    printed = run(arguments, tmp_path)
    assert EXPECTED[arguments] in printed
    if arguments in BESIDES:
        BESIDES[arguments](printed, tmp_path)


def test_every_example_is_run():
    assert {arguments.split()[0] for arguments in EXPECTED} == {path.name for path in EXAMPLES.glob("*.py")}
