"""A comparison as a person sees it: on a screen of 80 columns, and as a page in a real browser."""

import io
import math
import re
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len

from tracker_diag.report.console import Terminal, plain
from tracker_diag.runs.compare import compare
from tracker_diag.runs.compare_page import page
from tracker_diag.runs.compared import headline, on_screen
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun

ODD = "<script>alert(1)</script>[red]\x1b[31m\n🤖 مكافأة " + "x" * 300


def judged(rng, name, grow=1.0, config=None, more=(), *, catalog=False):
    rows = {
        step: {
            "reward": 0.5 + 0.02 * rng.normal() - (0.3 if grow > 1 and step > 150 else 0.0),
            **{
                f"diag/{pair}/post_tool/p95": 0.02 * math.exp(0.1 * rng.normal()) * (grow if step > 100 else 1.0)
                for pair in ("policy", "mismatch", "reference")
            },
            **{f"diag/policy/{slice}/p95": 0.02 * (grow if step > 120 else 1.0) for slice in more},
        }
        for step in range(200)
    }
    return diagnose(FinishedRun(name, rows, config or {}, {}, ()), catalog=catalog)


@pytest.fixture(scope="module")
def crowded():
    """Arms of two seeds with odd names, 16 series that part, 60 settings and incidents that differ."""
    rng = np.random.default_rng(0)
    slices = [f"tool:{ODD[:40].replace('/', '_')}{n}" for n in range(12)]
    settings = {f"{ODD}{n}": ODD for n in range(60)} | {"eval.temperature": 0.0}
    other = dict.fromkeys(settings, "other") | {"eval.temperature": 1.0}
    calm = [judged(rng, f"{ODD}{seed}", 1.0, settings | {"seed": seed}, slices, catalog=True) for seed in (0, 1)]
    wide = [judged(rng, f"wide {ODD}{seed}", 8.0, other | {"seed": seed}, slices, catalog=True) for seed in (0, 1)]
    return compare(calm, wide)


def lines(comparison):
    return [line for line in plain(on_screen(comparison)).splitlines() if line.strip()]


def test_a_calm_comparison_is_short_and_says_that_seeds_are_needed(rng):
    shown = "\n".join(lines(compare(judged(rng, "a"), judged(rng, "b"))))
    assert shown.splitlines()[0] == "tracker_diag: B (b): nothing parted in 4 series"
    assert "more seeds would tell luck from effect" in shown


def test_the_first_line_to_read_is_what_differs_first_with_both_curves(rng):
    shown = lines(compare(judged(rng, "a"), judged(rng, "b", 8.0)))
    first = next(at for at, line in enumerate(shown) if line.startswith("first  "))
    assert "post_tool/p95 since about step 10" in shown[first]
    assert shown[first + 1].startswith("  A 0.0")
    assert "×" in shown[first + 1]
    assert shown[first + 2].startswith("  B 0.1")
    assert "▁" in shown[first + 1]
    assert "█" in shown[first + 2]


@pytest.mark.slow
def test_a_crowded_one_fits_the_screen_and_no_name_steers_it(crowded):
    shown = lines(crowded)
    assert not any(sign in "\n".join(shown) for sign in ("\x1b", "\x9b"))
    narrow = Terminal(width=80, file=io.StringIO())
    with narrow.capture() as drawn:
        narrow.print(on_screen(crowded))
    assert len(drawn.get().splitlines()) <= 25
    assert all(cell_len(line) <= 80 for line in drawn.get().splitlines())
    assert any("eval.temperature" in line and "scores do not compare" in line for line in shown)
    assert "and 58 more settings differ" in "\n".join(shown)
    assert "seeds' spread" in "\n".join(shown)


def test_three_arms_have_a_part_each(rng):
    shown = "\n".join(lines(compare(judged(rng, "a"), judged(rng, "b", 8.0), judged(rng, "c"))))
    assert "B against A" in shown
    assert "C against A" in shown


def test_one_line_says_it_of_each_arm(rng):
    output = headline(compare(judged(rng, "a"), judged(rng, "b", 8.0), judged(rng, "c")))
    first = r"\(first difference from about step 10\d: p95 .*\); "
    assert re.match(rf"B \(b\): reward is 0\.\d+ lower on average since about step 1[45]\d {first}", output)
    assert output.endswith("; C (c): nothing parted in 4 series")


@pytest.mark.nightly
def test_the_page_fits_every_screen_loads_nothing_and_runs_nothing(crowded, rng, page_of):
    for scheme in ("light", "dark"):
        for width in (1440, 390):
            seen = page_of(page(crowded), width, scheme)
            assert seen.evaluate("document.documentElement.scrollWidth") <= width
            assert seen.locator("script:not([type])").count() == 2
            assert seen.get_by_role("img").count() >= 16
            levels = [int(tag[1]) for tag in seen.eval_on_selector_all("h1,h2,h3", "all => all.map(x => x.tagName)")]
            assert levels[0] == 1
            assert all(b - a <= 1 for a, b in pairwise(levels))
    calm = page_of(page(compare(judged(rng, "a"), judged(rng, "b"))), 390, "light")
    assert calm.locator("h1").inner_text() == "Nothing parted"
    assert "/reward" not in calm.title()


@pytest.fixture
def page_of(page, tmp_path):
    """Shows a page in a browser, which must ask for nothing else."""

    def show(text, width, scheme):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        asked, dialogs = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(file.as_uri())
        assert not dialogs
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        return page

    return show
