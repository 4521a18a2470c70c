"""The report in a real browser: it fits every screen, whatever is in it, and can be read by everybody."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.records import WorstSequence
from tracker_diag.report.html import render_html
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
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
        assert page.locator(".hero .plot").bounding_box()["width"] > 0.7 * min(width, 1184) - 60
    assert not dialogs
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    (tmp_path / "plain.html").write_text("<title>nothing</title>", encoding="utf-8")
    plain = opening(page, tmp_path / "plain.html")
    assert opening(page, file) < max(2000, 100 * plain)  # a busy machine takes long to open anything


def opening(page, file):
    """Milliseconds until the page is there."""
    page.goto(file.as_uri())
    return page.evaluate("performance.getEntriesByType('navigation')[0].duration")


def sequence():
    there = np.arange(40) >= 0
    return WorstSequence(
        pair="policy", slice="post_tool", onset=20, moment="worst", step=40, batch=0, sequence=3, tool="search",
        length=40, first=0, position=9, limit=0.1, share=0.2, logprobs=np.random.default_rng(0).normal(size=(2, 40)),
        sampled=there, tool_output=~there, in_slice=there, texts=tuple(f" word{i}" for i in range(40)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def live_page(make_batch, tmp_path_factory):
    """Of a live run whose tail grows: steps 0, 10, ..., 110."""
    rng, monitor = np.random.default_rng(0), Monitor()
    for step in range(12):
        batch = make_batch(rng, post=0.02 * (step + 1), pairs=("policy",))
        monitor.observe(**batch)
        monitor.log({"reward": 0.5 + 0.01 * step, "kl": 0.001 * (1 + step)}, step=10 * step)
    summary = monitor.close()
    broke = Finding(
        next(r for r in catalog() if r.id == "POL001"), "policy", "post_tool", "firing", 30, 50, None, "x", ()
    )
    file = tmp_path_factory.mktemp("live") / "page.html"
    curves = {"reward": {step: 0.5 + 0.001 * step for step in range(0, 120, 10)}, "kl": {0: 0.001, 30: 0.002}}
    worst = tuple(replace(sequence(), step=step, moment=moment) for step, moment in ((110, "worst"), (40, "first")))
    summary = replace(summary, source="run", findings=(broke,), curves=curves, worst=worst)
    file.write_text(render_html(summary), encoding="utf-8")
    return file.as_uri()


def test_one_cursor_shows_the_values_of_a_step_in_all_charts(live_page, page):
    page.goto(live_page)
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    chosen, reward, kl = (
        page.locator(".choose b"),
        *(page.get_by_label(name, exact=True).locator("output") for name in ("reward", "kl")),
    )
    assert (chosen.inner_text(), reward.inner_text(), kl.inner_text()) == (
        "110",
        "step 110: 0.61",
        "step 30: 0.002",
    )
    plot = page.locator(".plot").last
    box = plot.bounding_box()
    plot.hover(position={"x": box["width"] * 80 / 110, "y": 20})
    assert (chosen.inner_text(), reward.inner_text()) == ("80", "step 80: 0.58")
    page.mouse.move(0, 0)
    assert chosen.inner_text() == "110"
    assert not errors


def test_a_click_or_a_key_chooses_a_step_that_a_link_names(live_page, page):
    page.goto(live_page)
    slider, chosen = page.get_by_role("slider", name="Step"), page.locator(".choose b")
    plot = page.locator(".plot").last
    plot.click(position={"x": plot.bounding_box()["width"] * 40 / 110, "y": 20})
    assert page.evaluate("location.hash") == "#step=40"
    assert page.locator(".seq[data-step]").evaluate_all("all => all.map(one => one.hidden)") == [True, False]
    page.keyboard.press("ArrowRight")
    assert (chosen.inner_text(), slider.get_attribute("aria-valuetext")) == ("50", "50")
    slider.focus()
    page.keyboard.press("Home")
    assert page.evaluate("location.hash") == "#step=0"
    page.goto(f"{live_page}#step=96")
    assert chosen.inner_text() == "100"
    page.evaluate("location.hash = '#step=20'")
    page.wait_for_function("document.querySelector('.choose b').textContent === '20'")


def test_the_tails_follow_the_step_and_buttons_copy(live_page, page):
    page.goto(live_page)
    tail, drawn = page.locator(".tails output"), page.locator(".tails path.now.post_tool")
    assert tail.inner_text() == "110"
    first = drawn.get_attribute("d")
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("Home")
    assert tail.inner_text() == "0"
    assert drawn.get_attribute("d") != first
    page.get_by_role("button", name="Copy command").click()
    page.get_by_role("button", name="copied").wait_for()


def test_two_units_of_step_have_their_own_last_step_and_paper_shows_all(page, tmp_path):
    updates = {step: {"reward": 0.2 + 0.01 * math.sin(step)} for step in range(1, 50)}
    frames = {2_048 * step: {"eval_score": 0.5} for step in range(1, 50)}
    file = tmp_path / "page.html"
    file.write_text(run_page(diagnose(FinishedRun("run", updates | frames, {}, {}, ()))), encoding="utf-8")
    page.goto(file.as_uri())
    shown = page.get_by_label("reward and eval_score", exact=True).locator("output").inner_text()
    assert shown == "step 100,352: reward 0.19 (step 49) eval_score 0.5"
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert not page.locator(".choose").is_visible()
    assert not page.get_by_role("button").first.is_visible()
