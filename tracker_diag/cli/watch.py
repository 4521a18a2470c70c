"""`tracker-diag watch`: checks runs from outside again and again, with alerts and a table of their states."""

import logging
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from tracker_diag.cli.options import FalseAlarmIn, Which, refuse, refusing
from tracker_diag.health import opened
from tracker_diag.report.bar import bar
from tracker_diag.report.console import Terminal
from tracker_diag.report.fleet import Fleet, FleetRow, FleetTable, render_fleet
from tracker_diag.scrub import without_password

if TYPE_CHECKING:
    from tracker_diag.runs.watch import Watch

_log = logging.getLogger("tracker_diag")


def watch(
    source: Annotated[
        str,
        typer.Argument(
            help="What diagnose takes: a file or folder that grows, mlflow:<run id>[@tracking uri], "
            "wandb:<entity>/<project>/<run>, or <tracker>:<run> of another tracker."
        ),
    ],
    *,
    project: Annotated[
        bool,
        typer.Option(
            "--project",
            help="All runs of mlflow:<experiment>[@tracking uri], wandb:<entity>/<project>, a project of another "
            "tracker, or a folder of files or runs; also those that begin later.",
        ),
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, for cron; the next watch repeats no alert.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the table to a self-contained page that reloads.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder that remembers which alerts were sent. By default, it is in TRACKER_DIAG_DIR."),
    ] = None,
    false_alarm_in: FalseAlarmIn = 100.0,
    rules: Which = None,
) -> None:
    """Follow runs from outside, with the alerts of a live run.

    Alerts go to the terminal and to the URLs in TRACKER_DIAG_NOTIFY. Ctrl-C ends it. A watch that is started again
    repeats no alert.
    """
    from tracker_diag.health import folder
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.watch import Watch, receivers_for
    from tracker_diag.runs.watched_run import short_hash
    from tracker_diag.trackers.notify import NOTIFY
    from tracker_diag.trackers.open import is_of_tracker

    if html and (html.is_dir() or not html.absolute().parent.is_dir()):
        refuse(f"--html: {html} given, expected a file in a folder that exists")
    if source and not is_of_tracker(source):
        source = str(Path(source).resolve())  # one name for one file, from each working directory
    with refusing():
        watcher = Watch(
            source, state or folder() / f"watch-{short_hash(without_password(source), project)}", project=project,
            rules=chosen(rules), receivers=receivers_for(os.environ.get(NOTIFY, "").split()),
            expected_runs_between_false_alarms=false_alarm_in,
        )  # fmt: skip
        screen = _Screen(watcher, html, every, quiet=once)
        with _until_interrupted(), screen.frame:
            while True:
                watcher.check(screen.show)
                screen.show(now=True)
                if once:
                    break
                time.sleep(every)
    Terminal().print(FleetTable(watcher.fleet))
    _write_page(html, watcher.fleet, every if once else None)


@contextmanager
def _until_interrupted() -> Generator[None]:
    """Ctrl-C or SIGTERM ends what runs inside, and nothing else."""
    ends = (signal.SIGINT, signal.SIGTERM)  # a shell starts its background jobs with SIGINT ignored
    before = {number: signal.signal(number, signal.default_int_handler) for number in ends}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_page(file: Path | None, fleet: Fleet, every: float | None) -> None:
    if file:
        try:
            with opened(file) as written:
                written.write(render_fleet(fleet, every))
        except OSError as error:
            _log.warning("the page %s cannot be written: %s", file, error.strerror or error)


class _Screen:
    """The runs during the watch: in a terminal a table, elsewhere a line for each change; if `quiet`, a bar alone."""

    def __init__(self, watcher: "Watch", html: Path | None, every: float, *, quiet: bool) -> None:
        self._watcher, self._html, self._every, self._quiet = watcher, html, every, quiet
        self._console = console = Terminal()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty())
        self._lines: set[str] = set()
        """What was last shown where there is no terminal."""
        self._shown_at = time.monotonic()
        self._bar = bar(console)
        self._runs = self._bar.add_task("judging", total=None, unit="runs")
        self.frame = self._bar if quiet else self._live if console.is_terminal else nullcontext()
        """What is on the screen meanwhile."""

    def show(self, *, now: bool = False) -> None:
        """Show how things are, once a second at most unless it is `now`."""
        self._bar.update(self._runs, advance=1, total=len(self._watcher.fleet.rows))
        if not now and time.monotonic() - self._shown_at < 1:
            return
        self._shown_at, fleet = time.monotonic(), self._watcher.fleet
        if self._console.is_terminal and not self._quiet:
            most = self._console.height - 6  # the heading and alerts need room
            self._live.update(FleetTable(fleet, most), refresh=True)
        elif not self._quiet:
            lines = [_line(row) for row in fleet.rows]
            for line in [line for line in lines if line not in self._lines]:
                self._console.print(f"{fleet.at:%H:%M:%S} {line}", soft_wrap=True)
            self._lines = {*lines}
        _write_page(self._html, fleet, self._every)


def _line(row: FleetRow) -> str:
    """The state of a run, without what changes with each step."""
    since = "" if row.since is None else f", since step {row.since:,}"
    parts = (row.level, row.activity, f"{row.first_break}{since}", row.note)
    return " ".join(f"{row.run}: {', '.join(filter(None, parts))}".split())
