"""The pages of a real TensorBoard in a real browser: both slices in one chart, our values, and the findings."""

import json
import math
import sys
import urllib.request

import pytest

from tracker_diag import wrap

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_both_slices_stand_in_one_chart_and_the_findings_in_words(tmp_path, rng, make_batch, serve, page):
    from torch.utils.tensorboard import SummaryWriter

    logs = tmp_path / "logs"
    writer = wrap(SummaryWriter(str(logs / "watched")))
    for step in range(130):
        post = 0.02 * math.exp(max(0, step - 80) * 0.05)
        writer.diag.observe(**make_batch(rng, post=post))
        writer.add_scalar("reward", 0.5, step)
    writer.close()
    address = serve(
        sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1", "--port", "PORT"
    )

    page.goto(f"{address}/?tagFilter=%5Ediag/policy/p95#timeseries")
    for name in ("post_tool", "text_only"):
        query = f"run=watched%2Fdiag%2F{name}&tag=diag%2Fpolicy%2Fp95"
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/scalars?{query}") as answer:
            _, step, value = json.load(answer)[-1]
        assert step == 129
        card = page.locator("scalar-card", has_text=f"watched/diag/{name}")
        card.get_by_text(f"{value:.4f}"[:5]).first.wait_for(timeout=60_000)
        assert card.count() == 1

    page.goto(f"{address}/#text")
    page.get_by_text("POL001 tool-conditioned-variance-amplification, post_tool").first.wait_for(timeout=60_000)
    page.get_by_text("Read ten of the tool results").first.wait_for(timeout=60_000)
    page.goto(f"{address}/#histograms")
    page.get_by_text("diag/policy/post_tool/hist").first.wait_for(timeout=60_000)
