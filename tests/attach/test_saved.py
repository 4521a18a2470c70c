"""State next to checkpoints: found again, or said to be missing, and never in the way."""

import pytest

from tracker_diag import Monitor
from tracker_diag.attach.saved import Saved, file_of
from tracker_diag.testing import CapturingTracker, example_batch

pytestmark = pytest.mark.slow

STEPS = 120


def train(monitor, steps, saved=None, at=None, folder=None):
    """Rows as most trainers log them: after the checkpoint of the step."""
    for step in steps:
        monitor.observe(**example_batch(step))
        if step == at:
            saved.put(folder, row=step)
        monitor.log({"reward": step / STEPS}, step)
        if saved:
            saved.logged()


def verdict_of(monitor):
    return [
        (finding.rule.id, finding.slice, finding.onset, finding.fired, finding.state)
        for finding in monitor.summary().findings
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("killed", [70, 94, 100])
def test_a_run_that_is_killed_and_resumed_raises_the_alerts_of_an_unbroken_one(tmp_path, killed):
    unbroken = Monitor()
    train(unbroken, range(STEPS))
    first = Monitor()
    train(first, range(killed + 1), Saved(first), killed, tmp_path / "step")
    second = Monitor()
    assert Saved(second).find(tmp_path / "step")
    assert second.step == killed  # the row that was logged after the checkpoint is in it
    train(second, range(killed + 1, STEPS))
    assert verdict_of(second) == verdict_of(unbroken) != []
    assert [file.name for file in (tmp_path / "step").iterdir()] == ["tracker_diag_0.json"]


def test_a_checkpoint_without_a_state_is_reported_once_in_the_log_and_in_the_run(tmp_path, caplog):
    tracker = CapturingTracker()
    monitor = Monitor([tracker])
    assert not Saved(monitor).find(tmp_path)
    train(monitor, range(3))
    text = f"{tmp_path / 'tracker_diag_0.json'} is not there: the diagnostics of the resumed run start over"
    assert [message for message in caplog.messages if "start over" in message] == [text]
    assert monitor.events == [(0, f"new baseline: {text}")]
    assert monitor.failures == []


@pytest.mark.nightly
def test_beginning_anew_changes_no_number(tmp_path):
    rows = []
    for resumed in (False, True):
        tracker = CapturingTracker()
        monitor = Monitor([tracker])
        if resumed:
            Saved(monitor).find(tmp_path)
        train(monitor, range(STEPS))
        summary = monitor.summary()
        rows.append(
            ([tracker.scalars(step) for step in range(STEPS)], verdict_of(monitor), summary.blind, summary.healthy)
        )
    assert rows[0] == rows[1]


@pytest.mark.parametrize("content", ["{", "[1, 2]", '{"version": 1}', '{"version": 9}', '"text"', "null"])
def test_a_damaged_state_or_one_of_another_version_is_reported_and_training_continues(tmp_path, content, caplog):
    file_of(tmp_path, 0).write_text(content)
    monitor = Monitor()
    assert not Saved(monitor).find(tmp_path)
    train(monitor, range(3))
    assert monitor.step == 2
    assert any("start over" in message for message in caplog.messages)
    assert monitor.health["integration_errors"] <= 1


def test_of_more_processes_than_there_were_the_new_ones_continue_with_the_firsts(tmp_path):
    first = Monitor()
    train(first, range(9), Saved(first), 8, tmp_path)
    joined = Monitor()
    assert Saved(joined, rank=3).find(tmp_path)
    assert joined.step == 8
    assert not joined.observed


def test_a_folder_that_cannot_be_written_is_counted_and_training_continues(tmp_path):
    (tmp_path / "file").write_text("no folder")
    monitor = Monitor()
    train(monitor, range(3), Saved(monitor), 1, tmp_path / "file" / "step")
    assert monitor.health["integration_errors"] == 1
    assert monitor.step == 2


def test_a_checkpoint_that_is_taken_away_before_the_row_is_not_made_anew(tmp_path):
    monitor = Monitor()
    saved = Saved(monitor)
    monitor.log({"reward": 1.0}, 0)
    saved.put(tmp_path / "step", row=0)
    file_of(tmp_path / "step", 0).unlink()
    (tmp_path / "step").rmdir()
    saved.logged()
    assert not (tmp_path / "step").exists()
    assert monitor.failures == []


def test_only_rows_of_the_checkpoints_step_are_added_to_it(tmp_path):
    monitor = Monitor()
    saved = Saved(monitor)
    for step, parts in enumerate([1, 2, 2, 1]):
        if step == 1:
            saved.put(tmp_path / "before", row=1)
        for part in range(parts):
            monitor.log({f"part{part}": 1.0}, step)
            saved.logged()
        if step == 2:
            saved.put(tmp_path / "after")  # its row was there already
    for name, last in (("before", 1), ("after", 2)):
        again = Monitor()
        assert Saved(again).find(tmp_path / name)
        assert again.step == last


def test_a_folder_in_a_cloud_is_reported_once_and_left_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    saved = Saved(Monitor())
    saved.put("s3://bucket/step_1")
    saved.put("s3://bucket/step_2")
    assert ["s3://bucket/step_1 is no folder here" in message for message in caplog.messages] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_monitor_that_has_seen_steps_is_left_as_it_is(tmp_path, caplog):
    monitor = Monitor()
    monitor.log({"reward": 1.0}, 5)
    assert not Saved(monitor).find(tmp_path)
    assert not caplog.records
