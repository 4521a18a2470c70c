import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tracker_diag.report.timeline import (
    DONE,
    FIRING,
    LABEL,
    MOST_LANES,
    PENDING,
    QUIET,
    STYLE,
    WIDTH,
    curve,
    lane,
    timeline,
)  # fmt: skip
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.loader import catalog

RULES = {rule.id: rule for rule in catalog()}


def finding(rule="POL001", onset=40, fired=60, resolved=None, slice="post_tool"):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], "policy", slice, state, onset, fired, resolved, "what", ())


def shown(incidents, first=0, last=71, curves=(), events=()):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(timeline(incidents, first, last, curves, events))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_lane_is_pending_then_firing_and_quiet_elsewhere():
    assert lane([finding()], 0, 71) == QUIET * 20 + PENDING * 10 + FIRING * 6
    assert lane([finding(resolved=64)], 0, 71) == QUIET * 20 + PENDING * 10 + FIRING * 3 + QUIET * 3
    again = finding(onset=60, fired=66)
    assert lane([finding(onset=8, fired=20, resolved=30), again], 0, 71) == (
        QUIET * 4 + PENDING * 6 + FIRING * 6 + QUIET * 14 + PENDING * 3 + FIRING * 3
    )


def test_a_finding_has_the_color_of_a_note_until_it_is_raised():
    table = timeline([Incident(finding().moved(raised=70))], 0, 71)
    (lane_,) = [cell for cell in table.columns[1].cells if isinstance(cell, Text) and FIRING in cell.plain]
    ((start, end, style),) = lane_.spans
    assert (lane_.plain[start:end], style) == (PENDING * 10 + FIRING * 5, STYLE["info"])


def test_events_have_a_line_of_marks_and_findings_one_line_less():
    lines = shown([Incident(finding())], events=[(0, "new baseline"), (60, "guard"), (61, "guard"), (71, "guard")])
    (marks,) = [line for line in lines if line.startswith("events")]
    assert [at for at, mark in enumerate(marks[LABEL + 2 :]) if mark == DONE] == [0, 30, 35]
    many = [Incident(finding(rule, onset=40 + i)) for i, rule in enumerate(sorted(RULES)[:9])]
    assert len(shown(many)) == len(shown(many, events=[(3, "guard")]))
    assert not any(line.startswith("events") for line in shown(many))


def test_a_curve_has_a_bar_for_each_part_of_the_axis_and_holds_its_value_between_rows():
    rising = {step: float(step) for step in range(72)}
    assert curve(rising, 0, 71) == "".join("▁▂▃▄▅▆▇█"[round(at / 35 * 7)] for at in range(36))
    assert curve({0: 0.0, 36: 1.0}, 0, 71) == "▁" * 18 + "█" * 18
    assert curve({36: 1.0, 50: float("nan")}, 0, 71) == " " * 18 + "▁" * 18
    assert curve({}, 0, 71) == curve({3: float("inf")}, 0, 71) == ""


def test_one_peak_hides_nothing_of_the_rest_on_a_log_scale():
    norms = {step: 0.1 if step < 36 else 0.8 for step in range(72)} | {66: 500.0}
    drawn = curve(norms, 0, 71, log=True)
    assert drawn[0] == "▁"
    assert drawn[24] > drawn[10]
    assert drawn[33] == "█"
    assert curve({step: -value for step, value in norms.items()}, 0, 71, log=True)[24] == "█"  # no logarithm


@given(
    first=st.integers(-5, 10_000),
    length=st.integers(0, 100_000),
    at=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
)
def test_every_run_fits_the_axis(first, length, at, values):
    last = first + length
    onset, fired, resolved = sorted(first + round(part * length) for part in at)
    drawn = lane([finding(onset=onset, fired=fired, resolved=resolved)], first, last)
    assert len(drawn) == WIDTH
    assert FIRING in drawn
    line = curve({first + index: value for index, value in enumerate(values)}, first, last)
    assert len(line) in (0, WIDTH)


def test_the_cause_is_on_top_the_damage_next_and_what_else_began_last():
    symptoms = (finding("POL003", 50, 66), finding("NUM001", 60, 70, slice="all"))
    whole = Incident(finding(), symptoms, (finding("OUT001", 70, 80, slice="all"),))
    head, *rest = shown([whole, Incident(finding("RES001", 10, 20, slice="all"))])
    assert head.split() == ["step", "(░", "onset,", "█", "detected)", "0", "71"]
    names = [line.partition(" ·")[0].strip() for line in rest]
    assert names[0].startswith("POL001 Token probabilities shift after")
    assert names[1:] == [
        "OUT001 Reward has lost what it had gained",
        "POL003 Token probabilities shift everywhe…",
        "NUM001 Gradient norm explodes",
        "RES001 Throughput has dropped",
    ]
    assert all(len(name) <= LABEL for name in names)


def test_damage_is_red_whatever_its_severity():
    names, _ = timeline([Incident(finding(), (), (finding("OUT001", 50, 60),))], 0, 71).columns
    styles = {name.plain[:8]: name.style for name in names.cells if isinstance(name, Text)}
    assert styles["OUT001 R"] == STYLE["error"] != styles["POL001 T"]


def test_the_slice_is_reported_where_the_title_does_not_say_it():
    two = [finding("POL004"), finding("POL004", 50, slice="text_only"), finding("ENV001", 50, slice="tool:search")]
    lines = shown([Incident(item) for item in two])
    messages = [line.split()[:2] for line in lines[1:]]
    assert messages == [["POL004", "post_tool"], ["POL004", "text_only"], ["ENV001", "tool:search"]]


@pytest.mark.parametrize("symptoms", [0, 3, 9])
@pytest.mark.parametrize("others", [0, 6])
def test_there_are_never_more_lines_than_a_screen_has_room_for(symptoms, others):
    names = [rule for rule in RULES if rule not in ("POL001", "OUT001")]
    whole = Incident(finding(), tuple(finding(rule, 50) for rule in names[:symptoms]), (finding("OUT001", 70),))
    lines = shown([whole, *(Incident(finding(rule, 10)) for rule in names[20 : 20 + others])])
    left_out = max(symptoms + others + 2 - MOST_LANES, 0)
    assert len(lines) == 1 + min(symptoms + others + 2, MOST_LANES) + (left_out > 0)
    assert (f"and {left_out} more" in lines[-1]) == (left_out > 0)
    assert lines[1].startswith("POL001")
    assert lines[2].startswith("OUT001")


def test_the_same_rule_on_the_same_slice_has_one_line():
    lines = shown([Incident(finding(resolved=62)), Incident(finding(onset=64, fired=66))])
    assert len(lines) == 2


def test_curves_come_below_by_name():
    lines = shown([Incident(finding())], curves=[("reward 0 to 95", {step: float(step) for step in range(72)}, False)])
    assert lines[-1].split()[0] == "reward"
    assert lines[-1].endswith("█")
