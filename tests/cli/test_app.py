import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app

pytestmark = pytest.mark.slow


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A token table whose post-tool tail grows eightfold from step 90 on; gives its path."""

    @cache
    def write(steps=150, nan_at=None):
        file = tmp_path_factory.mktemp("table") / "tokens.parquet"
        rng = np.random.default_rng(0)
        parts = []
        for step in range(steps):
            n, width = 40, 20
            position = np.tile(np.arange(width), n)
            new = rng.uniform(-3, -0.1, n * width)
            scale = np.where(position > 10, 0.02 * np.exp(max(0, step - 90) * 0.05), 0.02)
            old = new - scale * rng.normal(size=n * width)
            if step == nan_at:
                old[15] = np.nan
            parts.append(
                pa.table(
                    {
                        "step": np.full(n * width, step),
                        "sequence": np.repeat(np.arange(n), width),
                        "position": position,
                        "is_model": (position != 10) & (position > 0),
                        "logprob": new,
                        "old_logprob": old,
                    }
                )
            )
        pq.write_table(pa.concat_tables(parts), file, row_group_size=7000)
        return file

    return write


def test_replay_prints_the_json_of_the_interface(table):
    file = table()
    result = run("replay", file, "--json", "--fail-on", "warn")
    assert result.exit_code == 1
    results = json.loads(result.stdout)
    assert results["run"] == {"source": str(file), "steps": 150, "first_step": 0, "last_step": 149}
    (finding,) = [finding for finding in results["findings"] if finding["fired"] is not None]
    assert list(finding) == [
        "rule", "name", "link", "tier", "pair", "slice", "severity", "state", "onset", "fired", "resolved", "summary",
        "evidence", "remedy", "inhibited_by", "carried_by",
    ]  # fmt: skip
    assert (finding["rule"], finding["slice"], finding["severity"]) == ("POL001", "post_tool", "warn")
    assert list(finding["evidence"][0]) == ["signal", "series", "holds", "value", "baseline", "n"]
    assert results["first_break"] == {"rule": "POL001", "slice": "post_tool", "onset": finding["onset"]}
    assert {"POL002", "RES007"} <= {blind["rule"] for blind in results["blind"]}
    assert "NUM004" in results["healthy"]


def test_replay_takes_the_runs_own_metrics_with_it(table, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "train/reward": 0.9} for step in range(-3, 153)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("replay", table(), "--metrics", metrics, "--json", "--fail-on", "error")
    assert result.exit_code == 0
    results = json.loads(result.stdout)
    assert results["run"]["steps"] == 156
    evidence = {reading["signal"]: reading for reading in results["findings"][0]["evidence"]}
    assert evidence["reward_falls"]["holds"] is False
    assert evidence["kl_grows"]["holds"] is None


@pytest.mark.nightly
def test_replays_page_shows_the_worst_sequences_with_the_texts_that_the_table_has(table, tmp_path):
    file, page = table(), tmp_path / "page.html"
    rows = pq.read_table(file)
    text = [
        f"<{'tool' if not own else 'word'} {at}>" for own, at in zip(rows["is_model"], rows["position"], strict=True)
    ]
    with_texts = tmp_path / "with_texts.parquet"
    pq.write_table(rows.append_column("token", pa.array(text)), with_texts)
    assert run("replay", file, "--html", page).exit_code == 0
    assert "policy, post_tool, since step " in page.read_text()
    assert 'class="said"' not in page.read_text()
    assert run("replay", with_texts, "--html", page).exit_code == 0
    assert "&lt;word 15&gt;" in page.read_text()
    assert '<span class="tool" title="tool"><span>&lt;tool 10&gt;</span></span>' in page.read_text()


def test_replay_says_what_it_would_read_and_what_other_weights_would_do(table):
    file = table(steps=10)
    explained = run("replay", file, "--explain").stdout
    assert f"{file}: steps 0 to 9, about 8,000 rows" in explained
    assert "pair policy: yes" in explained
    shown = json.loads(run("replay", file, "--json", "--what-if").stdout)["what_if"]
    assert [variant["name"] for variant in shown][:2] == ["tokens, as logged", "tokens, weight at most 2"]
    assert "whole sequences" in run("replay", file, "--what-if").stdout
    assert "expected name=column" in run("replay", file, "--columns", "logprob").stderr


@pytest.mark.nightly
def test_a_person_gets_25_lines_one_line_or_all_that_could_not_be_seen(table):
    file = table()
    whole, short, more = (run("replay", file, *given).stdout for given in ((), ("-q",), ("--blind",)))
    assert len(whole.splitlines()) <= 25
    assert short.startswith("warn: POL001 on post_tool since step ")
    assert len(short.splitlines()) == 1
    assert more.startswith(whole)
    assert "to see more" in more
    assert "POL002" in more.removeprefix(whole)


def test_a_nan_in_the_metrics_is_found_again_as_it_was_live(table, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 5, "loss": "nan"}\n')
    results = json.loads(run("replay", table(steps=10), "--metrics", metrics, "--json").stdout)
    assert [(f["rule"], f["fired"]) for f in results["findings"]] == [("NUM004", 5)]
    assert run("replay", table(steps=10, nan_at=5), "--json", "--fail-on", "error").exit_code == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, table: ["replay", folder / "none.parquet"], "none.parquet: No such file"),
        (lambda folder, table: ["replay", table(), "--metrics", folder / "none"], "none: No such file"),
        (lambda folder, table: ["demo", "--out", table()], "tokens.parquet is a file, expected a folder"),
        (lambda folder, table: ["demo", "--arm", "nonsense"], "--arm: 'nonsense' given, expected one of healthy,"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(make, message, table, tmp_path):
    result = run(*make(tmp_path, table))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
