"""Real processes that end in every way, each with the diagnostics and without: the end is the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCENES = Path(__file__).with_name("scenes.py")
ENDED_BY = {
    "exception": "ValueError: cannot go on",
    "exception_out_of_the_block": "RuntimeError: out of memory",
    "exit_code": "SystemExit: 3",
    "own_excepthook": "ValueError: told by a hook",
    "ctrl_c": "KeyboardInterrupt",
    "loss_is_nan": "NaN or infinity: loss is NaN or infinite (1 series at this step), since step 2",
}
"""What the postmortem of a scene begins with."""
QUIET = {"not_closed", "exception_that_was_handled", "fork_raises", "terminated"}
"""Scenes that leave none. After a signal that kills, `export postmortem` makes one from the tracker."""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    command = [sys.executable, str(SCENES), str(folder)]
    return folder, json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_each_process_ends_and_prints_as_it_does_without_the_diagnostics(played):
    folder, statuses = played
    assert set(statuses) == ENDED_BY.keys() | QUIET
    for name, status in statuses.items():
        with_us, without = folder / name / "with", folder / name / "without"
        assert status["with"] == status["without"], (with_us / "err").read_text()
        assert (with_us / "out").read_text() == (without / "out").read_text()


def test_the_postmortem_begins_with_what_ended_the_run(played):
    for name, what in ENDED_BY.items():
        (place,) = (played[0] / name / "with" / "postmortem").iterdir()
        assert json.loads((place / "postmortem.json").read_text())["ended"][0]["what"] == what
        assert f"**{what}**" in (place / "README.md").read_text()


def test_a_run_that_ends_by_itself_leaves_none(played):
    assert [name for name in QUIET if (played[0] / name / "with" / "postmortem").exists()] == []
