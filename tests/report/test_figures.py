import numpy as np

from tracker_diag.records import Histogram
from tracker_diag.report.figures import COLORS, data_uri, pixels, tail_figure


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


def test_a_picture_is_pixels_or_an_address_that_holds_them():
    figure = tail_figure([histogram("post_tool", [1, 1, 1], [0, 0, 0])], "x")
    image = pixels(figure)
    assert image.shape == (700, 700, 3)
    assert image.dtype == np.uint8
    assert len(np.unique(image)) > 10
    assert data_uri(figure).startswith("data:image/png;base64,iVBOR")


def test_no_tokens_are_an_empty_picture():
    assert len(tail_figure([histogram("post_tool", [0, 0, 0], [0, 0, 0])], "x").axes[0].lines) == 1
