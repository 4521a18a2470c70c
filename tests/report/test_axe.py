"""Every page against axe: what people with a screen reader, a keyboard or weak eyes would stumble over."""

import math
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from tracker_diag import Monitor
from tracker_diag.records import WorstSequence
from tracker_diag.report.fleet import Fleet, FleetRow, render_fleet
from tracker_diag.report.html import render_html
from tracker_diag.runs.compare import compare
from tracker_diag.runs.compare_page import page as compared
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun

pytestmark = pytest.mark.nightly


def report(rng, make_batch):
    """All that a report may have: an incident with damage, curves, tails with a slider, slices, sequences."""
    monitor = Monitor()
    for step in range(60):
        monitor.observe(**make_batch(rng, post=0.02 * (1 + step), pairs=("policy",)))
        monitor.samples(reward=rng.random(32))
        monitor.log({"reward": 0.01 * step if step < 40 else math.nan, "eval_score": 0.5}, step=step)
    summary, tables = monitor.close(), (monitor.slices_table(),)
    there = np.arange(40) >= 0
    sequence = WorstSequence(
        pair="policy", slice="post_tool", onset=20, moment="worst", step=40, batch=0, sequence=3, tool="search",
        length=40, first=0, position=9, limit=0.1, share=0.2, logprobs=rng.normal(size=(2, 40)), sampled=there,
        tool_output=~there, in_slice=there, texts=tuple(f" word{i}" for i in range(40)),
    )  # fmt: skip
    assert summary.first_break is not None
    return render_html(replace(summary, worst=(sequence,)), tables, note="read as trl")


def runs_compared(rng, make_batch):
    def run(name, more):
        rows = {step: {"reward": 0.1 * rng.normal() + more * (step > 50), "kl": 0.01} for step in range(100)}
        return diagnose(FinishedRun(name, rows, {"lr": more}, {}, ()))

    return compared(compare(run("a", 0.0), run("b", 1.0)))


def fleet(rng, make_batch):
    rows = [
        FleetRow("seed0", "error", "running", 1204, "POL001", "POL001 on post_tool: it", 1000, "4 steps"),
        FleetRow("seed1", "ok", "finished", 500, reward="0.5→0.5"),
        FleetRow("new", "unknown", "no row yet", note="no metrics in 1 lines"),
    ]
    at = datetime(2026, 11, 23, tzinfo=timezone.utc)
    return render_fleet(Fleet("mlflow:agents", at, tuple(rows)), every=3600)  # it does not reload while axe looks


@pytest.mark.parametrize("make", [report, runs_compared, fleet], ids=lambda make: make.__name__)
def test_axe_finds_nothing_on_a_screen_or_a_phone_in_light_or_dark(make, rng, make_batch, page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(make(rng, make_batch), encoding="utf-8")
    result = []
    for width in (1440, 390):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 844})
            page.emulate_media(color_scheme=scheme)
            page.goto(file.as_uri())
            page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
            for wrong in Axe().run(page).response["violations"]:
                result += [(width, scheme, wrong["id"], wrong["impact"], item["html"]) for item in wrong["nodes"]]
    assert result == []
