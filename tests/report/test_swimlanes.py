import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.report.curves import Panel
from tracker_diag.report.swimlanes import MOST_EVENTS, MOST_LANES, POINTS, Bar, swimlanes
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.loader import catalog

RULES = {rule.id: rule for rule in catalog()}


def finding(rule="POL001", onset=40, fired=60, resolved=None, slice="post_tool"):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], "policy", slice, state, onset, fired, resolved, "what", ())


def test_bars_lie_where_the_steps_are():
    whole = Incident(finding(resolved=80), damage=(finding("OUT001", 70, 70, slice="all"),))
    drawn = swimlanes([whole], 0, 100, [])
    cause, damage = drawn.lanes
    assert cause.bars == [Bar(40, 20, "pending"), Bar(60, 20, "firing")]
    assert damage.bars == [Bar(70, 30, "firing")]  # told at its onset
    assert (cause.role, cause.name, cause.severity) == ("cause", "POL001 post_tool", "warn")
    assert cause.says == "onset at step 40, detected at step 60, not detected any more at step 80"
    assert (damage.name, damage.says) == ("OUT001", "onset at step 70, detected at step 70, still there at the end")
    assert drawn.marks == [(40, 40), (70, 70)]
    assert drawn.ticks == [(0, 0), (25, 25), (50, 50), (75, 75), (100, 100)]


def test_events_lie_where_the_steps_are_and_the_last_ones_are_drawn():
    events = [(step, f"guard {step}") for step in range(300)]
    drawn = swimlanes([], 0, 400, [], events).events
    assert drawn[-1] == (74.75, 299, "guard 299")
    assert len(drawn) == MOST_EVENTS


def test_a_second_finding_of_a_rule_is_on_the_line_of_the_first():
    drawn = swimlanes([Incident(finding(resolved=70)), Incident(finding(onset=80, fired=90))], 0, 100, [])
    (lane,) = drawn.lanes
    assert [bar.left for bar in lane.bars] == [40, 60, 80, 90]
    assert lane.says.count("onset at step") == 2
    assert drawn.marks == [(40, 40)]


def test_two_hundred_incidents_leave_room_for_the_rest_of_the_page():
    many = [Incident(finding(rule, onset=at)) for at, rule in enumerate(RULES)]
    drawn = swimlanes(many, 0, 100, [])
    assert len(drawn.lanes) == MOST_LANES
    assert drawn.left_out == len(RULES) - MOST_LANES


def panel(name, points):
    return Panel(name, {"": points})


def places(path):
    return [tuple(map(float, part[1:].split())) for part in path.replace(" L", "|L").split("|")]


def test_a_curve_is_the_path_of_its_values():
    given = [panel("reward", {0: 1.0, 50: 3.0, 100: 2.0}), panel("kl", {}), panel("nan", {3: math.nan})]
    drawn = swimlanes([], 0, 100, given)
    (curve,) = drawn.curves
    assert (curve.name, curve.low, curve.high, curve.log) == ("reward", 1.0, 3.0, False)
    (line,) = curve.lines
    assert (line.of, line.last) == ("", 2.0)
    points = places(line.path)
    assert points[0] == (0, 96)
    assert points[1] == pytest.approx((500, 4), abs=2)
    assert points[2] == (1000, 50)
    assert drawn.lanes == drawn.marks == []


def test_both_slices_and_the_baseline_are_over_one_scale():
    of = Panel("policy p95", {"text_only": {0: 1.0, 100: 1.0}, "post_tool": {0: 2.0, 100: 5.0}}, baseline=3.0)
    (curve,) = swimlanes([], 0, 100, [of]).curves
    assert [(line.of, line.last) for line in curve.lines] == [("text_only", 1.0), ("post_tool", 5.0), ("baseline", 3.0)]
    assert [places(line.path) for line in curve.lines] == [
        [(0, 96), (1000, 96)],
        [(0, 73), (1000, 4)],
        [(0, 50), (1000, 50)],
    ]
    assert (curve.low, curve.high) == (1.0, 5.0)


@pytest.mark.slow
def test_a_hundred_thousand_steps_make_no_longer_path_than_the_page_can_show():
    (curve,) = swimlanes([], 0, 99_999, [panel("reward", {step: math.sin(step) for step in range(100_000)})]).curves
    assert curve.lines[0].path.count("L") == POINTS - 1


@pytest.mark.slow
@given(
    first=st.integers(-5, 10_000),
    length=st.integers(0, 100_000),
    at=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
)
def test_every_run_fits_the_axis(first, length, at, values):
    last = first + length
    onset, fired, resolved = sorted(first + round(part * length) for part in at)
    points = {first + index: value for index, value in enumerate(values)}
    incident = Incident(finding(onset=onset, fired=fired, resolved=resolved))
    drawn = swimlanes([incident], first, last, [panel("reward", points)])
    for bar in drawn.lanes[0].bars:
        assert 0 <= bar.left <= bar.left + bar.width <= 100 + 1e-9
    for curve in drawn.curves:
        assert "nan" not in curve.lines[0].path
        assert "inf" not in curve.lines[0].path
