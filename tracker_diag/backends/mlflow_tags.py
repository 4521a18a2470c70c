"""What stands in the tags and the description of an MLflow run: what fires, what broke first, what to do."""

from collections.abc import Collection

from tracker_diag.report.tables import describe
from tracker_diag.rules.alerts import alerts
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, incidents
from tracker_diag.rules.triage import Summary, first_break


def tags_of(findings: Collection[Finding]) -> dict[str, str]:
    """The run's tags for what is firing and what broke first."""
    firing = [finding for finding in findings if alerts(finding)]
    first = first_break(findings)
    open_ones = [one for one in incidents(findings) if any(map(alerts, one.findings))]
    level = max((one.severity for one in open_ones), key=SEVERITIES.index, default="ok")
    return {
        "diag.alert.state": level,
        "diag.alert.rules": ", ".join(sorted({finding.rule.id for finding in firing})),
        "diag.first_break": f"{first.rule.id} on {first.slice} at step {first.onset}" if first else "",
    }


def note_on(summary: Summary) -> str:
    """The verdict in Markdown, for the run's description."""
    first = summary.first_break
    if first is None:
        return (
            f"**No rule fired at warn or above** in {summary.steps} steps. Blind: {', '.join(summary.blind) or 'none'}."
        )
    (incident,) = (one for one in summary.incidents if one.cause is first)
    hangs_on = "".join(f"- {finding}\n" for finding in incident.findings[1:])
    with_it = f"With it:\n\n{hangs_on}\n" if hangs_on else ""
    evidence = "\n".join(f"- {describe(reading)}" for reading in first.evidence)
    remedy = "\n".join(f"1. {text}" for text in first.rule.remedy)
    what_to_do = f"What to do:\n\n{remedy}\n\n" if remedy else ""
    return (
        f"**Broke first: {first.rule.title}, on {first.slice}, from step {first.onset}** "
        f"({first.rule.id}, fired at step {first.fired})\n\n{first.summary}.\n\n{evidence}\n\n"
        f"{with_it}{what_to_do}The whole report: Artifacts, diag/report.html."
    )
