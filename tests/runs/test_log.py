"""The log before the diagnosis: what is wrong with it is said first, and few rows are too short to judge."""

import json
import math
import re

import pytest
from typer.testing import CliRunner

from tracker_diag import diagnose
from tracker_diag.cli.app import app
from tracker_diag.report.console import plain
from tracker_diag.report.markdown import note_on
from tracker_diag.report.terminal import headline
from tracker_diag.runs.page import on_screen, run_page


def calm(rows, start=0):
    """A run of TRL without any fault."""
    return [
        {
            "step": step, "reward": 0.5 + 0.001 * step + 0.01 * math.sin(7.3 * step), "reward_std": 0.3,
            "kl": 0.02 + 0.001 * math.cos(3.1 * step), "loss": 0.01 * math.sin(1.7 * step), "grad_norm": 0.5,
            "completions/mean_length": 200 + 5 * math.sin(2.9 * step),
        }
        for step in range(start, start + rows)
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 5])
def test_a_few_rows_are_too_short_to_judge_wherever_it_is_said(rows):
    results = diagnose(calm(rows))
    summary = results.summary
    assert not summary.judged
    assert results.to_json()["judged"] is False
    assert results.to_json()["waiting"][0]["more"] >= 1
    screen, page, note, shown = (
        plain(on_screen(results)),
        run_page(results),
        note_on(summary, ""),
        results._repr_html_(),
    )
    for text in (screen, page, note, shown, str(results), headline(summary)):
        assert re.search("too short to judge", text, re.IGNORECASE)
        assert "no rule fired" not in text.lower()
    assert f"too short to judge: {rows} row{'s' * (rows > 1)}; these rules need more" in screen
    assert 1 <= len(re.findall(r"\d more rows: [A-Z]{3}\d{3}", screen)) <= 5
    one_line = headline(summary)
    assert re.fullmatch(r"too short to judge: \d rows?; these rules need \d+ more rows: [A-Z]{3}\d{3}.*", one_line)


def test_a_run_that_is_long_enough_is_judged():
    results = diagnose(calm(60))
    assert results.summary.judged
    assert results.to_json()["judged"] is True
    assert "no rule fired at warn or above" in plain(on_screen(results))


def test_what_fires_on_few_rows_is_shown_and_the_rest_is_too_short():
    rows = calm(4)
    for row in rows[2:]:
        row["grad_norm"] = row["loss"] = math.nan
    results = diagnose(rows)
    assert results.summary.first_break.rule.id == "NUM004"
    assert results.to_json()["judged"] is False
    screen = plain(on_screen(results))
    assert "broke first  NaN or infinity" in screen
    assert "for the rest too short to judge: 4 rows" in screen
    assert "too short to judge" in run_page(results)


def test_exit_codes_do_not_depend_on_it(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in calm(3)))
    result = CliRunner().invoke(app, ["diagnose", str(file), "--fail-on", "warn"])
    assert result.exit_code == 0
    assert "too short to judge" in result.stdout


def test_phases_are_said_before_the_verdict(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = [row | {"step": at % 20 + 1} for at, row in enumerate(calm(80))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = diagnose(file)
    assert results.summary.steps == 80
    assert (results.summary.first_step, results.summary.last_step) == (1, 80)
    screen = plain(on_screen(results))
    assert screen.index("4 phases, all rows are kept") < screen.index("no rule fired")
    assert "rows 61 to 80 (steps 1 to 20, shown as 61 to 80)" in " ".join(screen.split())
    assert results.to_json()["caveats"][0].startswith("the step counter begins again: 4 phases")
    page = run_page(results)
    assert page.index("4 phases, all rows are kept") < page.index("<h1 ")
    assert "4 phases" in note_on(results.summary, "")


def test_a_finding_in_an_early_phase_is_not_lost():
    rows = [row | {"step": at % 40} for at, row in enumerate(calm(80))]
    rows[25]["grad_norm"] = math.inf
    assert [finding.rule.id for finding in diagnose(rows).summary.findings if finding.onset == 25] == ["NUM004"]


def test_a_loss_of_0_is_cosmetic_where_its_gradient_is_not_0():
    rows = [row | {"loss": 0.0} for row in calm(60)]
    results = diagnose(rows, framework="TRL")
    assert results.summary.first_break is None
    assert "the loss is exactly 0 in 60 of 60 rows" in results.summary.log[0]
    assert diagnose([row | {"grad_norm": 0.0} for row in rows]).summary.log == ()
    assert diagnose([{"step": row["step"], "loss": 0.0, "grad_norm": 1.0} for row in rows]).summary.log == ()


def test_constant_series_and_irregular_evaluations_say_nothing_of_the_log():
    rows = [row | {"reward": 0.5, "kl": 0.02} for row in calm(60)]
    for step in (3, 4, 17, 30, 58):
        rows[step]["eval_score"] = 0.5
    assert diagnose(rows).summary.log == ()
