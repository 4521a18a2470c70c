"""`tracker-diag watch` from the command line; kills and lost servers are in tests/runs/test_watch_kills.py."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, ["watch", *map(str, arguments)])


@pytest.fixture
def file(tmp_path):
    """A metrics file with a NaN at step 7, written a minute ago."""
    path = tmp_path / "metrics.jsonl"
    rows = ({"step": step, "reward": 0.5, "kl": float("nan") if step == 7 else 0.01} for step in range(20))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (time.time() - 60,) * 2)
    return path


def test_once_sends_the_alerts_and_shows_the_table_and_the_next_time_sends_none_again(file, caplog):
    first = run(file, "--once")
    assert first.exit_code == 0
    assert "1 run: 1 error" in first.stdout
    assert "metrics.jsonl running" in " ".join(first.stdout.split())
    assert [record.getMessage().splitlines()[:2] for record in caplog.records] == [
        ["metrics.jsonl: Stop: fix it, resume from step 6", "  NaN or infinity (NUM004)"]
    ]
    assert f"See: tracker-diag diagnose {file}" in caplog.records[0].getMessage()
    caplog.clear()
    assert "1 run: 1 error" in run(file, "--once").stdout
    assert caplog.records == []


@pytest.mark.slow
def test_the_state_is_with_the_journals_or_in_the_named_folder(file, journals, tmp_path, monkeypatch, caplog):
    run(file, "--once")
    assert len(caplog.records) == 1
    (made,) = journals.iterdir()
    assert made.name.startswith("watch-")
    monkeypatch.chdir(file.parent)
    assert run("metrics.jsonl", "--once").exit_code == 0, "the same file, by another name"
    assert list(journals.iterdir()) == [made]
    assert len(caplog.records) == 1, "and sent by the first"
    run(file, "--once", "--state", tmp_path / "mine")
    assert (tmp_path / "mine" / "watch.json").exists()


def test_rules_are_chosen_as_in_diagnose(file):
    shown = run(file, "--once", "--rules", "POL").stdout
    assert "too short to judge" in shown  # these need more rows
    assert "NUM004" not in shown


@pytest.mark.slow
def test_a_folder_is_a_project_and_a_page_is_written(file, tmp_path):
    page = tmp_path / "fleet.html"
    result = run(file.parent, "--project", "--once", "--html", page)
    assert result.exit_code == 0
    assert "NUM004: NaN or infinity" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600


def test_a_page_that_cannot_be_written_ends_nothing(file, tmp_path, caplog):
    page = tmp_path / "fleet.html"
    page.symlink_to("/dev/full")
    assert run(file, "--once", "--html", page).exit_code == 0
    assert f"the page {page} cannot be written" in caplog.text
    assert "NUM004" in caplog.text


@pytest.mark.slow
def test_bad_input_is_one_line_and_exit_2(file, tmp_path, monkeypatch):
    taken = tmp_path / "taken"
    run(file, "--once", "--state", taken)
    old = tmp_path / "old"
    old.mkdir()
    (old / "watch.json").write_text(json.dumps({"version": 1, "source": str(file), "project": False}))
    for arguments, message in (
        (["nowhere.jsonl", "--once"], "nowhere.jsonl: no such file or folder"),
        (["nowhere", "--project", "--once"], "nowhere: no such folder"),
        ([file.parent, "--project", "--once", "--state", taken], "given, expected"),
        ([file, "--once", "--state", old], "version 1 given, expected"),
        ([file, "--once", "--state", file], "name another folder with --state"),
        ([file, "--once", "--rules", "nowhere/"], "nowhere: no such folder"),
        ([file, "--once", "--html", tmp_path / "no" / "page.html"], "page.html given, expected a file in a folder"),
        ([file, "--once", "--html", tmp_path], "given, expected a file in a folder that exists"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.output.count("\n")) == (2, 1), result.output
        assert message in result.output
    monkeypatch.setenv("TRACKER_DIAG_NOTIFY", "nonsense")
    assert "the URL is not shown" in run(file, "--once").output


@pytest.mark.nightly
@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_ends_it_with_the_last_table(terminal, file, tmp_path):
    command = [sys.executable, "-c", "from tracker_diag.cli.app import app; app()"]
    command += ["watch", str(file), "--every", "0.1", "--html", str(tmp_path / "page.html")]
    environment = os.environ | ({"TTY_COMPATIBLE": "1", "TERM": "xterm"} if terminal else {"TTY_COMPATIBLE": "0"})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watch:
        end = time.monotonic() + 240
        while not (tmp_path / "page.html").exists() and time.monotonic() < end:
            time.sleep(0.05)
        watch.send_signal(signal.SIGINT)
        out, log = watch.communicate(timeout=240)
    assert watch.returncode == 0
    assert "NaN or infinity (NUM004)" in log
    last = out.rpartition("tracker_diag: ")[2]
    assert "1 run: 1 error" in last
    assert "NUM004" in last
    assert "the watch has ended" in (tmp_path / "page.html").read_text()
    assert terminal or out.splitlines()[0].endswith("since step 7"), out


@pytest.mark.slow
def test_the_dial_moves_when_alerts_are_sent(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    rows = ({"step": step, "reward": 0.5 + (7 * step % 5 - 2) / 100 - 0.4 * (step > 24)} for step in range(30))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (time.time() - 60,) * 2)
    sent = {}
    for runs in (100, 1e9):
        caplog.clear()
        state = tmp_path / str(runs)
        assert run(path, "--once", "--false-alarm-in", runs, "--state", state).exit_code == 0
        sent[runs] = [record.getMessage().splitlines()[1].strip() for record in caplog.records]
    assert sent == {100: ["Reward has lost what it had gained (OUT001)"], 1e9: []}
    assert run(path, "--once", "--false-alarm-in", 0.5).exit_code == 2
