"""A report in W&B on one finished run: the verdict, and below it the charts that it rests on.

Only the command makes it, as the view of a project: whether a team wants a report, no run can know.
"""

from collections.abc import Collection
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import PAIRS
from tracker_diag.report.note import note_on
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.panels import outcome_keys
from tracker_diag.trackers.wandb.view import line_plots


def save_report(entity: str, project: str, run_id: str, summary: Summary, keys: Collection[str]) -> str:
    """Save a new report on the run; its address.

    Raises:
        DiagError: the project cannot be reached, or W&B does not take the report.
    """
    made = report(entity, project, run_id, summary, keys)
    try:
        made.save()
    except Exception as error:  # what the client raises is of no one kind
        raise DiagError(f"wandb:{entity}/{project}: no report saved: {error}") from error
    return str(made.url)


def report(entity: str, project: str, run_id: str, summary: Summary, keys: Collection[str]) -> Any:
    """The report as a `wandb_workspaces` Report, not saved yet.

    Args:
        keys: what the run has logged, under its own names and ours.
    """
    reports: Any = require("wandb_workspaces.reports.v2", "panels")
    first = summary.first_break
    outcomes = [reports.LinePlot(title=key, y=[key]) for key in outcome_keys(keys)]
    pairs = [pair for pair in PAIRS if any(key.startswith(f"{PREFIX}{pair}/") for key in keys)]
    plots = outcomes + [plot for group in line_plots(pairs).values() for plot in group if {*plot.y} & {*keys}]
    again = f"`tracker-diag diagnose wandb:{entity}/{project}/{run_id}` shows it again."
    blocks: list[Any] = [reports.MarkdownBlock(text=note_on(summary, again))]
    if plots:
        # "ID" is that of a run, and the set of runs is this one alone.
        runs = reports.Runset(entity=entity, project=project, name=run_id, filters=f'ID == "{run_id}"')
        blocks += [reports.H2(text="What it rests on"), reports.PanelGrid(runsets=[runs], panels=plots)]
    return reports.Report(
        entity=entity,
        project=project,
        title=f"{run_id}: {first.rule.title if first else 'nothing found'}"[:128],
        description=f"tracker_diag, {summary.steps} steps",
        blocks=blocks,
    )
