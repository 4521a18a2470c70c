"""The tags and the description of an MLflow run: what fires, what broke first, what to do."""

from collections.abc import Collection

from tracker_diag.report.console import cut
from tracker_diag.report.curves import PLACES
from tracker_diag.rules.alerts import is_loud
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, incidents
from tracker_diag.rules.triage import first_break
from tracker_diag.trackers.mlflow.view import view_path
from tracker_diag.trackers.tracker import LINKS, PICTURE, Description


def tags_of(findings: Collection[Finding]) -> dict[str, str]:
    """The run's tags for what is firing and what broke first."""
    firing = [finding for finding in findings if is_loud(finding)]
    together = incidents(findings)
    first = first_break(together)
    open_ones = [incident for incident in together if any(map(is_loud, incident.findings))]
    level = max((incident.severity for incident in open_ones), key=SEVERITIES.index, default="ok")
    return {
        "diag.alert.state": level,
        "diag.alert.rules": ", ".join(sorted({finding.rule.id for finding in firing})),
        "diag.first_break": _in_short(first) if first else "",
    }


def _in_short(first: Finding) -> str:
    """What broke first, since when: "after tool results @109 (POL001)". MLflow's column shows 24 characters."""
    place = PLACES.get(first.slice, f"on {first.slice}") or cut(first.rule.title, 18)
    return f"{place} @{first.onset} ({first.rule.id})"


NOTE_START, NOTE_END = "\u2063\u2063", "<!-- /tracker_diag -->"
"""Around our part of the description. The first is invisible: the list of runs shows the first words as they are."""


def described(present: str, text: str) -> str:
    """The description `present` with `text` in our part of it."""
    before, _, rest = present.partition(NOTE_START)
    _, _, after = rest.partition(NOTE_END)
    gap = "\n\n" if before and not before.endswith("\n") else ""
    return f"{before}{gap}{NOTE_START}{text}\n\n{NOTE_END}{after}"


def with_links(verdict: Description, experiment: str, run_id: str) -> str:
    """The verdict for the run's description; MLflow folds all but its first lines. Links are on the page's server."""
    charts = f"[Charts]({view_path(experiment).removeprefix('/')})"
    report = f"[Report](#/experiments/{experiment}/runs/{run_id}/artifacts/diag/report.html)"
    links = f"{report} · {charts}" if verdict.over else charts  # the report is written at the end
    picture = f"![Decision](get-artifact?path=diag/decision.png&run_uuid={run_id})"
    return verdict.text.replace(LINKS, links).replace(PICTURE, picture)
