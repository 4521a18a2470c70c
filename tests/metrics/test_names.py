"""Each framework's own names of the release that its file was read from: read, or not read for a reason."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app
from tracker_diag.metrics import alias_files, aliases
from tracker_diag.metrics.aliases import key_map

LISTS = sorted((Path(__file__).parent / "names").glob("*.txt"))


def listed(file):
    """What the list says that it is of, and the names."""
    first, *names = file.read_text().splitlines()
    return first.removeprefix("# "), names


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_name_of_a_release_is_read_or_has_a_reason(file):
    _, names = listed(file)
    framework = alias_files.load(alias_files.FOLDER / f"{file.stem}.yaml").framework
    unmapped = key_map(names, framework).unmapped
    assert [name for name in unmapped if not aliases.why_not(name, framework)] == []
    assert len(unmapped) < len(names)


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_a_framework_is_known_by_its_own_names(file):
    _, names = listed(file)
    framework = alias_files.load(alias_files.FOLDER / f"{file.stem}.yaml").framework
    assert aliases.recognise(names) == framework
    for prefix in alias_files.file_of(framework).prefixes:
        prefixed = [name if name.startswith(prefix) else f"{prefix}{name}" for name in names]
        assert aliases.recognise(prefixed) == framework


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_the_file_says_the_release_that_its_list_is_of(file):
    title, _ = listed(file)
    loaded = alias_files.load(alias_files.FOLDER / f"{file.stem}.yaml")
    assert title.split()[-1].strip("()") in loaded.read_at or title.split()[1].strip(",") in loaded.read_at


def test_the_command_prints_what_is_read_of_each_framework_and_why_the_rest_is_not():
    asked = CliRunner().invoke(app, ["integrations", "--names", "all"])
    assert asked.exit_code == 0
    assert all(f"{framework}  names of " in asked.stdout for framework in alias_files.frameworks())
    item = CliRunner().invoke(app, ["integrations", "--names", "tianshou"]).stdout
    assert "train/returns_stat/mean" in item
    assert "update/alpha*: a coefficient that is tuned on the way" in item
    refused = CliRunner().invoke(app, ["integrations", "--names", "nope"])
    assert refused.exit_code == 2
    assert "framework: 'nope' given, expected one of agent-lightning, AReaL" in refused.stderr
