import math
from dataclasses import replace

import pytest

from tracker_diag.records import Table
from tracker_diag.report.console import plain
from tracker_diag.report.html import render_html
from tracker_diag.report.terminal import verdict
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.runs.page import on_screen, run_page
from tracker_diag.stats.attribution import Carrier
from tracker_diag.trackers.finished import FinishedRun


@pytest.fixture
def summary():
    engine = Engine(catalog())
    engine.evaluate(Observed(0, {}, ("<script>alert(loss)</script>",)))
    return Summary.of_engine(engine, "x", 1, 0, 0)


@pytest.mark.slow
def test_events_are_listed_and_escaped(summary):
    page = render_html(replace(summary, events=((0, "guard rollback: to <b>step 3</b>"),)))
    assert "step 0: guard rollback: to &lt;b&gt;step 3&lt;/b&gt;" in page
    assert "1 event: new baselines" in page
    assert "1 event" not in render_html(summary)


def test_everything_is_escaped_and_nothing_is_loaded(summary):
    table = Table("diag/<b>", ("a", "b"), (("<i>", 0.123456), (None, 12345)))
    page = render_html(summary, [table])
    assert "<script>alert" not in page
    assert "<td><i>" not in page
    assert "0.123" in page
    assert "12,345" in page
    assert "http" not in page.replace("http-equiv", "")


def test_of_two_hundred_incidents_ten_are_listed_and_the_rest_is_folded(summary):
    (rule,) = (rule for rule in catalog() if rule.id == "POL001")
    many = [Finding(rule, "policy", f"tool:{n}", "firing", 9 * n, 9 * n, None, "x", ()) for n in range(200)]
    page = render_html(replace(summary, findings=tuple(many), together=None))
    assert "<h2>190 more</h2>" in page
    assert page.count("<details") == page.count("</details>")


@pytest.mark.slow
def test_it_says_what_broke_and_who_was_blind(summary):
    page = render_html(summary)
    assert ", since step 0</h1>" in page
    assert "<strong>POL001</strong>: policy: no tensors for policy/post_tool/p95" in page
    assert f"2 of {len(catalog())} active, " in page
    assert page.index("What to log so that more of them are") < page.index("could not see, and why")
    assert "n/a" not in page


@pytest.mark.slow
def test_the_decision_and_the_damage_are_on_top_and_the_evidence_is_folded():
    rules = {rule.id: rule for rule in catalog()}
    parts = (("POL001", "post_tool", 5, 10), ("POL004", "post_tool", 8, 12), ("OUT001", "all", 30, 40))
    result = tuple(
        Finding(rules[id], None, slice, "firing", onset, fired, None, f"{id} says this", ())
        for id, slice, onset, fired in parts
    )
    page = render_html(Summary("x", 50, 0, 49, result, {}, ()))
    top, below = page.split("</h1>", 1)
    assert top.endswith(
        '<span class="tone">Stop.</span> Token probabilities shift after tool results, since about step 5'
    )
    tiles, below = below.split('id="evidence"')
    assert "harmed" in tiles
    assert "since step 30: OUT001 says this" in tiles
    assert "visible for 44 steps" in tiles
    assert "POL001 says this" in below.split("</details>")[0]
    assert below.index("POL001 says this") < below.index("POL004 says this") < below.index("OUT001 says this")


ODD = ("<script>alert(1)</script>", "x" * 300, "\u202eمكافأة/المتوسط", "🤖 [red]|`{{ 7*7 }}", "\x1b[31m\r\n")


@pytest.mark.slow
def test_two_hundred_incidents_with_odd_names_are_a_page_of_two_megabytes_and_a_verdict_of_25_lines():
    rules = [rule for rule in catalog() if rule.severity != "info"]
    result = tuple(
        Finding(
            rules[i % len(rules)], None, f"tool:{ODD[i % 5]}{i}", "resolved", 500 * i, 500 * i + 10, 500 * i + 20,
            f"{ODD[i % 5]} says this", (),
        )
        for i in range(200)
    )  # fmt: skip
    curves = {name: {0: 0.5, 99_999: 0.1} for name in ODD}
    summary = Summary("x", 100_000, 0, 99_999, result, {}, (), curves=curves)
    assert len(summary.incidents) == 200
    page = render_html(summary)
    assert len(page.encode()) < 2_000_000
    assert page.count("<h2>Incident ") + page.count("<h2>Note:") == 200
    assert "<script>alert" not in page
    lines = plain(verdict(summary)).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
def test_a_run_without_a_reward_is_reported_by_what_it_has():
    rows = {step: {"train/kl": 0.01, "train/loss": 0.5 if step < 30 else math.nan} for step in range(40)}
    result = diagnose(FinishedRun("run", rows, {}, {}, ()))
    assert result.summary.first_break is not None
    page, text = run_page(result), plain(on_screen(result))
    assert "NaN or infinity in train/loss, since step 30</h1>" in page
    assert "no reward and no evaluation could be judged" in page
    assert "broke first  NaN or infinity" in text
    assert "reward" not in text
    assert 'data-chart aria-label="reward' not in page


@pytest.mark.slow
def test_a_quiet_run_continues_and_a_short_one_is_too_short():
    engine = Engine(catalog())
    summary = Summary.of_engine(engine, "x", 0, None, None)
    assert "Too short to judge.</span> 0 rows so far" in render_html(summary)
    page = render_html(replace(summary, judged=True))
    assert "Continue.</span> Nothing is wrong in 0 rows, as far as the rules could see</h1>" in page
    assert f"<b>0 of {len(catalog())} rules</b>could see, and found nothing" in page
    item = run_page(diagnose(FinishedRun("run", {7: {"reward": 0.5, "loss": 0.25}}, {}, {}, ())))
    assert "run</bdi> · 1 logged step</p>" in item
    assert "At step 7: reward <strong>0.5</strong>, loss <strong>0.25</strong>." in item
    assert "data-chart " not in item


def test_cells_that_carry_it_are_bars_of_shares():
    rule = next(rule for rule in catalog() if rule.id == "POL001")
    carriers = (Carrier("tool:<b>", 0.71, 0.18, 0.5), Carrier("turn:1", 0.9, 0.4, 0.5))
    finding = Finding(rule, "policy", "post_tool", "firing", 5, 9, None, "what", (), carried_by=carriers)
    page = render_html(Summary("x", 50, 0, 49, (finding,), {}, ()))
    assert "tool:&lt;b&gt; <small>71 % of the growth, 18 % of the tokens" in page
    assert page.count("Which cells carry it") == 1
    assert '<i style="width:71.0%' in page


def test_slices_stand_in_the_order_of_their_growth():
    columns = ("pair", "slice", "p95", "p95 baseline")
    rows = (("policy", "calm", 0.1, 0.1), ("policy", "new", 5.0, None), ("policy", "ill", 0.4, 0.1))
    page = render_html(Summary("x", 0, None, None, (), {}, ()), [Table("diag/slices", columns, rows)])
    places = [page.index(f"<td>{name}</td>") for name in ("ill", "calm", "new")]
    assert places == sorted(places)
