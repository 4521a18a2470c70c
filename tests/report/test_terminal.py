import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tracker_diag.records import Scalar
from tracker_diag.report.html import render_html
from tracker_diag.report.tables import findings_table
from tracker_diag.report.terminal import alert, blindness, headline, verdict
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.logged import LiveFinding
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import diagnose


def lines(thing, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(thing)
    return [line.rstrip() for line in console.export_text().splitlines()]


def shown(thing):
    return " ".join(" ".join(lines(thing)).split())


def engine():
    made = Engine(catalog())
    made.evaluate(Observed(7, {}, ("loss",)))
    return made


@pytest.fixture
def broken():
    return Summary.of_engine(engine(), "x", 8, 0, 7)


@pytest.fixture
def quiet():
    return Summary.of_engine(Engine(catalog()), "x", 0, None, None)


def test_what_never_happened_is_so_since_the_first_step():
    """Such a finding has its onset late in the run. Given as its beginning, it would contradict its own title."""
    rng = np.random.default_rng(3)
    diagnosis = diagnose([{"step": step, "reward": 0.3 + 0.05 * rng.normal()} for step in range(5, 405)])
    text = shown(verdict(diagnosis.summary, cost=str(diagnosis.cost(diagnosis.summary.first_break))))
    assert "broke first The reward has never risen since the first step (399 steps ago), detected at" in text
    assert headline(diagnosis.summary) == "warn: OUT003 since the first step: The reward has never risen. Stop"
    report = render_html(diagnosis.summary)
    assert "since the first step" in report
    assert not re.search(r"(since|began at)( about)? (step )?3\d\d", report)


def test_the_verdict_says_what_when_on_which_evidence_and_what_to_do(broken):
    text = shown(verdict(broken, cost="3 steps, 2 h"))
    for part in (
        "verdict after 8 steps", "broke first NaN or infinity",
        "since step 7 (3 steps, 2 h ago), detected at step 7 by rule NUM004",
        "evidence by step 7: loss is NaN or infinite (1 series at this step)",
        "do first Save the state now", "detected) 0 7",
        "NUM004 NaN or infinity ·", "active, ",
        "continue? No. NaN or infinity since step 7; fix it, then resume from step 6 or earlier ",
        "(before NUM004 began)",
        "--blind says what",
    ):  # fmt: skip
        assert part in text


@pytest.mark.slow
def test_a_cause_that_is_dated_after_its_damage_is_dated_by_that():
    """The value of a mean over the last episodes is exactly 0 long after the first that was scored so."""
    made = Engine(catalog())
    for step in range(90):
        reward = 0.7 if step < 50 else max(0.0, 0.7 - 0.1 * (step - 49)) if step < 60 else 0.0
        zeros = float(step >= 50)
        made.evaluate(Observed(step, {k: Scalar(k, v) for k, v in (("reward", reward), ("reward_zero_share", zeros))}))
    summary = Summary.of_engine(made, "x", 90, 0, 89)
    assert (summary.first_break.rule.id, summary.first_break.onset) == ("REW021", 56)
    assert "since step 50 by the damage (" in shown(verdict(summary))


@pytest.mark.parametrize(
    ("steps", "first", "last", "text"),
    [
        (0, None, None, "0 steps"),
        (1, 7, 7, "1 step"),
        (80, 1, 80, "80 steps"),
        (120, 512, 61440, "120 rows, up to step 61440"),
    ],
)
def test_rows_that_are_no_steps_are_called_rows(steps, first, last, text):
    summary = Summary.of_engine(Engine(catalog()), "x", steps, first, last)
    assert f"verdict after {text} found" in shown(verdict(summary))


def test_a_quiet_run(quiet):
    judged = replace(quiet, judged=True)
    assert "found no rule fired at warn or above" in shown(verdict(judged))
    assert headline(judged) == "ok: no rule fired at warn or above in 0 steps"


def test_a_run_without_a_step(quiet):
    assert "found too short to judge: 0 rows rules" in shown(verdict(quiet))
    assert headline(quiet) == "too short to judge: 0 rows"


def test_what_was_found_live_alone_is_no_all_clear(quiet):
    text = shown(verdict(quiet, live=[LiveFinding("NUM008", 512)]))
    assert "found live, what is said below; nothing more in what the run logged" in text
    assert "said live NUM008: fired at step 512" in text
    assert "no rule fired" not in text


def test_the_verdict_in_one_line(broken):
    assert headline(broken) == "error: NUM004 since step 7: NaN or infinity. Stop: fix it, resume from step 6"


def test_at_its_longest_the_verdict_has_25_lines(broken):
    """All that one run may say at once; each line of it as long as it may be."""
    long = "word " * 90
    (finding,) = broken.findings
    best = tuple(Reading("", name, True, 123456.0, 654321.0, at=7) for name in ("reward", "eval_score"))
    curves = {name: {step: float(step) for step in range(8)} for name in ("a" * 90, "b" * 90, "c" * 90, "d")}
    summary = replace(broken, findings=(replace(finding, summary=long),), best=best, curves=curves)
    drawn = lines(verdict(summary, cost="1,000,000 steps, 123.4 h", live=[LiveFinding(long, 3)] * 9))
    assert len(drawn) <= 25
    assert all(len(line) <= 80 for line in drawn)
    assert sum("max 7)" in line for line in drawn) == 3


def test_a_curve_is_named_by_the_end_of_its_name_and_its_smallest_and_largest_value(broken):
    curves = {"diag/mismatch/tool:search_the_web/p95": {0: 0.25, 1: math.nan, 7: 3.5}}
    (line,) = (line for line in lines(verdict(replace(broken, curves=curves))) if "p95" in line)
    assert line.startswith("…ol:search_the_web/p95 (min 0.25, max 3.5)")


def test_a_live_verdict_says_where_to_look_further(broken):
    text = shown(verdict(broken, where=["mlflow ui"], again="tracker-diag diagnose x", explains="run.diag.explain()"))
    assert "run.diag.explain() says what" in text
    assert text.endswith("see mlflow ui all of it tracker-diag diagnose x")


@pytest.mark.parametrize("decision", ["Stop: fix it, resume from step 88", ""], ids=["begun", "over"])
@pytest.mark.parametrize("see", ["", "See: mlflow ui", "See: mlflow ui --backend-store-uri " + 60 * "x"])
def test_an_alert_has_six_lines_of_80_columns_and_says_first_what_to_do(decision, see):
    text = "\n".join(f"{name} " + "some words " * 20 for name in ("Continue?", "First:", "Since", "Damage"))
    shown = alert(Notice(90, "error", "POL001 post_tool: it diverges", text, decision=decision), see).splitlines()
    head = [*filter(None, [decision]), "POL001 post_tool: it diverges"]
    assert [line.strip() for line in shown[: len(head)]] == head
    assert any(line.startswith("  First: ") for line in shown)
    assert not see or shown[-1].strip() == see
    assert sum(math.ceil(len(line) / 80) for line in shown) <= 6


def test_what_could_not_be_seen_is_grouped_by_what_would_open_most_eyes(broken):
    text = shown(blindness(broken))
    assert text.index("to see more ") < text.index("healthy")
    opened = [line for line in lines(blindness(broken), 4000) if "  log " in line or "samples(" in line]
    counts = [len(re.findall(r"[A-Z]{3}\d{3}", line)) for line in opened]
    assert counts == sorted(counts, reverse=True)
    assert all(rule in text for rule in broken.blind)
    assert all(rule in text for rule in broken.healthy)
    (of_reward,) = (line for line in opened if "samples(...) with reward  " in line)
    assert {"ENV014", "REW006"} <= {*of_reward.split("with reward  ")[1].rstrip().split(", ")}


def test_the_findings_table_has_one_type_a_column():
    table = findings_table(engine().findings)
    assert table.name == "diag/findings"
    for row in table.rows:
        assert len(row) == len(table.columns)
    assert table.rows[0][:4] == (7, 7, None, "NUM004")
