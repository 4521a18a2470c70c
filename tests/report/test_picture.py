"""The picture of a run as plain values, and the drawing of it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tracker_diag.report.picture import drawn, picture, png_of
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}


def finding(rule, onset, fired, resolved=None, slice="all"):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], None, slice, state, onset, fired, resolved, "what", ())


CURVES = {"reward": {0: 0.5, 100: 0.1}, "policy/post_tool/p95": {0: 1.0, 50: 2.0}, "policy/text_only/p95": {0: 1.0}}
TAIL = Reading("tail", "p95", True, 3.0, 0.5, keys=("policy/post_tool/p95",))
FOUND = (replace(finding("POL001", 40, 60, 80, "post_tool"), evidence=(TAIL,)), finding("OUT001", 70, 75))
SUMMARY = Summary("x", 101, 0, 100, FOUND, {}, (), curves=CURVES)


def test_it_has_the_decision_the_tiles_the_marks_and_the_hero_first():
    shown = picture(replace(SUMMARY, events=((30, "a new baseline"),)))
    assert (
        shown.title
        == "Stop. Token probabilities diverge after tool calls, 4× the usual level, from about step 40 to 80"
    )
    assert shown.about.splitlines()[1].startswith("harmed: since step 70: what")
    assert shown.marks == [(40, "began"), (60, "alert"), (70, "damage"), (80, "over")]
    assert shown.events == [30]
    assert shown.panels[0].name == "policy p95"


def test_where_nothing_is_to_be_pointed_at_there_is_none():
    assert picture(Summary("x", 0, None, None, (), {}, ())) is None


@pytest.mark.nightly
def test_threads_that_draw_at_a_time_each_get_their_own():
    from tracker_diag.report.figures import pixels, timeline_figure

    given = picture(SUMMARY).drawing()
    with ThreadPoolExecutor(4) as pool:
        images = [*pool.map(drawn, [given] * 4)]
    for image in images:
        np.testing.assert_array_equal(image, pixels(timeline_figure(SUMMARY)))
    assert png_of(images[0]).startswith(b"\x89PNG")
