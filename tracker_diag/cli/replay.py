"""`tracker-diag replay`: the verdict on the tokens that a run logged."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tracker_diag.cli.diagnose import exit_on, print_verdict
from tracker_diag.cli.options import AsJson, Blind, FailOnOption, Html, Quiet, Which
from tracker_diag.cli.refuse import refusing, save
from tracker_diag.errors import SourceError
from tracker_diag.report.terminal import verdict

TOKENS = (
    "Token log: Parquet, JSON Lines, .npz, .safetensors or .pt; a file, a folder, a pattern, or a URL such as "
    "s3://bucket/run. Or prime-rl's token_exports."
)


def replay(
    tokens: Annotated[str, typer.Argument(help=TOKENS)],
    metrics: Annotated[Path | None, typer.Option(help="The run's own metrics: JSON Lines, one object a step.")] = None,
    *,
    columns: Annotated[str, typer.Option(help="Names that the files have: logprob=lp,old_logprob=old_lp.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be read, and stop.")] = False,
    since: Annotated[int | None, typer.Option(help="Leave out steps before this one.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and count it.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read.")] = os.cpu_count() or 1,
    engine: Annotated[Literal["processes", "ray"], typer.Option(help="Where the rows are read.")] = "processes",
    address: Annotated[str | None, typer.Option(help="Ray cluster; RAY_ADDRESS by default.")] = None,
    states: Annotated[Path | None, typer.Option(help="Keep what was read here; a later replay continues from it.")] = None,
    as_json: AsJson = False,
    html: Html = None,
    fail_on: FailOnOption = None,
    rules: Which = None,
    blind: Blind = False,
    quiet: Quiet = False,
) -> None:
    """Diagnose logged tokens, as if the run were live."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.replay.engines import on_ray
    from tracker_diag.runs.replay.replay import replay as replay_log
    from tracker_diag.trackers.tokens.log import TokenLog

    with refusing():
        renamed = _renamed(columns)
        if explain:
            with TokenLog(tokens, columns=renamed, since=since, skip_bad=skip_bad) as log:
                typer.echo("\n".join(log.explained()))
            return
        with _bar() as progress:
            summary = replay_log(
                tokens, metrics, rules=chosen(rules), catalog=False, columns=renamed, since=since, skip_bad=skip_bad,
                workers=workers, engine=on_ray(address) if engine == "ray" else None, states=states, progress=progress,
            )  # fmt: skip
    if html:
        from tracker_diag.report.html import render_html

        save("--html", html, render_html(summary, []))
    if as_json:
        typer.echo(json.dumps(summary.to_json(), indent=1))
    else:
        print_verdict(verdict(summary), summary, blind=blind, quiet=quiet)
    exit_on(summary, fail_on)


def _renamed(columns: str) -> dict[str, str]:
    parts = [part.strip() for part in columns.split(",") if part.strip()]
    if wrong := [part for part in parts if "=" not in part]:
        raise SourceError(f"--columns: {wrong[0]!r} given, expected name=column, such as logprob=lp")
    return {name.strip(): theirs.strip() for name, _, theirs in (part.partition("=") for part in parts)}


@contextmanager
def _bar() -> Iterator[Callable[[int], Callable[[int], object]]]:
    """A bar with millions of rows, rate and time left; nothing outside a terminal."""
    screen = Console(stderr=True)
    fields = (BarColumn(), MofNCompleteColumn(), TextColumn("M rows"), TaskProgressColumn(show_speed=True), TimeRemainingColumn())
    with Progress(*fields, console=screen, transient=True, disable=not screen.is_terminal) as bar:

        def begun(rows: int) -> Callable[[int], object]:
            task = bar.add_task("rows", total=round(rows / 1e6, 1))
            return lambda more: bar.advance(task, round(more / 1e6, 1))

        yield begun
