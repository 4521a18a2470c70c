"""The pages of a real Trackio dashboard in a real browser: our curves, histograms, tables and alerts are on them."""

import math
import sys

import pytest

from tracker_diag import wrap

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_curves_histograms_tables_and_alerts_are_on_the_pages(rng, make_batch, trackio_runs, serve, page):
    run = wrap(trackio_runs.start("watched"))
    for step in range(130):
        post = 0.02 * math.exp(max(0, step - 80) * 0.05)
        run.diag.observe(**make_batch(rng, post=post, pairs=("policy",)))
        run.log({"reward": 0.5}, step=step)
    run.finish()
    (last,) = (row for step, row in trackio_runs.rows("watched") if step == 129 and "diag/policy/all/p95" in row)
    show = f"import trackio; trackio.show({trackio_runs.project!r}, open_browser=False, server_port=PORT)"
    address = serve(sys.executable, "-c", show)

    page.goto(f"{address}/?project={trackio_runs.project}&metric_filter=diag/policy/(text_only|post_tool)/(p95|hist)$")
    for name in ("post_tool", "text_only"):
        page.get_by_text(f"{name}/p95", exact=True).wait_for(timeout=60_000)
        page.get_by_text(f"diag/policy/{name}/hist", exact=True).first.wait_for(timeout=60_000)
    page.get_by_text("POL001 post_tool: Token probabilities diverge after tool calls").first.wait_for(timeout=60_000)
    assert page.get_by_text("all/p95", exact=True).count() == 0

    page.goto(f"{address}/media?project={trackio_runs.project}")
    page.get_by_text("diag/findings").first.wait_for(timeout=60_000)
    page.get_by_text("Read ten of the tool results").first.wait_for(timeout=60_000)
    slices = page.locator("table", has_text="ess_sequence").first
    slices.wait_for(timeout=60_000)
    shown = slices.locator("tr", has_text="post_tool").first.inner_text()
    assert f"{last['diag/policy/post_tool/p95']:.4f}"[:5] in shown, shown

    page.goto(f"{address}/reports?project={trackio_runs.project}")
    page.get_by_text("First: Read ten of the tool results").first.wait_for(timeout=60_000)
