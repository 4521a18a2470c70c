"""`tracker-diag replay`: the verdict on the tokens that a run logged."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tracker_diag.cli.diagnose import exit_on, print_verdict
from tracker_diag.cli.options import AsJson, Blind, FailOnOption, Html, Quiet, Which, refusing, save
from tracker_diag.errors import SourceError
from tracker_diag.report.bar import bar
from tracker_diag.report.console import Terminal
from tracker_diag.report.terminal import verdict

if TYPE_CHECKING:
    from tracker_diag.runs.replay.what_if import Variant

TOKENS = (
    "Token log: Parquet, JSON Lines, .npz, .safetensors or .pt; a file, a folder, a pattern, or a URL such as "
    "s3://bucket/run. Or prime-rl's token_exports."
)


class EngineName(str, Enum):
    """Where rows are read."""

    PROCESSES = "processes"
    RAY = "ray"


def replay(
    tokens: Annotated[str, typer.Argument(help=TOKENS)],
    metrics: Annotated[Path | None, typer.Option(help="The run's own metrics: JSON Lines, one object a step.")] = None,
    *,
    columns: Annotated[str, typer.Option(help="Names that the files have: logprob=lp,old_logprob=old_lp.")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Say what would be read, and stop.")] = False,
    since: Annotated[int | None, typer.Option(help="Leave out steps before this one.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and say how much.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that read; one a core by default.")] = None,
    engine: Annotated[EngineName, typer.Option(help="Where the rows are read.")] = EngineName.PROCESSES,
    address: Annotated[str | None, typer.Option(help="Ray cluster; RAY_ADDRESS by default.")] = None,
    states: Annotated[
        Path | None, typer.Option(help="Keep what was read here; a later replay continues from it.")
    ] = None,
    log_to: Annotated[
        str | None,
        typer.Option(
            help="Write the findings into this run: mlflow:<run id>[@uri], wandb:<entity>/<project>/<run>, or "
            "<tracker>:<run> of another tracker."
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Number of steps that each statistic covers.")] = 8,
    clip: Annotated[
        str, typer.Option(help="How far below and above 1 the ratio is clipped: one number or two.")
    ] = "0.2,0.2",
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="A run that went well, logged with tracker_diag; repeat it for several."),
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Show what truncation, fresher tokens or whole sequences would do.")
    ] = False,
    as_json: AsJson = False,
    html: Html = None,
    fail_on: FailOnOption = None,
    rules: Which = None,
    blind: Blind = False,
    quiet: Quiet = False,
) -> None:
    """Diagnose logged tokens, as if the run were live."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.replay.back import run_called
    from tracker_diag.runs.replay.engines import on_ray
    from tracker_diag.runs.replay.replay import replay as replay_log
    from tracker_diag.runs.replay.replay import rules_on
    from tracker_diag.runs.replay.what_if import WhatIf
    from tracker_diag.trackers.tokens.log import TokenLog

    with refusing():
        renamed, which = _renamed(columns), chosen(rules)
        if explain:
            with TokenLog(tokens, columns=renamed, since=since, skip_bad=skip_bad) as log:
                seeing = rules_on(which, log.pairs)
                typer.echo("\n".join([*log.explained(), f"rules: {', '.join(seeing) or 'none'}"]))
            return
        trackers = [run_called(log_to, tokens)] if log_to else []
        with _rows() as progress:
            totals = WhatIf()
            summary = replay_log(
                tokens, metrics, rules=which, catalog=False, columns=renamed, since=since, skip_bad=skip_bad,
                window=window, clip=_clip(clip), baseline=baseline or (),
                workers=workers or os.cpu_count() or 1, engine=on_ray(address) if engine is EngineName.RAY else None,
                states=states, trackers=trackers, progress=progress, also=totals.add_step if what_if else None,
            )  # fmt: skip
    variants = totals.variants()
    if html:
        from tracker_diag.report.html import render_html

        save("--html", html, render_html(summary, []))
    if as_json:
        more = {"what_if": [asdict(variant) for variant in variants]} if what_if else {}
        typer.echo(json.dumps(summary.to_json() | more, indent=1))
    else:
        print_verdict(verdict(summary), summary, blind=blind, quiet=quiet)
        if what_if:
            Terminal().print(_table(variants))
    exit_on(summary, fail_on)


def _table(variants: "Sequence[Variant]") -> Table:
    table = Table("pair", "weights", "count", "ESS", "held by top 1 %", "after tools", "cut", box=None)
    for variant in variants:
        shares = (
            "" if share is None else f"{share:.3f}"
            for share in (variant.ess, variant.top, variant.after_tool, variant.cut)
        )  # fmt: skip
        table.add_row(variant.pair, variant.name, f"{variant.count:,}", *shares)
    return table


def _clip(given: str) -> tuple[float, float]:
    try:
        low, _, high = given.partition(",")
        return float(low), float(high or low)
    except ValueError:
        raise SourceError(f"--clip: {given!r} given, expected one or two numbers, such as 0.2,0.28") from None


def _renamed(columns: str) -> dict[str, str]:
    parts = [part.strip() for part in columns.split(",") if part.strip()]
    if wrong := [part for part in parts if "=" not in part]:
        raise SourceError(f"--columns: {wrong[0]!r} given, expected name=column, such as logprob=lp")
    return {name.strip(): theirs.strip() for name, _, theirs in (part.partition("=") for part in parts)}


@contextmanager
def _rows() -> Iterator[Callable[[int], Callable[[int], object]]]:
    """A bar of millions of rows."""
    with bar() as rows:

        def begun(n: int) -> Callable[[int], object]:
            task = rows.add_task("reading", total=n / 1e6, unit="M rows")
            return lambda more: rows.advance(task, more / 1e6)

        yield begun
