"""The report in a real browser: it fits every screen, whatever stands in it, and can be read by everybody."""

import math
from itertools import pairwise

import pytest

from tracker_diag import Monitor
from tracker_diag.report.html import render_html
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.runs.page import run_page
from tracker_diag.trackers.finished import FinishedRun

pytestmark = pytest.mark.slow

ODD = ("<script>alert(1)</script>", "x" * 300, "مكافأة/المتوسط", "🤖/loss", "a loss " * 40)


def run_of(many):
    """100,000 steps in `many` rows, whose reward collapses, with metrics of odd names that are NaN at last."""
    rows = {}
    for step in range(0, 100_000, 100_000 // many):
        reward = step / 5e4 if step < 50_000 else max(1 - (step - 50_000) / 1e4, 0.0)
        rows[step] = {"reward": reward + 0.05 * math.sin(step), "kl": 0.01, "entropy": 1.0}
        if step > 99_000:
            rows[step] |= dict.fromkeys(ODD, math.nan)
    return diagnose(FinishedRun("run", rows, {}, {}, ()))


@pytest.fixture(scope="module")
def long_run():
    return run_of(20_000)


def test_a_long_run_with_odd_names_fits_every_screen_and_loads_nothing(long_run, page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(run_page(long_run), encoding="utf-8")
    assert file.stat().st_size < 2_000_000
    assert file.stat().st_size < 1.05 * len(run_page(run_of(4_000)).encode())  # whatever the number of rows
    asked, dialogs = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        lanes = page.locator(".row .bar[title]")
        assert lanes.count() >= 2
        for index in range(lanes.count()):
            box = lanes.nth(index).bounding_box()
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    assert not dialogs
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_it_can_be_read_without_seeing_it(long_run, page, tmp_path):
    """A language, a title, one main part, headings in order, names for what is drawn, and folds for the keyboard."""
    file = tmp_path / "page.html"
    file.write_text(run_page(long_run), encoding="utf-8")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title().startswith(long_run.summary.first_break.rule.title)
    assert page.get_by_role("main").count() == 1
    levels = [int(tag[1]) for tag in page.eval_on_selector_all("h1,h2,h3", "all => all.map(one => one.tagName)")]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    for drawn in page.get_by_role("img").all():
        assert drawn.get_attribute("aria-label") or drawn.get_attribute("alt")
    fold = page.locator("details").last
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("one => one.open")


def test_the_tails_of_a_live_run_follow_the_slider_by_keyboard(rng, make_batch, page, tmp_path):
    monitor = Monitor()
    for step in range(12):
        monitor.observe(**make_batch(rng, post=0.02 * (step + 1), pairs=("policy",)))
        monitor.log({"reward": 0.5}, step=10 * step)
    file = tmp_path / "page.html"
    file.write_text(render_html(monitor.close()), encoding="utf-8")
    page.goto(file.as_uri())
    slider = page.get_by_role("slider", name="Step")
    drawn = page.locator(".tails path.now.post_tool")
    last = drawn.get_attribute("d")
    assert page.locator(".tails output").inner_text() == "110"
    slider.focus()
    page.keyboard.press("Home")
    assert page.locator(".tails output").inner_text() == "0"
    assert slider.get_attribute("aria-valuetext") == "step 0"
    assert drawn.get_attribute("d") != last
    page.keyboard.press("End")
    assert drawn.get_attribute("d") == last


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(long_run, page, tmp_path, scheme):
    """A contrast of 4.5 at least, as WCAG 2.2 asks for in 1.4.3."""
    file = tmp_path / "page.html"
    file.write_text(run_page(long_run), encoding="utf-8")
    page.emulate_media(color_scheme=scheme)
    page.goto(file.as_uri())
    worst = page.evaluate(
        """() => {
        const light = ([r, g, b]) => { const of = c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
            return .2126 * of(r) + .7152 * of(g) + .0722 * of(b); };
        const rgb = text => text.match(/[\\d.]+/g).map(Number);
        const ground = one => {
            for (; one; one = one.parentElement) {
                const c = rgb(getComputedStyle(one).backgroundColor);
                if (c.length < 4 || c[3] > 0) return c;
            }
            return [255, 255, 255]; };
        const worst = [99, ""];
        for (const one of document.querySelectorAll("main *")) {
            const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
            if (!own) continue;
            const [a, b] = [light(rgb(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
            const contrast = (a + .05) / (b + .05);
            if (contrast < worst[0]) { worst[0] = contrast; worst[1] = one.outerHTML.slice(0, 80); }
        }
        return worst; }"""
    )
    assert worst[0] >= 4.5, worst
