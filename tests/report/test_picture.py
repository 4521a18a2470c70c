"""The time line as plain values, and the drawing of it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tracker_diag.report.figures import pixels, timeline_figure
from tracker_diag.report.picture import drawn, picture, png_of
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}


def finding(rule, onset, fired, resolved=None, slice="all"):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], None, slice, state, onset, fired, resolved, "what", ())


CURVES = {"reward": {0: 0.5, 100: 0.1}, "policy/post_tool/p95": {0: 1.0, 50: 2.0}, "policy/text_only/p95": {0: 1.0}}
FOUND = (finding("POL001", 40, 60, 80, "post_tool"), finding("OUT001", 70, 75))
SUMMARY = Summary("x", 101, 0, 100, FOUND, {}, (), curves=CURVES)


def test_it_says_what_broke_first_and_marks_its_onset_and_that_of_the_damage():
    shown = picture(SUMMARY)
    assert shown.title == "Token probabilities diverge after tool calls, on post_tool, from step 40"
    assert shown.says == "At step 60: what"
    assert shown.marks == [40, 70]
    assert [(one.role, one.place, one.spans) for one in shown.lanes] == [
        ("cause", "POL001 post_tool", [(40, 60, 80)]),
        ("damage", "OUT001, damage", [(70, 75, 100)]),
    ]
    assert [panel.name for panel in shown.panels] == ["reward", "policy p95"]


def test_where_nothing_is_to_be_pointed_at_there_is_none():
    assert picture(Summary("x", 0, None, None, (), {}, ())) is None


@pytest.mark.nightly
def test_threads_that_draw_at_a_time_each_get_their_own():
    given = picture(SUMMARY).drawing()
    with ThreadPoolExecutor(4) as pool:
        images = [*pool.map(drawn, [given] * 4)]
    for image in images:
        np.testing.assert_array_equal(image, pixels(timeline_figure(SUMMARY)))
    assert png_of(images[0]).startswith(b"\x89PNG")
