import json

import pytest

from tracker_diag import Monitor
from tracker_diag.trackers.files.read import read_metrics
from tracker_diag.trackers.files.write import JsonlTracker


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_one_line_a_step_and_one_a_change_of_state(rng, make_batch, tmp_path):
    monitor = Monitor([JsonlTracker(tmp_path / "new" / "folder")])
    for step in range(4):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": 0.5, "loss": float("nan") if step == 2 else 0.1}, step)
        # Readable at once: nothing waits for the end of the run.
        assert len(lines(tmp_path / "new/folder/metrics.jsonl")) == step + 1
    monitor.close()
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "new/folder").iterdir()} == {0o600}
    rows = lines(tmp_path / "new/folder/metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["reward"] == 0.5
    assert rows[2]["loss"] == "nan"
    assert rows[3]["diag/rule/NUM004"] == 2
    seen, finding = lines(tmp_path / "new/folder/findings.jsonl")
    assert "what is seen at step 0" in seen["event"]
    assert (finding["step"], finding["rule"], finding["state"]) == (2, "NUM004", "firing")


@pytest.mark.slow
def test_the_metrics_file_is_read_back_without_the_diagnostics(rng, make_batch, tmp_path):
    with Monitor([JsonlTracker(tmp_path)]) as monitor:
        for step in range(3):
            monitor.observe(**make_batch(rng))
            monitor.log({"train/reward": step / 2}, step)
    assert read_metrics(tmp_path / "metrics.jsonl") == {step: {"train/reward": step / 2} for step in range(3)}


@pytest.mark.slow
def test_an_event_is_a_line_too(rng, make_batch, tmp_path):
    with Monitor([JsonlTracker(tmp_path)]) as monitor:
        monitor.rebaseline("new tools")
        monitor.observe(**make_batch(rng))
        monitor.log({}, 7)
    assert lines(tmp_path / "findings.jsonl")[0] == {"step": 7, "event": "new baseline: new tools"}
