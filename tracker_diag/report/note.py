"""The verdict in Markdown, for the page of a run in a tracker."""

from tracker_diag.report.evidence import damage, speaks_for
from tracker_diag.rules.triage import Summary


def note_on(summary: Summary, links: str, picture: str = "") -> str:
    """What broke first, what it has cost, whether to continue and what to do; the first lines say most.

    Args:
        links: to where more is to be seen.
        picture: of the time line.
    """
    first = summary.first_break
    but = "".join(f"\n\n**But** {caveat}." for caveat in (*summary.log, *summary.caveats))
    if first is None and not summary.judged:
        head, *lines = summary.short
        return "\n".join([f"**{head[0].upper()}{head[1:]}**. {links}", "", *(f"- {line}" for line in lines)]) + but
    if first is None:
        seen, blind = len(summary.healthy), len(summary.blind)
        return (
            f"**No rule fired at warn or above** in {summary.steps} steps: {seen} rules could see, {blind} could not. "
            f"{links}{but}"
        )
    (incident,) = (one for one in summary.incidents if one.cause is first)
    place = "" if first.slice == "all" else f", on {first.slice}"
    what = f"**{first.rule.title}{place}, from step {first.onset}** ({first.rule.id})."
    parts = [f"**The log**: {line}." for line in summary.log]
    parts += [f"{what} Detected at step {first.fired}: {first.summary}. {links}"]
    parts += [f"**Damage** {said}." for said in damage(summary)]
    parts += [f"**Continue?** {summary.recommendation.says}."] if summary.recommendation else []
    parts += [f"**Do first:** {first.rule.remedy[0]}"] if first.rule.remedy else []
    parts += [f"Over the last steps: {'; '.join(summary.tails)}."] if summary.tails else []
    parts += [picture] if picture else []
    if symptoms := incident.symptoms:
        parts.append("With it:\n\n" + "\n".join(f"- {finding}" for finding in symptoms))
    if said := speaks_for(first):
        parts.append("Why we think so:\n\n" + "\n".join(f"- {line}" for line in said))
    if first.rule.remedy[1:]:
        parts.append("Then:\n\n" + "\n".join(f"1. {text}" for text in first.rule.remedy[1:]))
    return "\n\n".join(parts)
