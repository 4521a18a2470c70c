"""Takes the README's pictures from real servers over a real demo run: `make screenshots`.

Needs Chromium and a finished demo in demo-out (`make demo`). MLflow shows the demo's own store; for Trackio and
TensorBoard its tokens and metrics are replayed into each. Trackio puts emoji before its alerts:
install a font that has them, such as fonts-noto-color-emoji.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tracker_diag import wrap
from tracker_diag.backends.mlflow_view import view_path
from tracker_diag.sources.jsonl import read_metrics
from tracker_diag.sources.tokens import read_tokens

DOCS = Path(__file__).parent
DEMO = DOCS.parent / "demo-out"
RUN = "agent-with-tools"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
CLUTTER = ("mlflow.assistant.chat_panel.close", "mlflow.experiment_page.shared_view.dismiss")


def main() -> None:
    """Start each server, open our view, take the picture, stop the server."""
    for name in ("mlflow.db", "tokens.parquet", "metrics.jsonl"):
        if not (DEMO / name).exists():
            raise SystemExit(f"{DEMO / name} is not there: run `make demo` first")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TRACKIO_DIR": f"{folder}/trackio", "TRACKER_DIAG_DIR": f"{folder}/journals"}
        _mlflow()
        _trackio()
        _tensorboard(f"{folder}/logs")


def _mlflow() -> None:
    store = f"sqlite:///{DEMO / 'mlflow.db'}"
    command = ("-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1", "--port", "PORT")
    with _serve(*command) as address, _page("mlflow.png", 1180) as page:
        page.goto(address + view_path("1"))
        page.get_by_text("Distribution of |log-ratio|, step by step").wait_for(timeout=60_000)
        page.locator("img[src*='artifact'], img[src^='blob:']").first.wait_for(timeout=60_000)
        for name in CLUTTER:
            button = page.locator(f'[data-component-id="{name}"]')
            if button.count():
                button.first.click()
        page.get_by_label("Toggle sidebar").click()
        page.add_style_tag(
            content="*:not([class*=checkbox]) { font-family: 'DejaVu Sans', sans-serif !important }"
        )  # no digits as emoji


def _trackio() -> None:
    import trackio

    run = wrap(trackio.init(project="agent-rl", name=RUN, auto_log_cpu=False, auto_log_gpu=False))
    _replay(run.diag.observe, lambda own, step: run.log(own, step=step))
    run.finish()
    show = "import trackio; trackio.show('agent-rl', open_browser=False, server_port=PORT)"
    with _serve("-c", show) as address, _page("trackio.png", 1270) as page:
        shown = "diag/policy/(text_only|post_tool)/(ess|p95|p99)$"
        page.goto(f"{address}/?project=agent-rl&smoothing=0&metric_filter={shown}")
        page.get_by_text("post_tool/p95", exact=True).wait_for(timeout=60_000)


def _tensorboard(logs: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    run = wrap(SummaryWriter(f"{logs}/{RUN}"))

    def log(own: dict[str, float], step: int) -> None:
        for name, value in own.items():
            run.add_scalar(name, value, step)

    _replay(run.diag.observe, log)
    run.close()
    command = ("-m", "tensorboard.main", "--logdir", Path(logs).name, "--port", "PORT")  # the page shows it
    with _serve(*command, cwd=Path(logs).parent) as address, _page("tensorboard.png", 860) as page:
        page.goto(f"{address}/#custom_scalars")
        page.get_by_text("tail: p95 of |log-ratio|, in nats").first.wait_for(timeout=60_000)
        page.get_by_text("Ignore outliers in chart scaling").click()


@contextmanager
def _page(name: str, height: int) -> Generator[Page, None, None]:
    """A page in a browser, of which a picture is taken in the end. MLflow does not stop while a browser is open."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": height})
        yield page
        page.wait_for_timeout(4000)  # charts move into their places
        page.screenshot(path=DOCS / "images" / name)
        browser.close()


def _replay(observe: Callable[..., None], log: Callable[[dict[str, float], int], object]) -> None:
    """The demo's steps once more, into another tracker."""
    own = read_metrics(DEMO / "metrics.jsonl")
    for step, tensors in read_tokens(DEMO / "tokens.parquet"):
        observe(**tensors)
        log(dict(own[step]), step)


@contextmanager
def _serve(*command: str, cwd: Path | None = None) -> Generator[str, None, None]:
    """The address of a server of Python's `command`, told its port in place of `PORT`; it is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = [word.replace("PORT", str(port)) for word in command]
    null = subprocess.DEVNULL
    server = subprocess.Popen([sys.executable, *words], cwd=cwd, stdout=null, stderr=null)  # noqa: S603
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(address, timeout=1).close()
            except OSError:  # noqa: PERF203
                time.sleep(1)
            else:
                break
        else:
            raise SystemExit(f"{address} does not answer")
        yield address
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
