"""The command line: `tracker-diag demo`, `diagnose`, `compare`, `watch`, `replay`, `rules`, `panels`, `flush`, ..."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, TypeAlias, cast, get_args

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

from tracker_diag.cli.after import checklist, postmortem
from tracker_diag.cli.audit import audit
from tracker_diag.cli.compare import compare
from tracker_diag.cli.integrations import integrations
from tracker_diag.cli.panels import export_wandb, panels_app
from tracker_diag.cli.preflight import preflight
from tracker_diag.cli.refuse import refuse, refusing
from tracker_diag.cli.rules import Which, rules_app
from tracker_diag.cli.severity import FailOn
from tracker_diag.cli.traces import traces
from tracker_diag.cli.watch import watch
from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.report.console import Terminal, unbroken
from tracker_diag.report.terminal import blindness, headline, verdict
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.rules.logged import is_ours
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.page import about_keys, on_screen
from tracker_diag.trackers.open import read_run

app = typer.Typer(
    help="See which slice of an agent-RL run goes unstable, which link broke first, and what to do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


Blind: TypeAlias = Annotated[
    bool, typer.Option("--blind", help="Also say which rules could not see, what to log so that they do, and more.")
]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Say it in one line.")]


rules_app.command("export-wandb")(export_wandb)
app.add_typer(rules_app, name="rules")
app.add_typer(panels_app, name="panels")
app.command()(integrations)
app.command()(compare)
app.command()(watch)
app.command()(postmortem)
app.command()(checklist)
app.command()(traces)
app.command()(audit)
app.command()(preflight)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tracker-diag {version('tracker-diag')}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """The entry point."""
    # MLflow draws a bar for each file that is read: of many runs that is all one would see.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


@app.command()
def demo(
    arm: Annotated[
        str, typer.Option(help="What goes wrong: healthy, constrained, widen, drift-aware, collapse, stale-narrow.")
    ] = "widen",
    seed: Annotated[int, typer.Option(help="Seed of prompts, tool and sampling.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps; things go wrong from step 80 on.")] = 300,
    out: Annotated[
        Path, typer.Option(help="Folder for MLflow's and W&B's files, tokens, findings and verdict.")
    ] = Path("demo-out"),
) -> None:
    """Train a small tool-using agent on the CPU, with the diagnostics in MLflow and W&B."""
    console = Console(stderr=True)
    try:
        from tracker_diag.demo.grpo import ARMS
        from tracker_diag.demo.run import run_demo
    except ImportError as error:
        refuse(f'{error.name} is not installed: pip install "tracker-diag[demo]"')
    if arm not in ARMS:
        refuse(f"--arm: {arm!r} given, expected one of {', '.join(ARMS)}")
    if out.exists() and not out.is_dir():
        refuse(f"--out: {out} is a file, expected a folder")
    console.print(f"[bold]{arm}[/], seed {seed}: {ARMS[arm].says}")
    run_demo(arm, seed, steps, out, console)


@app.command()
def replay(
    tokens: Annotated[Path, typer.Argument(help="Token table: Parquet, one row a token. Or prime-rl's token_exports.")],
    metrics: Annotated[Path | None, typer.Option(help="The run's own metrics: JSON Lines, one object a step.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained page with the curves and the worst sequences.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 if an incident is of this severity or worse.")
    ] = None,
    rules: Which = None,
    blind: Blind = False,
    quiet: Quiet = False,
) -> None:
    """Diagnose logged per-token tensors, as if the run were live."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.replay import replay as replay_table

    with refusing():
        summary = replay_table(tokens, metrics, rules=chosen(rules), catalog=False)
    if html:
        from tracker_diag.report.html import render_html

        html.write_text(render_html(summary, []), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(summary.to_json(), indent=1))
    else:
        _print(verdict(summary), summary, blind=blind, quiet=quiet)
    _exit_on(summary, fail_on)


@app.command()
def diagnose(
    source: Annotated[
        str,
        typer.Argument(
            help="A file or folder (metrics JSONL, CSV, trainer_state.json, TensorBoard, .wandb, console log, "
            "evaluations.npz, monitor.csv), or mlflow:<run id>[@tracking uri], wandb:<entity>/<project>/<run>, "
            "trackio:<project>/<run>."
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page with the curves.")] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 if an incident is of this severity or worse.")
    ] = None,
    framework: Annotated[str | None, typer.Option(help="Whose metric names these are, if not recognised.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="ppo, grpo, gspo, dpo or sft, if the run does not say.")] = None,
    since: Annotated[int | None, typer.Option(help="Look at steps from this one on.")] = None,
    expected_runs_between_false_alarms: Annotated[
        float, typer.Option(min=1, help="How many healthy runs go by until one is alarmed, about.")
    ] = 100.0,
    rules: Which = None,
    severity: Annotated[FailOn | None, typer.Option(help="Show incidents of this severity and above.")] = None,
    blind: Blind = False,
    quiet: Quiet = False,
) -> None:
    """Diagnose a finished run from what it logged: what broke first, on which evidence, what to do."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.runs.diagnose import diagnose as read_and_judge
    from tracker_diag.trackers.open import read_run

    with refusing():
        looked_for = chosen(rules)
        screen = Console(stderr=True)
        with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("reading", total=1.0)
            run = read_run(source, lambda share: bar.update(task, completed=share))
        if algorithm is not None and algorithm not in get_args(Algorithm):
            raise UnknownName("--algorithm", algorithm, get_args(Algorithm))
        known = cast("Algorithm | None", algorithm)
        found = read_and_judge(
            run, rules=looked_for, catalog=False, framework=framework, algorithm=known, since=since,
            expected_runs_between_false_alarms=expected_runs_between_false_alarms,
        )  # fmt: skip
    if not found.series and not found.summary.findings:
        keys = ", ".join(found.keys.unmapped[:5]) or "none"
        refuse(f"{source}: none of its metrics is known here (it has {keys}); name its framework with --framework")
    shown = found.at_least(severity.value) if severity else found
    if html:
        from tracker_diag.runs.page import run_page

        html.write_text(run_page(shown), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(shown.to_json(), indent=1))
    else:
        _print(on_screen(shown), shown.summary, about_keys(shown), blind=blind, quiet=quiet)
        loud, left = (sum(one.severity != "info" for one in of.summary.incidents) for of in (found, shown))
        if loud > left:
            typer.echo(f"--severity leaves {loud - left} of {loud} incidents out, which are below error")
    _exit_on(found.summary, fail_on)


@app.command()
def flush(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the journals lie: TRACKER_DIAG_DIR or .tracker_diag by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="To spend on each journal.")] = 60.0,
    to: Annotated[
        str | None,
        typer.Option(help="The MLflow server that may have your credentials; MLFLOW_TRACKING_URI by default."),
    ] = None,
) -> None:
    """Send the tracker what a run that died, or lost its server, could not send any more."""
    from tracker_diag.trackers.delivery.deliver import deliver
    from tracker_diag.trackers.delivery.journal import folder as default

    place = folder or default()
    if not place.exists():
        refuse(f"{place}: no such folder, expected one with journals")
    if to:
        os.environ["MLFLOW_TRACKING_URI"] = to
    whole = True
    for path, outcome, well in deliver(place, seconds, held):
        typer.echo(f"{path.name}: {outcome}")
        whole &= well
    if not whole:
        raise typer.Exit(2)


def held(source: str) -> dict[int, set[str]]:
    """What a run holds of the diagnostics, by step; nothing of one that cannot be read."""
    try:
        rows = read_run(source).rows
    except DiagError:
        return {}
    return {step: {key for key in row if is_ours(key)} for step, row in rows.items()}


def _exit_on(summary: Summary, fail_on: FailOn | None) -> None:
    if fail_on and summary.level and SEVERITIES.index(summary.level) >= SEVERITIES.index(fail_on.value):
        raise typer.Exit(1)


def _print(whole: RenderableType, summary: Summary, source: str = "", *, blind: bool, quiet: bool) -> None:
    """The verdict, or its one line, and what could not be seen if that was asked for.

    Args:
        source: how it was read; its beginning alone, but with what could not be seen.
    """
    screen = Terminal()
    screen.print(unbroken(Text(headline(summary))) if quiet else whole, crop=False)
    if blind:
        screen.print(blindness(summary))
    if source and (blind or not quiet):
        screen.print(source if blind or len(source) <= 150 else f"{source[:149].rstrip()}…", style="dim")
