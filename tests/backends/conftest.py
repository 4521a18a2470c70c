"""For trackers that show pages: a server on loopback, and a page of a real browser."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

# Trackio looks once, when it is imported: one folder for all tests, a project for each.
STORE = tempfile.TemporaryDirectory(prefix="trackio-", ignore_cleanup_errors=True)
os.environ["TRACKIO_DIR"] = STORE.name


@pytest.fixture
def trackio_runs(request):
    """Starts real local runs of Trackio in a project of the test's own; reads rows back from its store."""
    import sqlite3
    from contextlib import closing

    import orjson
    import trackio

    class Runs:
        project = "".join(c if c.isalnum() else "-" for c in request.node.name)

        def start(self, name="run", **options):
            return trackio.init(project=self.project, name=name, auto_log_cpu=False, auto_log_gpu=False, **options)

        def known(self):
            return Path(f"{STORE.name}/{self.project}.db").exists()

        def select(self, query, *given):
            with closing(sqlite3.connect(f"file:{STORE.name}/{self.project}.db?mode=ro", uri=True)) as store:
                return store.execute(query, given).fetchall()

        def rows(self, name="run"):
            """Step and values of each row, in the order in which they were written; run it once finished."""
            found = self.select("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id", name)
            return [(step, orjson.loads(metrics)) for step, metrics in found]

    yield Runs()
    if trackio.context_vars.current_run.get():
        trackio.finish()


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
