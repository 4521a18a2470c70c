import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tracker_diag.records import Histogram
from tracker_diag.report.figures import COLORS, decision_figure, pixels, tail_figure
from tracker_diag.report.picture import drawn, picture, png_of
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}

pytestmark = pytest.mark.slow


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


def test_the_decision_is_above_the_hero_and_both_slices_have_their_colours():
    curves = {
        "reward": {step: math.sin(step) for step in range(101)},
        "policy/post_tool/p95": {0: 0.5, 100: 3.0},
        "policy/text_only/p95": {0: 0.5, 100: 0.6},
    }
    reading = Reading("tail", "p95", True, 3.0, 0.5, keys=("policy/post_tool/p95",))
    broke = replace(finding("POL001", 40, 60, slice="post_tool"), evidence=(reading,))
    figure = decision_figure(summary(broke, finding("OUT001", 70, 70), curves=curves))
    (hero,) = figure.axes
    title = texts(figure)[0].replace("\n", " ")
    start = "Stop. Token probabilities shift after tool results since about step 40"
    assert title == f"{start}, 6× the usual level at step 100"
    assert texts(figure)[1].startswith("Do first: Find the tokens")
    assert hero.get_yscale() == "log"
    text, post = hero.lines[:2]
    assert (text.get_color(), post.get_color()) == (COLORS["text_only"], COLORS["post_tool"])
    np.testing.assert_array_equal(post.get_xydata(), [(0, 0.5), (100, 3.0)])
    assert {line.get_xdata()[0] for line in hero.lines if len({*line.get_xdata()}) == 1} == {40, 70}
    assert hero.get_xlim() == (0, 100)


@pytest.mark.parametrize("findings", [(), (finding("NUM009", 3, 4),)], ids=["nothing", "info alone"])
def test_where_nothing_is_to_be_pointed_at_there_is_no_picture(findings):
    assert picture(summary(*findings)) is None


@pytest.mark.nightly
def test_threads_that_draw_at_a_time_each_get_their_own():
    whole = summary(finding("NUM004", 30, 40), curves={"loss": {0: 1.0, 100: 2.0}})
    with ThreadPoolExecutor(4) as pool:
        images = [*pool.map(drawn, [picture(whole)] * 4)]
    for image in images:
        np.testing.assert_array_equal(image, pixels(decision_figure(whole)))
    assert png_of(images[0]).startswith(b"\x89PNG")


def test_two_hundred_findings_with_odd_names_make_a_picture_of_bounded_size():
    odd = "$\\frac{1}{$ <script> \x1b[31m 🤖 مكافأة " * 9
    many = [finding(rule, at, at + 1, summary=odd) for at, rule in enumerate(RULES)]
    curves = {f"{odd}{i}": {0: 1.0, 50: math.nan, 100: 1e9} for i in range(20)}
    figure = decision_figure(summary(*many, curves=curves))
    assert len(figure.axes) == 1
    assert pixels(figure).shape == (420, 760, 3)


def test_a_run_of_one_step_has_a_picture():
    figure = decision_figure(summary(finding("NUM004", 0, 0), last=0, curves={"loss": {0: 1.0}}))
    assert pixels(figure).size
