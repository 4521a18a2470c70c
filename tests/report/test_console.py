"""What a person sees is text, whatever the names and messages in it hold."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from tracker_diag import Monitor
from tracker_diag.report.console import plain, unbroken
from tracker_diag.trackers.files.console import NUMBER

NASTY = (
    "[/red]",
    "[link=https://evil.example]x[/link]",
    "\x1bc",
    "\x1b]8;;https://evil.example\x07x",
    "\x9b2J",
    ":bomb:",
)


@pytest.mark.parametrize("name", NASTY)
def test_names_are_shown_as_they_are_and_steer_nothing(name, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monitor = Monitor()
    monitor.log({f"loss{name}": float("nan"), "reward": 0.5}, 0)
    monitor.explain()
    monitor.close()
    shown = capsys.readouterr()
    left = re.sub(r"\x1b\[[0-9;]*m", "", shown.out + shown.err)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", left)
    table = Table()
    table.add_column()
    table.add_row(name)
    printable = "".join(c for c in name if c.isprintable())
    assert printable in plain(table)
    assert printable in plain(Text(name))


@pytest.mark.slow
def test_so_it_is_on_the_command_line(tmp_path):
    file = tmp_path / "m.jsonl"
    rows = [
        {"step": step, "reward": 0.5} | {f"loss{name}": math.nan for name in (*NASTY, "\ud800x")} for step in range(30)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = tmp_path / "page.html"
    command = [str(Path(sys.executable).with_name("tracker-diag")), "diagnose", str(file), "--html", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert "loss" in page.read_text()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr)


def test_what_is_to_be_copied_is_not_broken():
    long = "tracker-diag diagnose mlflow:" + "0" * 200
    assert plain(unbroken(Text(long))) == long


@pytest.mark.slow
def test_a_long_line_of_digits_is_read_in_linear_time():
    """In quadratic time this would take hours, and the limit that each test has would end it."""
    assert re.fullmatch(NUMBER + "x?y", "1" * 3_000_000) is None
