"""The worst sequences in a real browser: they fit every screen, can be read, and run nothing that a tool has said."""

import numpy as np
import pytest

from tracker_diag.records import WorstSequence
from tracker_diag.report.html import render_html
from tracker_diag.rules.triage import Summary

pytestmark = pytest.mark.nightly

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
            for box in (item.bounding_box() for item in page.locator(shown).all()):
                assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    assert not dialogs
    assert [url for url in asked if not url.startswith("file:")] == []
