"""For trackers that show pages: a server on loopback, and a page of a real browser."""

import os
import shutil
import signal
import subprocess

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture
def serve(tmp_path, free_port, answers):
    """Starts a server on loopback, told its port in place of `PORT`; it is stopped at the end."""
    started = []

    def start(*command):
        log = tmp_path / "server.log"
        address = f"http://127.0.0.1:{free_port}"
        with log.open("w") as out:
            words = [word.replace("PORT", str(free_port)) for word in command]
            started.append(subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True))
        answers(started[-1], address, log)
        return address

    yield start
    for server in started:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@pytest.fixture
def page():
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        shown = browser.new_page(viewport={"width": 1600, "height": 1500})
        shown.set_default_timeout(60_000)
        yield shown
        browser.close()
