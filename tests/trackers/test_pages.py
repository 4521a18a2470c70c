"""The pages of real trackers in a real browser: our panels, values, findings and alerts are on them."""

import json
import math
import sys
import urllib.request

import pytest

from tracker_diag import wrap
from tracker_diag.trackers.mlflow.view import view_path

pytestmark = pytest.mark.nightly

SLICES = ("post_tool", "text_only")


@pytest.fixture
def watched(rng, make_batch):
    """Has a run log to `target`; its tail grows after tool results from step 80 on."""

    def watched(target, log):
        run = wrap(target)
        for step in range(130):
            post = 0.02 * math.exp(max(0, step - 80) * 0.05)
            run.diag.observe(**make_batch(rng, post=post))
            log(run, step)
        run.diag.close()
        return run

    return watched


@pytest.fixture
def see(page):
    """Waits until a text is on the page, or in a part of it."""
    return lambda text, within=page, **options: within.get_by_text(text, **options).first.wait_for(timeout=60_000)


def test_mlflow(watched, mlflow_store, start_mlflow_server, page, see):
    import mlflow

    with mlflow.start_run(run_name="watched") as active:
        watched(mlflow, lambda run, step: run.log_metrics({"reward": 0.5}, step=step))
    address = start_mlflow_server(mlflow_store)
    experiment = active.info.experiment_id

    page.goto(address + view_path(experiment))
    for title in ("Reward, evaluation, KL", "Tails", "post_tool, text_only: p95, policy"):
        see(title)
    for pair in ("policy", "reference"):
        for name in SLICES:
            see(f"watched (diag/{pair}/{name}/p95)")

    page.goto(f"{address}/#/experiments/{experiment}/runs/{active.info.run_id}")
    for text in ("Token probabilities shift after tool results since about step", "12× the usual level at step",
                 "Find the tokens", "diag.alert.state"):  # fmt: skip
        see(text)
    picture = page.locator("img[src*='decision.png']")
    picture.wait_for(timeout=60_000)
    assert picture.evaluate("shown => shown.naturalWidth") == 760
    with page.expect_popup() as charts:
        page.get_by_role("link", name="Charts", exact=True).click()
    see("Reward, evaluation, KL", charts.value)
    charts.value.close()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value.frame_locator("iframe")
    see("Incident 1: Token probabilities shift after tool results", report)
    assert report.get_by_role("img", name="p95 of |log-ratio|, new policy against old").count() == 1


def test_tensorboard(watched, tmp_path, serve, page, see):
    from torch.utils.tensorboard import SummaryWriter

    logs = tmp_path / "logs"
    watched(SummaryWriter(str(logs / "watched")), lambda run, step: run.add_scalar("reward", 0.5, step)).close()
    address = serve(
        sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "PORT"
    )

    page.goto(f"{address}/?tagFilter=%5Ediag/policy/p95#timeseries")
    for name in SLICES:
        query = f"run=watched%2Fdiag%2F{name}&tag=diag%2Fpolicy%2Fp95"
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/scalars?{query}") as answer:
            _, step, value = json.load(answer)[-1]
        assert step == 129
        card = page.locator("scalar-card", has_text=f"watched/diag/{name}")
        see(f"{value:.4f}"[:5], card)
        assert card.count() == 1

    page.goto(address)  # as it opens, the decision is above all other cards
    page.locator("card-view").first.locator("image-card img").wait_for(timeout=60_000)

    page.goto(f"{address}/#text")
    see("POL001 tool-conditioned-variance-amplification, post_tool")
    see("Find the tokens")
    page.goto(f"{address}/#histograms")
    see("diag/policy/post_tool/hist")


def test_trackio(watched, trackio_runs, serve, page, see):
    watched(trackio_runs.start("watched"), lambda run, step: run.log({"reward": 0.5}, step=step)).finish()
    (last,) = (row for step, row in trackio_runs.rows("watched") if step == 129 and "diag/policy/all/p95" in row)
    show = f"import trackio; trackio.show({trackio_runs.project!r}, open_browser=False, server_port=PORT)"
    address = serve(sys.executable, "-c", show)

    page.goto(f"{address}/?project={trackio_runs.project}&metric_filter=diag/policy/(text_only|post_tool)/(p95|hist)$")
    for name in SLICES:
        see(f"{name}/p95", exact=True)
        see(f"diag/policy/{name}/hist", exact=True)
    see("Token probabilities shift after tool results, since step")
    assert page.get_by_text("all/p95", exact=True).count() == 0

    page.goto(f"{address}/media?project={trackio_runs.project}")
    see("diag/findings")
    see("Find the tokens")
    slices = page.locator("table", has_text="ess_sequence").first
    slices.wait_for(timeout=60_000)
    shown = slices.locator("tr", has_text="post_tool").first.inner_text()
    assert f"{last['diag/policy/post_tool/p95']:.4f}"[:5] in shown, shown

    page.goto(f"{address}/reports?project={trackio_runs.project}")
    see("First: Find the tokens")
