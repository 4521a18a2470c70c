"""Real processes that end in every way, each with the diagnostics and without: the end is the same, and is told."""

import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

from tracker_diag.runs.postmortem import signals as process

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

TOLD = {
    "exception": "ValueError: cannot go on",
    "exception_out_of_the_block": "RuntimeError: out of memory",
    "exit_code": "SystemExit: 3",
    "own_excepthook": "ValueError: told by a hook",
    "ctrl_c": "KeyboardInterrupt",
    "terminated": "SIGTERM",
    "terminated_twice": "SIGTERM",
    "terminated_while_the_main_thread_never_comes_back": "SIGTERM",
    "terminated_while_the_diagnostics_are_at_work": "SIGTERM",
    "terminated_and_the_program_ends_by_itself": "SIGTERM",
    "own_handler_before": "SIGTERM",
    "own_handler_after_that_hands_on": "SIGTERM",
    "thread_that_trains_raises": "ValueError: in a thread, in trainer",
    "loss_is_nan": "NaN or infinity: loss is NaN or infinite (1 series at this step), since step 2",
}
"""What the postmortem of a scene begins with."""
QUIET = {
    "closed", "not_closed", "exception_that_was_handled", "ignored", "fork_is_terminated", "fork_raises",
    "closed_and_then_terminated", "thread_beside_raises", "event_loop",
}  # fmt: skip
"""Scenes that leave none."""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    command = [sys.executable, str(HERE / "scenes.py"), str(folder)]
    statuses = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return folder, statuses


def test_every_scene_is_held_against_what_it_is_to_leave(played):
    assert set(played[1]) == TOLD.keys() | QUIET


@pytest.mark.nightly
@pytest.mark.by_day("closed", "ctrl_c", "exception", "terminated")
@pytest.mark.parametrize("name", sorted(TOLD.keys() | QUIET))
def test_the_process_ends_and_prints_as_it_does_without_the_diagnostics(played, name):
    folder, statuses = played
    assert statuses[name]["with"] == statuses[name]["without"], (folder / name / "with" / "err").read_text()
    assert (folder / name / "with" / "out").read_text() == (folder / name / "without" / "out").read_text()


@pytest.mark.nightly
@pytest.mark.by_day("ctrl_c", "exception", "terminated")
@pytest.mark.parametrize("name", sorted(TOLD))
def test_the_postmortem_begins_with_what_ended_the_run(played, name):
    (place,) = (played[0] / name / "with" / "postmortem").iterdir()
    said = json.loads((place / "postmortem.json").read_text())
    assert said["ended"][0]["what"] == TOLD[name]
    assert (said["diagnosis"] is None) == (name == "terminated_while_the_diagnostics_are_at_work")
    assert f"**{TOLD[name]}**" in (place / "README.md").read_text()


@pytest.mark.by_day("closed", "fork_raises")
@pytest.mark.parametrize("name", sorted(QUIET))
def test_a_run_that_ends_by_itself_leaves_none(played, name):
    assert not (played[0] / name / "with" / "postmortem").exists()


def test_a_hung_main_thread_is_shown_where_it_hangs(played):
    (place,) = (played[0] / "terminated_while_the_main_thread_never_comes_back/with/postmortem").iterdir()
    main, *_ = (place / "traceback.txt").read_text().split("Thread MainThread:\n")[1].split("\nThread ")
    assert "libc.pthread_mutex_lock(lock)" in main


@pytest.mark.nightly
def test_runs_that_end_at_random_moments_leave_a_readable_postmortem():
    command = [sys.executable, str(HERE / "killed.py"), "--runs", "5", "--seed", str(os.getpid())]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [(kind, of["readable"], of["wrong"]) for kind, of in found.items()] == [
        ("signal", 5, []),
        ("exception", 5, []),
    ]


@pytest.mark.parametrize("times", [1, 2])
def test_stacks_that_cannot_be_read_are_tried_once_more_and_then_say_why(monkeypatch, times):
    """Another thread may be in the midst of what Python caches of its source."""
    left, real = [KeyError("train.py")] * times, traceback.format_stack

    def fails_at_first(frame):
        if left:
            raise left.pop()
        return real(frame)

    monkeypatch.setattr(traceback, "format_stack", fails_at_first)
    monkeypatch.setattr(sys, "_current_frames", lambda: {threading.get_ident(): sys._getframe()})
    found = process._stacks()
    assert ("test_stacks_that_cannot" in found) == (times == 1)
    assert ("cannot be read: KeyError('train.py')" in found) == (times == 2)
