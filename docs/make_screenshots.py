"""Takes the README's pictures, of a real demo run in a terminal and from real servers: `make screenshots`.

With names of pictures, such as `report`, it takes these alone; `report` needs no demo and takes all pages of ours.

Needs Chromium and tmux; the demo is run again, into demo-out. MLflow shows the demo's own store, and W&B's terminal UI
its offline run: W&B's web page needs W&B's servers. For Trackio and TensorBoard the demo's tokens and metrics are
replayed into each. Trackio puts emoji before its alerts: install a font that has them, such as fonts-noto-color-emoji.
"""

import io
import json
import math
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tracker_diag import Monitor, diagnose, wrap
from tracker_diag.report.fleet import Fleet, render_fleet
from tracker_diag.report.html import render_html
from tracker_diag.rules.loader import chosen
from tracker_diag.rules.logged import is_ours
from tracker_diag.runs.compare import compare
from tracker_diag.runs.compare_page import page
from tracker_diag.runs.page import run_page
from tracker_diag.runs.watch import Watch
from tracker_diag.testing import EXAMPLE_FAULT, example_batch
from tracker_diag.trackers.files.read import read_metrics
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.tokens.log import read_tokens
from tracker_diag.trackers.trackio.write import ORDER

DOCS = Path(__file__).parent
DEMO = DOCS.parent / "demo-out"
COMMAND = Path(sys.executable).with_name("tracker-diag")
RUN = "agent-with-tools"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
CLUTTER = ("mlflow.assistant.chat_panel.close", "mlflow.experiment_page.shared_view.dismiss")


def main(*names: str) -> None:
    """Start each server, open our view, take the picture, stop the server."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TRACKIO_DIR": f"{folder}/trackio", "TRACKER_DIAG_DIR": f"{folder}/journals"}
        pictures: dict[str, Callable[[], None]] = {
            "demo": _demo,
            "mlflow": _mlflow,
            "demo-report": _demo_report,
            "wandb": partial(_wandb, Path(folder)),
            "trackio": _trackio,
            "tensorboard": partial(_tensorboard, f"{folder}/logs"),
            "report": partial(_pages, Path(folder)),
        }
        for name in names or pictures:
            pictures[name]()


def _pages(folder: Path) -> None:
    """A run whose tail grows after tool results, a healthy one, three runs compared, and 24 in a table."""
    monitor = Monitor()
    for step in range(160):
        monitor.observe(**_batch(step))
        monitor.log(_row(step, 1.0), step=step)
    (folder / "report.html").write_text(render_html(monitor.close(), (monitor.slices_table(),)))
    runs = []
    for name, grow, rate in (("baseline", 0.0, 1e-6), ("new-tools", 1.0, 1e-6), ("high-lr", 0.5, 3e-6)):
        rows = {step: _row(step, grow, slices=True) for step in range(160)}
        settings = {"learning_rate": rate, "tool_schema": f"v{1 + (grow == 1)}"}
        runs.append(diagnose(FinishedRun(f"runs/{name}.jsonl", rows, settings, {}, ())))
    (folder / "compare.html").write_text(page(compare(*runs)))
    (folder / "healthy.html").write_text(run_page(runs[0]))
    (folder / "fleet.html").write_text(render_fleet(_fleet(folder), 15))
    for name in ("report", "healthy", "compare", "fleet"):
        for width in (1440, 390):
            with _page(f"{name}-{width}.png", 900, width) as browser:
                browser.goto((folder / f"{name}.html").as_uri())
    with _page("wandb-card.png", 560, 720) as browser:  # a panel of usual size
        browser.goto((folder / "report.html").as_uri())


def _batch(step: int) -> dict[str, Any]:
    """The example's batch, whose tail grows half as fast."""
    batch = example_batch(step)
    old, after = batch["old_logprobs"], np.s_[:32, 12:]
    batch["logprobs"][after] = (
        old[after] + math.exp(-0.05 * max(0, step - EXAMPLE_FAULT)) * (batch["logprobs"] - old)[after]
    )
    return batch


def _fleet(folder: Path) -> Fleet:
    """24 runs: the tail of three grows, the reward of two falls, one has a NaN."""
    runs = folder / "grpo-tools"
    runs.mkdir()
    for seed in range(24):
        rows = [{"step": step, **_row(step, seed in (3, 9, 17), seed=seed, slices=True)} for step in range(160)]
        for row in rows[70:] if seed in (5, 12) else ():
            row |= {name: row[name] - 0.01 * (row["step"] - 70) for name in ("reward", "eval_score") if name in row}
        for row in rows[61:] if seed == 14 else ():
            row["loss"] = math.nan
        (runs / f"seed{seed}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch = Watch(str(runs), folder / "state", project=True, rules=chosen(None), receivers={})
    watch.check()
    return replace(watch.fleet, source="runs/grpo-tools")


def _row(step: int, grow: float, *, seed: int = 0, slices: bool = False) -> dict[str, float]:
    """What a trainer logs, and with `slices` the tail of both; the larger `grow`, the more is lost after step 80."""
    rng = np.random.default_rng([step, int(10 * grow), seed])
    level = 0.2 + 0.45 * min(step / 100, 1) - grow * max(0, step - 90) * 0.007
    row = {"reward": level + 0.02 * rng.normal(), "loss": 0.3 - 0.001 * step + 0.01 * rng.normal()}
    row |= {"entropy": 1.6 - 0.003 * step + 0.02 * rng.normal(), "grad_norm": 1 + 0.1 * rng.normal()}
    row |= {"eval_score": level - 0.03} if step % 5 == 0 else {}
    grown = math.exp(0.04 * rng.normal() + grow * max(0, step - 62) * 0.03)
    tails = {"post_tool": 0.08 * grown, "text_only": 0.07 + 0.002 * rng.normal()}
    both = {f"diag/policy/{name}/{stat}": value for name, value in tails.items() for stat in ("p95", "p95_step")}
    return row | (both if slices else {})


def _demo() -> None:
    """Its screen when the alert comes, and the verdict at the end."""
    command = f"cd {shlex.quote(str(DEMO.parent))} && {shlex.quote(str(COMMAND))} demo; sleep 60"
    with _terminal(f"env TERM=xterm-256color COLORTERM=truecolor sh -c {shlex.quote(command)}", 100, 60) as screen:
        first = _once(screen, r"\(POL001 post_tool\)(.|\n)*  See: (.|\n)*training ")
        last = _once(screen, "then open http")
    alert = _part(first, "tracker_diag: ", "training ")
    shown = _part(last, "verdict after", "all of it")
    _draw("demo.png", [("make demo: the alert, when it appears", alert), ("and the verdict at the end", shown)], 100)


def _part(screen: str, begins: str, ends: str) -> str:
    """The lines of a screen from the last with `begins` to the first after it with `ends`."""
    lines = screen.splitlines()
    start = max(at for at, line in enumerate(lines) if begins in line)
    end = next(at for at, line in enumerate(lines) if at > start and ends in line)
    return "\n".join(lines[start : end + 1])


def _mlflow() -> None:
    store = f"sqlite:///{DEMO / 'mlflow.db'}"
    command = ("-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1", "--port", "PORT")
    with closing(sqlite3.connect(DEMO / "mlflow.db")) as rows:
        ((experiment, run),) = rows.execute("SELECT experiment_id, run_uuid FROM runs").fetchall()
    with _serve(*command) as address, _page("mlflow.png", 900, 1440) as page:
        page.goto(f"{address}/#/experiments/{experiment}/runs/{run}")
        page.locator("img[src*='decision']").wait_for(state="attached", timeout=60_000)
        for name in CLUTTER:
            button = page.locator(f'[data-component-id="{name}"]')
            if button.count():
                button.first.click()
        page.get_by_label("Toggle sidebar").click()
        page.add_style_tag(
            content="*:not([class*=checkbox]) { font-family: 'DejaVu Sans', sans-serif !important }"
        )  # no digits as emoji


def _demo_report() -> None:
    """The first look of the report that MLflow keeps of the demo."""
    (report,) = (DEMO / "mlartifacts").rglob("report.html")
    with _page("demo-report.png", 792, 1440) as page:
        page.goto(report.as_uri())


def _wandb(folder: Path) -> None:
    grid: dict[str, object] = {"metrics_grid": {"rows": 2, "cols": 2}, "single_run_color_mode": "per_plot"}
    settings = grid | {"left_sidebar_visible": False, "right_sidebar_visible": False}
    (folder / "wandb-leet.json").write_text(json.dumps(settings))
    (run,) = (DEMO / "wandb").glob("offline-run-*")
    quiet = f"WANDB_CONFIG_DIR={folder} WANDB_ERROR_REPORTING=false TERM=xterm-256color COLORTERM=truecolor"
    leet = f"env {quiet} {shlex.quote(sys.executable)} -m wandb leet run {shlex.quote(str(run))}"
    with _terminal(leet, 140, 38) as screen:
        time.sleep(8)
        # It remembers the filter of the last time, which is to go first.
        for keys in (["C-l"], ["/"], ["-l", "(text_only|post_tool)/p95$"], ["Enter"]):
            screen("send-keys", *keys)
            time.sleep(3)
        shown = screen("capture-pane", "-e", "-p")
    _draw("wandb.png", [("wandb leet", shown)], 140)


@contextmanager
def _terminal(command: str, width: int, height: int) -> Generator[Callable[..., str], None, None]:
    """`command` in a terminal of its own, which takes the commands of tmux."""
    tmux = ("tmux", "-L", "tracker-diag", "-f", "/dev/null")

    def call_tmux(*words: str) -> str:
        return subprocess.run([*tmux, *words], check=True, capture_output=True, text=True).stdout  # noqa: S603

    call_tmux("new-session", "-d", "-x", str(width), "-y", str(height), command)
    try:
        yield call_tmux
    finally:
        call_tmux("kill-server")


def _once(screen: Callable[..., str], pattern: str) -> str:
    """The screen as soon as it shows `pattern`."""
    for _ in range(1200):
        if re.search(pattern, screen("capture-pane", "-p")):
            return screen("capture-pane", "-e", "-p")
        time.sleep(0.5)
    raise SystemExit(f"{pattern!r} is never shown:\n{screen('capture-pane', '-p')}")


def _draw(name: str, screens: list[tuple[str, str]], width: int) -> None:
    """Screens of a terminal, one below the other, each under its title."""
    drawn = []
    for number, (title, shown) in enumerate(screens):
        console = Console(record=True, width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True)
        console.print(Text.from_ansi(shown.rstrip()), soft_wrap=True)
        console.print()  # the last line would be cut at its foot
        # An SVG says how wide each text is, whatever the font.
        svg = console.export_svg(title=title, theme=MONOKAI, unique_id=f"screen{number}")
        drawn.append(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono"))
    with _page(name, 875) as page:
        page.set_content(f"<body style='margin: 0'>{''.join(drawn)}</body>")
        sizes = page.evaluate("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)")
        page.set_viewport_size({"width": 1500, "height": int(sum(sizes)) + 8})


def _trackio() -> None:
    import trackio

    run = wrap(trackio.init(project="agent-rl", name=RUN, auto_log_cpu=False, auto_log_gpu=False))
    _replay(run.diag.observe, lambda own, step: run.log(own, step=step))
    run.finish()
    show = "import trackio; trackio.show('agent-rl', open_browser=False, server_port=PORT)"
    os.environ["TRACKIO_PLOT_ORDER"] = ORDER.split("'")[1]
    with _serve("-c", show) as address, _page("trackio.png", 900, 1440) as page:
        page.goto(f"{address}/?project=agent-rl&smoothing=0")
        page.get_by_text("post_tool/p95", exact=True).first.wait_for(timeout=60_000)


def _tensorboard(logs: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    run = wrap(SummaryWriter(f"{logs}/{RUN}"))

    def log(own: dict[str, float], step: int) -> None:
        for name, value in own.items():
            run.add_scalar(name, value, step)

    _replay(run.diag.observe, log)
    run.close()
    command = ("-m", "tensorboard.main", "--logdir", Path(logs).name, "--port", "PORT")  # the page shows it
    with _serve(*command, cwd=Path(logs).parent) as address, _page("tensorboard.png", 900, 1440) as page:
        page.goto(address)
        page.locator("image-card img").first.wait_for(timeout=60_000)


@contextmanager
def _page(name: str, height: int, width: int = 1500) -> Generator[Page, None, None]:
    """A page in a browser, of which a picture is taken in the end. MLflow does not stop while a browser is open."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        yield page
        page.wait_for_timeout(4000)  # charts move into their places
        page.screenshot(path=DOCS / "images" / name)
        browser.close()


def _replay(observe: Callable[..., None], log: Callable[[dict[str, float], int], object]) -> None:
    """The demo's steps once more, into another tracker."""
    own = read_metrics(DEMO / "metrics.jsonl")
    for step, tensors in read_tokens(DEMO / "tokens.parquet"):
        observe(**tensors)
        log({key: value for key, value in own[step].items() if not is_ours(key)}, step)


@contextmanager
def _serve(*command: str, cwd: Path | None = None) -> Generator[str, None, None]:
    """The address of a server of Python's `command`, with its port in place of `PORT`; it is stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = [word.replace("PORT", str(port)) for word in command]
    null = subprocess.DEVNULL
    server = subprocess.Popen([sys.executable, *words], cwd=cwd, stdout=null, stderr=null)  # noqa: S603
    try:
        for _ in range(600):
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
        server.wait(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
