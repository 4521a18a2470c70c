"""The worst sequences in a real browser: they fit every screen, can be read, and run nothing that a tool has said."""

import re

import numpy as np
import pytest

from tracker_diag.records import WorstSequence
from tracker_diag.report.html import render_html
from tracker_diag.rules.triage import Summary

pytestmark = pytest.mark.slow

SAID = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\u202eright to left", "مرحبا", "x" * 300,
    "\x00\x1b[2J", "🤖", " a", " word", "\n",
)  # fmt: skip


def sequence(rng, number, moment="worst", texts=True):
    """One of 512 tokens with a tool result, whose log-ratios are of every size after it."""
    n = 512
    tool_output = (np.arange(n) >= 150) & (np.arange(n) < 300)
    sampled = ~tool_output & (np.arange(n) >= 20)
    r = np.where(sampled, 0.03, 0) * rng.standard_t(3, n) * np.where(np.arange(n) > 300, 10, 1)
    at = int(np.argmax(np.abs(r)))
    return WorstSequence(
        pair="policy", slice="post_tool", onset=80, moment=moment, step=112, batch=0, sequence=number, tool=SAID[0],
        length=131_072, first=90_000, position=90_000 + at, limit=0.1, share=0.2, logprobs=np.stack([r, 0 * r]),
        sampled=sampled, tool_output=tool_output, in_slice=sampled & (np.arange(n) >= 300),
        texts=tuple(SAID[i % len(SAID)] for i in range(n)) if texts else None,
    )  # fmt: skip


@pytest.fixture(params=[True, False], ids=["texts", "bars"])
def report(request, tmp_path):
    rng = np.random.default_rng(0)
    moments = ["worst"] * 8 + ["first"] * 2
    worst = tuple(sequence(rng, i, moment, request.param) for i, moment in enumerate(moments))
    file = tmp_path / "page.html"
    file.write_text(render_html(Summary("x", 120, 0, 119, (), {}, (), worst=worst), []), encoding="utf-8")
    return file


@pytest.mark.nightly
def test_it_fits_every_screen_runs_nothing_and_loads_nothing(report, page):
    asked, dialogs = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(report.as_uri())
        page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".strip").count() == 10
        for shown in (".strip", ".strip i", ".said"):
            for box in (one.bounding_box() for one in page.locator(shown).all()):
                assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    assert not dialogs
    assert [url for url in asked if not url.startswith("file:")] == []


@pytest.mark.nightly
def test_the_mark_stands_over_the_largest_and_the_box_over_what_the_tool_said(report, page):
    page.goto(report.as_uri())
    strip = page.locator(".strip").first
    box, mark, tool = (one.bounding_box() for one in (strip, strip.locator("b"), strip.locator("i")))
    first, last = 90_020, 90_511
    position = int(re.search(r"the largest at (\d+)", strip.get_attribute("aria-label"))[1])
    middle = (mark["x"] + mark["width"] / 2 - box["x"]) / box["width"]
    assert middle == pytest.approx((position - first + 0.5) / (last - first + 1), abs=0.002)
    assert (tool["x"] - box["x"]) / box["width"] == pytest.approx(130 / 492, abs=0.002)
    assert tool["width"] / box["width"] == pytest.approx(150 / 492, abs=0.002)


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", [True], indirect=True)
def test_every_strength_can_be_read_on_its_ground(report, page, scheme):
    """A contrast of 4.5 at least, as WCAG 2.2 asks for in 1.4.3."""
    page.emulate_media(color_scheme=scheme)
    page.goto(report.as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    seen = {}
    for style in (f"{sign}{i}" for sign in "mp" for i in (1, 2, 3, 4)):
        token = page.locator(f".said .{style}").first
        colors = token.evaluate("one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]")
        light, dark = sorted((luminance(color) for color in colors), reverse=True)
        seen[style] = (light + 0.05) / (dark + 0.05)
    assert len(seen) == 8
    assert {style: contrast for style, contrast in seen.items() if contrast < 4.5} == {}


def luminance(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
