"""`tracker-diag watch`: checks runs from outside again and again, with alerts and a table of their states."""

import logging
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.live import Live

from tracker_diag.cli.options import FailOn, FalseAlarmIn, Which
from tracker_diag.cli.refuse import refuse, refusing
from tracker_diag.report.console import Terminal
from tracker_diag.report.fleet import Fleet, FleetRow, FleetTable, one_line, render_fleet
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.scrub import without_password

_log = logging.getLogger("tracker_diag")

ROOM = 6
"""Lines of a terminal that the table leaves for its heading and for alerts."""


def watch(
    source: Annotated[
        str,
        typer.Argument(
            help="What diagnose takes: a file or folder that grows, mlflow:<run id>[@tracking uri], "
            "wandb:<entity>/<project>/<run>, trackio:<project>/<run>."
        ),
    ],
    *,
    project: Annotated[
        bool,
        typer.Option(
            "--project",
            help="All runs of mlflow:<experiment>[@tracking uri], wandb:<entity>/<project>, trackio:<project>, or a "
            "folder of files or runs; also those that begin later.",
        ),
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, for cron; the next watch repeats no alert.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the table to a self-contained page that reloads.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for what was sent; in TRACKER_DIAG_DIR or .tracker_diag by default."),
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="With --once: exit with 1 if a run has an incident of this severity or worse.")
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
    from tracker_diag.runs.watch_state import open_state, short_hash
    from tracker_diag.trackers.notify import NOTIFY
    from tracker_diag.trackers.open import is_of_tracker

    if fail_on and not once:
        refuse("--fail-on: expected with --once only, since any other watch has no end")
    if html and (html.is_dir() or not html.absolute().parent.is_dir()):
        refuse(f"--html: {html} given, expected a file in a folder that exists")
    if source and not is_of_tracker(source):
        source = str(Path(source).resolve())  # one name for one file, from each working directory
    name = without_password(source)
    with refusing():
        receivers = receivers_for(os.environ.get(NOTIFY, "").split())
        looked_for = chosen(rules)
        with open_state(state or folder() / f"watch-{short_hash(name, project)}", name, project=project) as kept:
            watcher = Watch(
                source, kept, project=project, rules=looked_for, receivers=receivers,
                expected_runs_between_false_alarms=false_alarm_in,
            )  # fmt: skip
            with _until_interrupted(), _Screen(quiet=once) as screen:

                def show() -> None:
                    screen.show(watcher.fleet)
                    _write_page(html, watcher.fleet, every)

                def show_progress() -> None:
                    if screen.due():
                        show()

                while True:
                    watcher.check(show_progress)
                    show()
                    if once:
                        break
                    time.sleep(every)
    Terminal().print(FleetTable(watcher.fleet))
    _write_page(html, watcher.fleet, every if once else None)
    if fail_on and any(SEVERITIES.index(level) >= SEVERITIES.index(fail_on.value) for level in watcher.levels):
        raise typer.Exit(1)


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
    from tracker_diag.runs.watch_state import replace_file

    if file:
        try:
            replace_file(file, render_fleet(fleet, every))
        except OSError as error:
            _log.warning("the page %s cannot be written: %s", file, error.strerror or error)


class _Screen:
    """Shows the runs during the watch: a table that changes in a terminal, otherwise a line for each change.

    Args:
        quiet: show nothing; the table comes at the end.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Terminal()
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty()
        )
        self._lines: list[str] = []
        """What was last shown where there is no terminal."""
        self._shown_at = time.monotonic()

    def __enter__(self) -> "_Screen":
        if self._console.is_terminal and not self._quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def due(self) -> bool:
        """Whether it has shown nothing for a second."""
        return time.monotonic() - self._shown_at > 1

    def show(self, fleet: Fleet) -> None:
        self._shown_at = time.monotonic()
        if self._quiet:
            return
        if self._console.is_terminal:
            self._live.update(FleetTable(fleet, self._console.height - ROOM), refresh=True)
            return
        before, self._lines = set(self._lines), [_line(row) for row in fleet.rows]
        for line in self._lines:
            if line not in before:
                self._console.print(f"{fleet.at:%H:%M:%S} {line}", soft_wrap=True)


def _line(row: FleetRow) -> str:
    """The state of a run, without what changes with each step."""
    since = "" if row.since is None else f", since step {row.since:,}"
    parts = (row.level, row.activity, f"{row.first_break}{since}", row.note)
    return one_line(f"{row.run}: {', '.join(filter(None, parts))}")
