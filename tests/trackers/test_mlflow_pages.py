"""The pages of a real MLflow server in a real browser: our panels and values are on them."""

import math

import pytest

from tracker_diag import wrap
from tracker_diag.trackers.mlflow.view import view_path

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_the_panels_open_by_their_address(rng, make_batch, mlflow_store, start_mlflow_server, page):
    import mlflow

    with mlflow.start_run(run_name="watched") as active:
        run = wrap(mlflow)
        for step in range(130):
            post = 0.02 * math.exp(max(0, step - 80) * 0.05)
            run.diag.observe(**make_batch(rng, post=post))
            run.log_metrics({"reward": 0.5}, step=step)
        run.diag.close()
    address = start_mlflow_server(mlflow_store)
    experiment = active.info.experiment_id

    page.goto(address + view_path(experiment))
    for title in ("Reward, evaluation, KL", "p95 of |log-ratio| by slice"):
        page.get_by_text(title).first.wait_for(timeout=60_000)
    for pair in ("policy", "reference"):
        for name in ("text_only", "post_tool"):
            page.get_by_text(f"watched (diag/{pair}/{name}/p95)").wait_for(timeout=60_000)

    page.goto(f"{address}/#/experiments/{experiment}/runs/{active.info.run_id}")
    note = page.get_by_text("Token probabilities diverge after tool calls, on post_tool, from step").first
    note.wait_for(timeout=60_000)
    page.get_by_text("Do first: Read ten of the tool results").wait_for(timeout=60_000)
    page.get_by_text("diag.alert.state").first.wait_for(timeout=60_000)
    picture = page.locator("img[src*='timeline.png']")
    picture.wait_for(timeout=60_000)
    assert picture.evaluate("one => one.naturalWidth") == 760
    with page.expect_popup() as charts:
        page.get_by_role("link", name="Charts", exact=True).click()
    charts.value.get_by_text("Reward, evaluation, KL").first.wait_for(timeout=60_000)
    charts.value.close()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value.frame_locator("iframe")
    report.get_by_text("Incident 1: Token probabilities diverge after tool calls").wait_for(timeout=60_000)
    report.get_by_text("Token probabilities diverge after tool calls, on post_tool, from step").wait_for(timeout=60_000)
    report.get_by_text("POL001 post_tool").first.wait_for(timeout=60_000)
    assert report.get_by_role("img", name="policy p95, from").count() == 1
