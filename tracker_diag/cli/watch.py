"""`tracker-diag watch`: runs that go on, followed from outside, with alerts and a table of how they stand."""

import logging
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from tracker_diag.cli.options import FailOn, FalseAlarmIn, Which
from tracker_diag.cli.refuse import refuse, refusing
from tracker_diag.errors import without_password
from tracker_diag.report.console import Terminal
from tracker_diag.report.fleet import Fleet, FleetRow, FleetTable, one_line, render_fleet
from tracker_diag.rules.incidents import SEVERITIES

_log = logging.getLogger("tracker_diag")

TURN = 10.0
"""Seconds that the history of one run may take before the others are looked at again."""
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
            "folder of files or runs; those that begin later too.",
        ),
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 15.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, as for cron; the next one goes on from there.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the table to a self-contained page that refreshes.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder for what was read and told; in TRACKER_DIAG_DIR or .tracker_diag by default."),
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="With --once: exit with 1 if a run has an incident of this severity or worse.")
    ] = None,
    false_alarm_in: FalseAlarmIn = 100.0,
    rules: Which = None,
) -> None:
    """Follow runs from outside, with the alerts of a live run.

    Each alert comes once, and a table shows the state of each run.

    Alerts go to the terminal and to the URLs in TRACKER_DIAG_NOTIFY. Ctrl-C ends it; a watch that is started again
    goes on where the last one stopped.
    """
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.fleet import FleetWatch
    from tracker_diag.runs.logbook import Logbook, short_hash
    from tracker_diag.runs.telling import Channel, Log, Url
    from tracker_diag.trackers.delivery.journal import folder
    from tracker_diag.trackers.notify import NOTIFY
    from tracker_diag.trackers.open import PREFIXES

    if fail_on and not once:
        refuse("--fail-on: expected with --once alone; a watch that goes on has no end to tell it at")
    if html and (html.is_dir() or not html.absolute().parent.is_dir()):
        refuse(f"--html: {html} given, expected a file in a folder that is there")
    with refusing(), _ending() as ended:
        channels: list[Channel] = [Log(), *(Url(url) for url in os.environ.get(NOTIFY, "").split())]
        looked_for = chosen(rules)
        if source and not source.startswith(tuple(PREFIXES)):
            source = str(Path(source).resolve())  # the same from wherever it is named
        name = without_password(source)
        logbook = Logbook(state or folder() / f"watch-{short_hash(name, project)}", name, project=project)
        watched = FleetWatch(
            source, logbook, project=project, rules=looked_for, channels=channels,
            expected_runs_between_false_alarms=false_alarm_in,
        )  # fmt: skip
        fleet = None
        try:
            with _Screen(quiet=once) as screen:

                def show(now: Fleet) -> None:
                    screen.show(now)
                    _page(html, now, every)

                while not ended.is_set():
                    fleet = watched.look(ended.is_set, _at_most_each_second(show), math.inf if once else TURN)
                    show(fleet)
                    if once:
                        break
                    ended.wait(every)
        finally:
            with _going_on("what was read"):
                watched.close()
        if fleet:
            Terminal().print(FleetTable(fleet))
            _page(html, fleet, every if once else None)
    if fail_on and any(SEVERITIES.index(one) >= SEVERITIES.index(fail_on.value) for one in watched.levels):
        raise typer.Exit(1)


def _page(file: Path | None, fleet: Fleet, every: float | None) -> None:
    from tracker_diag.runs.logbook import replace_file

    if file:
        with _going_on(f"the page {file}"):
            replace_file(file, render_fleet(fleet, every))


@contextmanager
def _going_on(what: str) -> Generator[None]:
    """A disk that takes no more is said, and ends nothing."""
    try:
        yield
    except OSError as error:
        _log.warning("%s cannot be written: %s", what, error.strerror or error)


def _at_most_each_second(show: Callable[[Fleet], None]) -> Callable[[Fleet], None]:
    shown_at = time.monotonic()

    def now_and_then(fleet: Fleet) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > 1:
            show(fleet)
            shown_at = time.monotonic()

    return now_and_then


@contextmanager
def _ending() -> Generator[threading.Event]:
    """Set as soon as Ctrl-C or a SIGTERM asks for the end; the second Ctrl-C does not wait for it."""
    ended = threading.Event()

    def ask(number: int, _: object) -> None:
        if ended.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Screen:
    """Shows how things stand while the watch goes on: a table that changes in a terminal, else a line for each change.

    Args:
        quiet: show nothing; there is a table at the end.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Terminal()
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty()
        )
        self._known: dict[tuple[str, int], tuple[str, ...]] = {}
        """What was last said of each run, by its name and how many of that name came before it."""

    def __enter__(self) -> "_Screen":
        if self._console.is_terminal and not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def show(self, fleet: Fleet) -> None:
        if self._quiet:
            return
        if self._console.is_terminal:
            self._live.update(FleetTable(fleet, self._console.height - ROOM), refresh=True)
            return
        named = Counter[str]()
        for row in fleet.rows:
            named[row.run] += 1
            which, known = (row.run, named[row.run]), (row.level, row.activity, row.first_break, row.note)
            if self._known.get(which) != known:
                self._known[which] = known
                self._console.print(f"{fleet.at:%H:%M:%S} {_line(row)}", soft_wrap=True)


def _line(row: FleetRow) -> str:
    step = "" if row.step is None else f"step {row.step:,}"
    since = "" if row.since is None else f", since step {row.since:,}; {row.cost} since"
    parts = (row.level, row.activity, step, f"{row.first_break}{since}", row.note)
    return one_line(f"{row.run}: {', '.join(part for part in parts if part)}")
