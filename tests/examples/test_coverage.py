"""docs/coverage.md: 52 rows, and in each a command that there is."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| ([^|]*) \| ([^|]*) \| (yes|partly|no) \| (?:`([^`]*)`)? ?\| ?([^|]*)\|$",
    (ROOT / "docs" / "coverage.md").read_text(),
    re.MULTILINE,
)


def test_each_row_has_a_state_a_command_or_what_is_missing():
    assert len(ROWS) == 52
    for _, asked, state, command, missing in ROWS:
        assert (state == "no") == (not command), asked
        assert state == "yes" or missing, asked


@pytest.mark.parametrize("command", sorted({command for *_, command, _ in ROWS if command}))
def test_the_command_is_there(command):
    program, *arguments = shlex.split(command)
    if program == "tracker-diag":
        words = [word for word in arguments if not word.startswith("-")]
        if words[:2] != ["rules", "show"]:
            words = [*words[: 2 if words[:1] == ["export"] else 1], "--help"]
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 0, shown.output
        assert all(option in shown.output for option in arguments if option.startswith("--")), shown.output
    elif arguments[0] == "-c":
        exec(arguments[1], {"help": lambda thing: thing.__doc__.strip()})  # noqa: S102  # of our own page
    else:
        assert (ROOT / arguments[0]).exists()
