"""Every command explains itself, in a narrow terminal and in a wide one, with its texts whole."""

import re

import pytest
import typer.main
from typer.testing import CliRunner

from tracker_diag.cli.app import app

MOST = 14
"""Commands and groups."""


def commands(command, path=()):
    """Each command and group, by the words that one types."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def letters(text):
    """`text` without its spaces, as lines are broken at hyphens too."""
    return "".join(text.split())


def shown(path, width):
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= width
    return result.stdout


def test_there_are_few_enough_commands_to_remember():
    assert len([path for path in ALL if len(path) == 1]) <= MOST
    assert {"diagnose", "replay", "compare", "watch", "rules", "export"} <= {path[0] for path in ALL if path}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_help_is_rendered_whole(path, width):
    text = letters(shown(path, width))
    for parameter in ALL[path].params:
        if parameter.name != "help":
            assert letters(parameter.help) in text  # with its `[@tracking uri]` and `[/<run>]`
    for name, child in getattr(ALL[path], "commands", {}).items():
        assert letters(name + child.get_short_help_str(200)) in text


@pytest.mark.parametrize("path", [path for path in ALL if path], ids=" ".join)
def test_an_option_has_a_name_that_one_can_remember(path):
    for parameter in ALL[path].params:
        for option in parameter.opts:
            assert not option.startswith("--") or re.fullmatch(r"--[a-z]+(-[a-z]+){0,2}", option), option
