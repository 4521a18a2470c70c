import io

from rich.console import Console

from tracker_diag.metrics.reasons import no_series
from tracker_diag.report.tables import describe, findings_table
from tracker_diag.report.terminal import verdict
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary


def shown(thing):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(thing)
    return " ".join(console.export_text().split())


def engine():
    found = Engine(catalog())
    found.evaluate(Observed(7, {}, ("loss",)))
    return found


def test_the_verdict_says_what_when_on_which_evidence_and_what_to_do():
    text = shown(verdict(Summary.of(engine(), "x", 8, 0, 7)))
    for part in (
        "verdict after 8 steps", "broke first NaN or infinity", "NUM004 non-finite-metric (numerics)",
        "onset at step 7, fired at step 7", "non_finite: yes (n 1)", "1. Save the state now", "blind ", "POL001",
    ):  # fmt: skip
        assert part in text


def test_a_quiet_run():
    assert "No rule fired at warn or above." in shown(verdict(Summary.of(Engine(catalog()), "x", 0, None, None)))


def test_readings_in_one_line():
    assert describe(Reading("tail", "x", True, 0.3123, 0.04, 812)) == "tail: yes (0.312, baseline 0.04, n 812)"
    assert describe(Reading("tail", "x", False, 0.3)) == "tail: no (0.3)"
    assert describe(Reading("tail", "x", None, unknown=no_series("x"))) == "tail: unknown (no series x)"
    assert describe(Reading("tail", "x", False)) == "tail: no"


def test_the_findings_table_has_one_type_a_column():
    table = findings_table(engine().findings)
    assert table.name == "diag/findings"
    for row in table.rows:
        assert len(row) == len(table.columns)
    assert table.rows[0][:4] == (7, 7, None, "NUM004")
