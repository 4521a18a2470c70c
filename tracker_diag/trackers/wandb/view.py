"""A saved view for a W&B project, next to the existing panels, and a report on a finished run.

Only the commands make them: whether a team wants another view or report, no run can know.
"""

from collections.abc import Collection
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.report.markdown import note_on
from tracker_diag.report.tables import DECISION
from tracker_diag.report.templates import SLICES
from tracker_diag.rules.triage import Summary, diagnose_command
from tracker_diag.trackers.panels import CHARTS, NAME, RULES, outcome_keys
from tracker_diag.trackers.wandb.summary import STEP

OUTCOMES = "^(reward|eval|val|test|train|critic|rollout|objective|env).*(reward|score|accuracy|success)|^reward$"
"""Keys of rewards and evaluations, under the names of most trainers."""

VIEW_KEY = "trackerdiag"
"""The view's own part of its address; there is one a project."""


def save_view(entity: str, project: str) -> tuple[str, bool]:
    """Save the view, or bring an older one of ours up to date; its address, and whether anything was written."""
    workspaces: Any = require("wandb_workspaces.workspaces", "panels")
    try:
        view = _ours(workspaces, entity, project)
        if view is not None and view.name == NAME:
            return view.url, False
        new = workspace(entity, project)
        if view is None:
            view = new
        else:  # what you have set on it stays: filters, colours, pinned runs
            view.name, view.sections = new.name, new.sections
        view.save()
    except Exception as error:  # what the client raises is of no one kind
        raise DiagError(f"wandb:{entity}/{project}: no view saved: {error}") from error
    return view.url, True


def workspace(entity: str, project: str) -> Any:
    """The view as a `wandb_workspaces` Workspace, not saved yet."""
    workspaces: Any = require("wandb_workspaces.workspaces", "panels")
    reports: Any = require("wandb_workspaces.reports.v2", "panels")
    verdict = [
        reports.MediaBrowser(title="Decision, and what broke first", media_keys=[DECISION]),
        reports.LinePlot(title="Rewards and evaluations", metric_regex=OUTCOMES),
    ]
    panels = {"Verdict": verdict, **line_plots()}
    panels["Rules"] = [
        reports.LinePlot(title=RULES, x=STEP, metric_regex=f"^{PREFIX}rule/"),
        reports.LinePlot(title="Health of the diagnostics, counts", x=STEP, metric_regex=f"^{PREFIX}health/"),
    ]
    sections = [workspaces.Section(name=name, panels=shown, is_open=True) for name, shown in panels.items()]
    # Your own metrics, and our histograms, for which there is no class of panel, are shown below as ever.
    made = workspaces.Workspace(entity=entity, project=project, name=NAME, sections=sections, auto_generate_panels=True)
    made._internal_name = f"nw-{VIEW_KEY}-v"  # noqa: SLF001  # chosen at random otherwise, and never found again
    return made


def line_plots() -> dict[str, list[Any]]:
    """Our charts by section."""
    reports: Any = require("wandb_workspaces.reports.v2", "panels")
    panels: dict[str, list[Any]] = {}
    for chart in CHARTS:
        if chart.keys:
            log = chart.statistic.scale == "log"
            plot = reports.LinePlot(title=chart.title, x=STEP, y=chart.keys, log_y=log)
            panels.setdefault(chart.section, []).append(plot)
    return panels


def _ours(workspaces: Any, entity: str, project: str) -> Any:
    """The view that an earlier call saved; None if there is none."""
    try:
        return workspaces.Workspace.from_url(f"https://wandb.ai/{entity}/{project}?nw={VIEW_KEY}")
    except ValueError as error:
        if "not found in project" in str(error):
            return None
        raise


def save_report(entity: str, project: str, run_id: str, summary: Summary, keys: Collection[str]) -> str:
    """Save a new report on the run; its address.

    Args:
        keys: what the run has logged, under its own names and ours.
    """
    reports: Any = require("wandb_workspaces.reports.v2", "panels")
    first = summary.first_break
    outcomes = [reports.LinePlot(title=key, y=[key]) for key in outcome_keys(keys)]
    plots = outcomes + [plot for group in line_plots().values() for plot in group if {*plot.y} & {*keys}]
    for plot in plots[len(outcomes) :]:  # a view of a project names no run, and so no colours
        slices = {key: key.split("/")[2] for key in plot.y}
        plot.line_colors = {f"{run_id}:{key}": SLICES[name][0] for key, name in slices.items() if name in SLICES}
    again = f"`{diagnose_command(f'wandb:{entity}/{project}/{run_id}')}` shows it again."
    blocks: list[Any] = [reports.MarkdownBlock(text=note_on(summary, again))]
    if plots:
        # "ID" is that of a run, and the set of runs is this one alone.
        runs = reports.Runset(entity=entity, project=project, name=run_id, filters=f'ID == "{run_id}"')
        blocks += [reports.H2(text="What it rests on"), reports.PanelGrid(runsets=[runs], panels=plots)]
    title = f"{run_id}: {first.rule.title if first else 'nothing found'}"[:128]
    about = f"tracker_diag, {summary.steps} steps"
    made = reports.Report(entity=entity, project=project, title=title, description=about, blocks=blocks)
    try:
        made.save()
    except Exception as error:  # what the client raises is of no one kind
        raise DiagError(f"wandb:{entity}/{project}: no report saved: {error}") from error
    return str(made.url)
