"""`tracker-diag diagnose`: the verdict on the metrics that a run logged."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, get_args

import typer
from rich.console import RenderableType
from rich.text import Text

from tracker_diag.cli import options
from tracker_diag.errors import UnknownName
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.report.bar import bar
from tracker_diag.report.console import Terminal, unbroken
from tracker_diag.report.terminal import blindness, headline
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.runs.page import about_keys, on_screen, run_page
from tracker_diag.trackers.finished import Progress


def diagnose(
    source: Annotated[str, typer.Argument(help=options.SOURCE)],
    *,
    as_json: options.AsJson = False,
    html: options.Html = None,
    fail_on: options.FailOnOption = None,
    framework: options.Framework = None,
    algorithm: Annotated[str | None, typer.Option(help="ppo, grpo, gspo, dpo or sft, if the run does not say.")] = None,
    evaluation: Annotated[str, typer.Option(help="Key of the target evaluation, if the log has several.")] = "",
    acknowledge: Annotated[
        list[str] | None, typer.Option(metavar="RULE=REASON", help="A problem that you know of; the advice ignores it.")
    ] = None,
    since: Annotated[int | None, typer.Option(help="Leave out steps before this one.")] = None,
    false_alarm_in: options.FalseAlarmIn = 100.0,
    rules: options.Which = None,
    blind: options.Blind = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what broke first in a finished run, and what to do.

    Exit code 0; 1 with --fail-on if an incident is of that severity; 2 for bad input.
    """
    from tracker_diag.rules.loader import chosen

    with options.refusing():
        which = chosen(rules)
        if algorithm is not None and algorithm not in get_args(Algorithm):
            raise UnknownName("--algorithm", algorithm, get_args(Algorithm))
        result = judged(
            source, rules=which, catalog=False, framework=framework, algorithm=algorithm, evaluation=evaluation,
            since=since, acknowledged=_reasons(acknowledge or ()), expected_runs_between_false_alarms=false_alarm_in,
        )  # fmt: skip
    if not result.series and not result.summary.findings:
        options.refuse(f"{source}: it has no metrics")
    if html:
        options.save("--html", html, run_page(result))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=1))
    else:
        print_verdict(on_screen(result), result.summary, about_keys(result), blind=blind, quiet=quiet)
    exit_on(result.summary, fail_on)


def _reasons(given: Sequence[str]) -> dict[str, str]:
    """What `--acknowledge` gives, by rule."""
    pairs = [text.partition("=") for text in given]
    if bad := [text for text, (_, _, reason) in zip(given, pairs, strict=True) if not reason.strip()]:
        options.refuse(f"--acknowledge: {bad[0]!r} given, expected RULE=REASON, as in POL001='a tool was down'")
    return {rule.strip(): reason.strip() for rule, _, reason in pairs}


def judged(source: str, **settings: Any) -> Diagnosis:
    """The diagnosis of the run `source`, with bars in a terminal while reading and judging take long."""
    from tracker_diag.runs.diagnose import diagnose as judge
    from tracker_diag.trackers.open import read_run

    with _shown("reading") as progress:
        run = read_run(source, progress)
    with _shown("judging") as progress:
        return judge(run, progress=progress, **settings)


@contextmanager
def _shown(what: str) -> Iterator[Progress]:
    """A bar of what is underway; it is given the share that is done."""
    with bar() as it:
        task = it.add_task(what, total=100.0, unit="%")
        yield lambda share: it.update(task, completed=100 * share)


def exit_on(summary: Summary, fail_on: options.FailOn | None) -> None:
    """Leave with 1 if an incident of `summary` is of the severity `fail_on` or worse."""
    if fail_on and summary.level and SEVERITIES.index(summary.level) >= SEVERITIES.index(fail_on.value):
        raise typer.Exit(1)


def print_verdict(whole: RenderableType, summary: Summary, source: str = "", *, blind: bool, quiet: bool) -> None:
    """Print the verdict or its one line, and how the run was read; with `blind` also what could not be seen."""
    screen = Terminal()
    screen.print(unbroken(Text(headline(summary))) if quiet else whole, crop=False)
    if blind:
        screen.print(blindness(summary))
    if source and (blind or not quiet):
        screen.print(source if blind or len(source) <= 150 else f"{source[:149].rstrip()}…", style="dim")
