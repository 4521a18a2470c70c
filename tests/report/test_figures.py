import math
from dataclasses import replace

import numpy as np
import pytest

from tracker_diag.records import Histogram
from tracker_diag.report.figures import (
    COLORS,
    pixels,
    png,
    tail_figure,
    timeline_figure,
)
from tracker_diag.report.picture import MOST_LANES, MOST_PANELS
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}


def histogram(name, counts, baseline):
    return Histogram(
        f"diag/policy/{name}/hist", "policy", name, np.array(counts), np.array([0, 0.01, 0.1, 1.0]), np.array(baseline)
    )


def test_a_line_per_slice_at_the_share_beyond_each_edge_and_its_baseline_dashed():
    shown = [histogram("text_only", [50, 40, 10], [0, 0, 0]), histogram("post_tool", [10, 40, 50], [90, 10, 0])]
    figure = tail_figure(shown, "policy pair")
    text, then, now = figure.axes[0].lines[:3]
    np.testing.assert_allclose(text.get_ydata()[:2], [0.5, 0.1])
    np.testing.assert_allclose(now.get_ydata()[:2], [0.9, 0.5])
    np.testing.assert_allclose(then.get_ydata()[:1], [0.1])
    assert (text.get_color(), now.get_color()) == (COLORS["text_only"], COLORS["post_tool"])
    assert (then.get_linestyle(), now.get_linestyle()) == ("--", "-")
    labels = [label.get_text() for label in figure.axes[0].get_legend().get_texts()]
    assert labels == ["text_only, now (100 tokens)", "post_tool, baseline (100 tokens)", "post_tool, now (100 tokens)"]


@pytest.mark.slow
def test_a_picture_is_pixels():
    figure = tail_figure([histogram("post_tool", [1, 1, 1], [0, 0, 0])], "x")
    image = pixels(figure)
    assert image.shape == (700, 700, 3)
    assert image.dtype == np.uint8
    assert len(np.unique(image)) > 10


def test_no_tokens_are_an_empty_picture():
    assert len(tail_figure([histogram("post_tool", [0, 0, 0], [0, 0, 0])], "x").axes[0].lines) == 1


def finding(rule, onset, fired, *, resolved=None, slice="all", summary="what"):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], None, slice, state, onset, fired, resolved, summary, ())


def summary(*findings, last=100, **given):
    return Summary("x", last + 1, 0, last, findings, {}, (), **given)


def texts(figure):
    return [text.get_text() for text in figure.texts] + [text.get_text() for axes in figure.axes for text in axes.texts]


def bars(axes):
    """Left end and width of each."""
    boxes = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    return [(box.x0, box.width) for box in boxes]


@pytest.mark.slow
def test_the_time_line_has_a_lane_for_each_finding_and_an_axis_for_each_curve():
    damage = finding("OUT001", 70, 70)
    curves = {
        "reward": {step: math.sin(step) for step in range(101)},
        "policy/post_tool/p95": {0: 0.5, 100: 3.0},
        "policy/text_only/p95": {0: 0.5, 100: 0.6},
    }
    of = summary(finding("POL001", 40, 60, resolved=80, slice="post_tool", summary="p95 is up"), damage, curves=curves)
    figure = timeline_figure(of)
    lanes, _, tails = figure.axes
    assert bars(lanes) == [(40, 20), (60, 20), (70, 0), (70, 30)]
    assert texts(figure)[:2] == [
        "Token probabilities diverge after tool calls, on post_tool, from step 40",
        "At step 60: p95 is up",
    ]
    assert {"POL001 post_tool", "OUT001, damage", "reward", "policy p95"} <= {*texts(figure)}
    assert [line.get_label() for line in tails.lines[:2]] == ["text_only", "post_tool"]
    np.testing.assert_array_equal(tails.lines[1].get_xydata(), [(0, 0.5), (100, 3.0)])
    for axes in figure.axes:
        marks = {line.get_xdata()[0] for line in axes.lines if len({*line.get_xdata()}) == 1}
        assert marks == {40, 70}
        assert axes.get_xlim() == (0, 100)
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("found", [(), (finding("NUM009", 3, 4),)], ids=["nothing", "info alone"])
def test_where_nothing_is_to_be_pointed_at_there_is_no_time_line(found):
    assert timeline_figure(summary(*found)) is None


@pytest.mark.slow
def test_two_hundred_findings_with_odd_names_make_a_picture_of_bounded_size():
    odd = "$\\frac{1}{$ <script> \x1b[31m 🤖 مكافأة " * 9
    many = [finding(rule, at, at + 1, summary=odd) for at, rule in enumerate(RULES)]
    curves = {f"{odd}{i}": {0: 1.0, 50: math.nan, 100: 1e9} for i in range(20)}
    figure = timeline_figure(summary(*many, curves=curves))
    assert len(figure.axes) == 1 + MOST_PANELS
    assert len(figure.axes[0].texts) == 2 * MOST_LANES
    assert pixels(figure).shape[1] == 760
    assert pixels(figure).shape[0] < 1200


def test_a_long_sentence_has_two_lines_and_each_line_through_the_picture_its_step_where_there_is_room():
    damage = [finding("OUT001", 41_000, 42_000), finding("OUT003", 99_900, 100_000)]
    said = "p95 of the tail is far beyond its baseline after each call of the tool; " * 4
    figure = timeline_figure(summary(finding("POL001", 40_000, 60_000, summary=said), *damage, last=100_000))
    first, second = texts(figure)[1].split("\n")
    assert first.startswith("At step 60000: p95 of the tail")
    assert second.endswith("…")
    drawn = figure.canvas.get_renderer()
    for text in figure.texts:
        box = text.get_window_extent(drawn)
        assert 0 <= box.x0 <= box.x1 <= 760
    assert [text.get_text() for text in figure.texts if text.get_text()[0].isdigit()] == ["40,000", "99,900"]


def test_a_run_of_one_step_has_a_time_line():
    figure = timeline_figure(summary(finding("NUM004", 0, 0), last=0, curves={"loss": {0: 1.0}}))
    assert pixels(figure).size


def test_a_baseline_is_a_dotted_line():
    reading = Reading("tail", "p95", True, 3.0, 0.5, keys=("policy/post_tool/p95",))
    broke = replace(finding("POL001", 40, 60, slice="post_tool"), evidence=(reading,))
    curve = {"policy/post_tool/p95": {0: 0.5, 100: 3.0}}
    _, tail = timeline_figure(summary(broke, curves=curve)).axes
    (dotted,) = [line for line in tail.lines if line.get_linestyle() == ":"]
    np.testing.assert_array_equal(dotted.get_ydata(), [0.5, 0.5])
