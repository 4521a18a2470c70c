"""`tracker-diag compare` as it is typed."""

import json
import math
import os

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app

pytestmark = pytest.mark.slow


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


@pytest.fixture
def written(tmp_path, rng):
    """Write a run of 100 steps with `wide` times the tail from step 50 on; gives its path."""

    def write(name, wide=1.0, steps=range(100), config=None, scale=1):
        lines = [json.dumps({"step": steps[0] * scale, "config": config})] if config else []
        for at, step in enumerate(steps):
            tail = 0.02 * math.exp(0.05 * rng.normal()) * (wide if at >= 50 else 1.0)
            row = {"step": step * scale, "reward": 0.5 + 0.02 * rng.normal(), "diag/policy/post_tool/p95": tail}
            lines.append(json.dumps(row))
        file = tmp_path / f"{name}.jsonl"
        file.write_text("\n".join(lines), encoding="utf-8")
        return file

    return write


def test_two_files_are_compared(written):
    result = run("compare", written("calm"), written("wide", 4.0))
    assert result.exit_code == 0
    assert "tracker_diag: B (wide): no outcome parted (first difference from about step" in result.stdout
    assert "policy/post_tool/p95 since about step 50" in result.stdout
    assert len(result.stdout.splitlines()) <= 25


@pytest.mark.nightly
def test_seeds_stand_with_commas(written):
    files = [written(f"{name}{seed}", wide, config={"arm": name, "seed": seed})
             for name, wide in (("calm", 1.0), ("wide", 4.0)) for seed in (0, 1)]  # fmt: skip
    messages = run("compare", f"{files[0]},{files[1]}", f"{files[2]},{files[3]}", "--json")
    (load,) = json.loads(messages.stdout)["others"]
    assert load["sources"] == [str(file) for file in files[2:]]
    assert load["spread"] == "between seeds"
    assert [setting["name"] for setting in load["settings"]] == ["arm"]


def test_a_file_whose_name_has_a_comma_is_one_file(written):
    result = run("compare", written("a,b"), written("c", 4.0), "-q")
    first = "first difference from about step 50: p95 |log-ratio| after tool results"
    assert result.stdout == f"B (c): no outcome parted ({first})\n"


@pytest.mark.nightly
def test_the_page_is_written_next_to_what_is_printed(written, tmp_path):
    page = tmp_path / "page.html"
    result = run("compare", written("calm"), written("wide", 4.0), "--html", page)
    assert result.exit_code == 0
    assert "policy/post_tool/p95" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    refused = run("compare", written("calm"), written("wide"), "--html", tmp_path)
    assert refused.exit_code == 2
    assert refused.stderr == f"tracker-diag: --html: {tmp_path}: {os.strerror(21)}\n"


@pytest.mark.nightly
def test_bad_input_ends_with_two_and_one_line(written, tmp_path):
    item = written("one")
    other = tmp_path / "other.jsonl"
    other.write_text("".join(f'{{"step": {step}, "zzz": 1}}\n' for step in range(30)))
    for arguments, says in (
        ((item,), "one run given, expected two or more: compare A B"),
        ((item, item), f"{item}: given twice, expected different runs"),
        ((item, tmp_path / "none.jsonl"), "no such file or folder"),
        ((item, other), f"{other}: none of its metrics is known here (it has zzz)"),
        ((item, f"{item},"), "given twice"),
        ((item, ","), "expected two or more"),
    ):
        result = run("compare", *arguments)
        assert result.exit_code == 2
        assert says in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
