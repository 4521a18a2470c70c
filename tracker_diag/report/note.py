"""The verdict in Markdown, for the page of a run in a tracker."""

from tracker_diag.report.curves import main_finding
from tracker_diag.report.decision import decide
from tracker_diag.report.evidence import speaks_for
from tracker_diag.report.markdown import escaped
from tracker_diag.rules.triage import Summary


def note_on(summary: Summary, links: str, picture: str = "") -> str:
    """The decision in the first line, then what to do, where to resume and the cost. Trackers fold the rest.

    Args:
        links: to pages with more detail.
        picture: of the curves.
    """
    decision, first = decide(summary), main_finding(summary)
    tiles = [f"**{tile.value}** {tile.what}" + (f" ({tile.note})" if tile.note else "") for tile in decision.tiles]
    head = f"**{escaped(str(decision))}.** {links}".strip()
    parts = [head, *(f"**The log**: {line}." for line in summary.log)]
    if first is None:
        return "\n\n".join([*parts, *tiles, *(f"**But** {caveat}." for caveat in summary.caveats)])
    (incident,) = (incident for incident in summary.incidents if incident.cause is first)
    far, harm, step, resume = tiles
    parts += [f"{step} {resume}.", f"{far}. {harm}.", decision.remark and f"{decision.remark}.", picture]
    if incident.symptoms:
        parts.append("Symptoms:\n\n" + "\n".join(f"- {finding}" for finding in incident.symptoms))
    if evidence := speaks_for(first):
        parts.append(f"Evidence at step {first.fired}:\n\n" + "\n".join(f"- {line}" for line in evidence))
    if first.rule.remedy[1:]:
        parts.append("Then:\n\n" + "\n".join(f"1. {text}" for text in first.rule.remedy[1:]))
    return "\n\n".join(part for part in parts if part)
