"""Takes the README's picture from a real MLflow server over a real demo run: `make screenshots`.

Needs Chromium at /usr/bin/chromium and a finished demo in demo-out (`make demo`).
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tracker_diag.backends.mlflow_view import view_path

DOCS = Path(__file__).parent
STORE = DOCS.parent / "demo-out" / "mlflow.db"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
CLUTTER = ("mlflow.assistant.chat_panel.close", "mlflow.experiment_page.shared_view.dismiss")


def main() -> None:
    """Start the server, open our view, take the picture, stop the server."""
    if not STORE.exists():
        raise SystemExit(f"{STORE} is not there: run `make demo` first")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{STORE}"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        _wait_for(f"{address}/health")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1500, "height": 1180})
            page.goto(address + view_path("1"))
            _settle(page)
            page.screenshot(path=DOCS / "images" / "mlflow.png")
            browser.close()
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(address: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(address, timeout=1).close()  # noqa: S310
        except OSError:  # noqa: PERF203
            time.sleep(1)
        else:
            return
    raise SystemExit(f"{address} does not answer")


def _settle(page: Page) -> None:
    page.get_by_text("Distribution of |log-ratio|, step by step").wait_for(timeout=60_000)
    page.locator("img[src*='artifact'], img[src^='blob:']").first.wait_for(timeout=60_000)
    for name in CLUTTER:
        button = page.locator(f'[data-component-id="{name}"]')
        if button.count():
            button.first.click()
    page.get_by_label("Toggle sidebar").click()
    page.wait_for_timeout(3000)


if __name__ == "__main__":
    main()
