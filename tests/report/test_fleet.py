"""The fleet as a table and as a page: what is where, at each width, whatever runs are called."""

from dataclasses import replace
from datetime import datetime, timezone
from io import StringIO

import pytest
from rich.cells import cell_len

from tracker_diag.report.console import Terminal
from tracker_diag.report.fleet import Fleet, FleetRow, FleetTable, grouped, render_fleet, spark

AT = datetime(2026, 11, 23, 20, 13, 5, tzinfo=timezone.utc)
ODD = ("<script>alert(1)</script>", "[red]x[/] & \x1b[31mred", "x" * 300, "🤖 مكافأة", "two\nlines\tand a tab", "")
BROKEN = FleetRow(
    "run-7", "error", "running", 1204, "POL001", "POL001 on post_tool: Importance weights grow a tail after tools",
    1000, "204 steps, 68 min", "0.91→0.4",
)  # fmt: skip
ROWS = (
    FleetRow("fine", "ok", "running", 500, reward="0.5→0.5"),
    FleetRow("ended", "warn", "finished", 500, "OUT001", "OUT001: It has fallen", 400, cost="9 steps", active=False),
    FleetRow("new", "unknown", "no row yet", note="no metrics in 1 lines"),
    BROKEN,
    FleetRow("worse", "warn", "silent since 14:02", 500, "OUT001", "OUT001: x", 400, "100 steps"),
)
FLEET = Fleet("mlflow:agents", AT, ROWS)


def shown(fleet, width, most=None):
    screen = Terminal(width=width, file=StringIO(), color_system=None)
    screen.print(FleetTable(fleet, most))
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_the_worst_is_on_top_and_an_active_run_above_one_that_has_ended():
    assert [row.run for row in FLEET.sorted] == ["run-7", "worse", "ended", "new", "fine"]
    assert FLEET.counts == "5 runs: 1 error, 2 warn, 1 unknown, 1 ok"
    assert Fleet("x", AT, ()).counts == "0 runs"


COLUMNS = "state run activity step broke first since cost reward"


def test_a_wide_terminal_shows_the_title_of_the_rule():
    head, names, first, *_, last = shown(FLEET, 170)
    assert head == "tracker_diag: 5 runs: 1 error, 2 warn, 1 unknown, 1 ok, at 20:13:05"
    assert " ".join(names.split()) == COLUMNS
    for text in ("error", "run-7", "running", "1,204", "POL001 on post_tool: Importance weights grow a tail", "1,000",
                 "68 min", "0.91→0.4"):  # fmt: skip
        assert text in first
    assert last == "new: no metrics in 1 lines"


def test_80_columns_hold_what_matters():
    _, names, first, second, *_ = shown(FLEET, 80)
    assert " ".join(names.split()) == COLUMNS
    for text in ("error", "run-7", "1,204", "POL001", "1,000", "68 min", "0.91→0.4"):
        assert text in first
    assert "silent since 14:02" in second


def test_columns_without_a_word_are_left_out():
    _, names, _ = shown(Fleet("x", AT, (FleetRow("ill", "warn", "running", 500),)), 80)
    assert names.split() == ["state", "run", "activity", "step"]


@pytest.mark.parametrize("width", [20, 40, 80, 99, 100, 250])
def test_no_line_is_longer_than_the_terminal_and_no_name_breaks_one(width):
    rows = [*ROWS, *(FleetRow(name, "ok", "running", 5, note=name) for name in ODD)]
    lines = shown(Fleet("x", AT, tuple(rows)), width)
    assert all(cell_len(line) <= width for line in lines)
    assert "\x1b" not in "".join(lines)
    if width >= 40:
        assert sum(line.startswith(("error", "warn")) for line in lines) == 3
        assert sum(line.startswith(("ok: ", "unknown: ")) for line in lines) == 2


def test_many_runs_end_with_how_many_more():
    ill = (FleetRow(str(i), "warn", "running", 5, "OUT001", "OUT001: x", 3) for i in range(199))
    lines = shown(Fleet("x", AT, (BROKEN, *ill)), 80, 10)
    assert len(lines) == 13
    assert lines[-1] == "and 190 more"
    assert "run-7" in lines[2]


def test_runs_with_one_note_share_a_line_and_runs_that_are_well_too():
    rows = [FleetRow(f"seed{i}", "ok", "running", 5, note="silent" if i else "") for i in range(9)]
    _, well, note = shown(Fleet("x", AT, tuple(rows)), 100)
    assert well == "ok: 9 runs: " + ", ".join(f"seed{i}" for i in range(9))
    assert note == "8 runs: silent"


def test_the_headline_says_how_many_to_stop_and_why():
    stop = {"first_break": "OUT001: Reward fell, over", "decision": "Stop: fix it, resume from step 3"}
    rows = (*(FleetRow(f"seed{i}", "warn", "running", 5, "OUT001", **stop) for i in range(2)), ROWS[0])
    assert Fleet("x", AT, rows).headline == ("Stop 2 of 3 runs", "2 × Reward fell", "error")
    assert Fleet("x", AT, ROWS[:1]).headline == ("No run is to be stopped", "", "ok")


def test_runs_with_a_note_are_to_be_watched_and_folded():
    note = {"first_break": "EXP001: Entropy collapses", "decision": "Watch"}
    rows = (FleetRow("noted", "info", "running", 5, "EXP001", **note), ROWS[0])
    assert Fleet("x", AT, rows).headline == ("Watch 1 of 2 runs", "1 × Entropy collapses", "warn")
    assert [title for title, *_ in grouped(Fleet("x", AT, rows))] == ["info", "ok"]


def test_of_many_rules_the_page_shows_few_runs_and_folds_the_rest():
    rows = [replace(BROKEN, rule=f"X{number % 9}", first_break=f"X{number % 9}: it") for number in range(160)]
    page = render_fleet(replace(FLEET, rows=tuple(rows)))
    assert (page.count(" more</summary>"), page.count('class="calm"')) == (5, 4)
    assert page.count("<tbody>") == 14


def test_a_small_curve_ends_where_its_values_do():
    assert spark({step: float(step) for step in range(20)}, (0, 39))[18:] == (*(0.95, 1.0), *[None] * 20)
    assert spark({}, (0, 39)) == ()


def test_the_note_on_the_tracker_is_on_top():
    assert shown(Fleet("x", AT, ROWS, "cannot be reached\nsince 20:13"), 100)[1] == "cannot be reached since 20:13"


def test_a_page_reloads_itself_until_the_watch_has_ended():
    assert "location.reload(), 15 * 1000" in render_fleet(FLEET, 15.0)
    assert "location.reload(), 1 * 1000" in render_fleet(FLEET, 0.1)
    ended = render_fleet(FLEET)
    assert "location.reload" not in ended
    assert "the watch has ended" in ended


@pytest.mark.slow
def test_a_slow_reader_can_keep_the_page_from_changing(page, tmp_path):
    file = tmp_path / "fleet.html"
    file.write_text(render_fleet(FLEET, 60.0), encoding="utf-8")
    page.clock.install()
    page.goto(file.as_uri())
    page.evaluate("window.mine = true")
    page.get_by_role("button", name="Pause").press("Enter")
    page.clock.run_for(120_000)
    assert page.evaluate("window.mine") is True
    with page.expect_navigation():
        page.get_by_role("button", name="Pause", pressed=True).press("Enter")
    assert page.evaluate("window.mine") is None
    with page.expect_navigation():
        page.clock.run_for(61_000)


def test_the_page_escapes_what_it_is_given():
    rows = tuple(FleetRow(name, "warn", name, 5, name, name, 3, name, name, note=name) for name in ODD)
    page = render_fleet(Fleet("<b>", AT, (*rows, FleetRow("\ud800", "ok", "")), "<i>"))
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    page.encode()


@pytest.mark.nightly
def test_the_page_fits_every_screen_loads_nothing_and_tells_by_more_than_colour(page, tmp_path):
    odd = [FleetRow(name, "warn", "running", 5, "X", f"X: {name}", 3, "2 steps", note=name) for name in ODD]
    rows = (*ROWS, *odd)
    file = tmp_path / "fleet.html"
    file.write_text(render_fleet(Fleet("mlflow:agents", AT, rows * 18, "a note")), encoding="utf-8")
    asked, dialogs = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1440, 1000, 800, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("tbody tr").count() == 198
            assert page.evaluate("document.documentElement.scrollHeight") <= 1500 or width < 1440
            first = page.locator("tbody tr").first
            assert first.inner_text().startswith("error")
            assert "POL001" in first.inner_text()
    assert page.locator("table").first.locator("thead th[scope=col]").count() == 8
    assert page.locator("html[lang]").count() == page.locator("main").count() == page.locator("h1").count() == 1
    assert not dialogs
    assert [url for url in asked if not url.startswith("file:")] == []
