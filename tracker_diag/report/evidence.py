"""What a finding rests on, in words: what speaks for it, and what does not."""

from tracker_diag.report.curves import main_finding
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import beginning, never_rose
from tracker_diag.rules.reading import Reading, different
from tracker_diag.rules.triage import Summary


def speaks_for(finding: Finding) -> list[str]:
    """The readings that hold, one a series."""
    texts: dict[str, str] = {}
    for reading in finding.evidence:
        known = reading.holds and reading.value is not None
        if known and (reading.series not in texts or reading.baseline is not None):
            texts[reading.series] = in_words(reading)
    return list(texts.values())


def speaks_against(finding: Finding) -> list[str]:
    """What was looked at next to the condition and is calm: it may be a sign that the finding is none."""
    support = {*finding.rule.support}
    calm = [it for it in finding.evidence if it.signal in support and it.holds is False and it.value is not None]
    return [f"{it.signal.replace('_', ' ')}: no; {in_words(it)}" for it in calm]


def damage(summary: Summary) -> list[str]:
    """What the first break has done to the outcome, as it is now: since when, its best level, its last one."""
    harmed = next((it.damage for it in summary.incidents if it.cause is main_finding(summary)), ())
    lines: dict[str, str] = {}
    for finding in harmed:
        outcome = _outcome(summary, finding)
        never = never_rose(finding)
        what = finding.summary if outcome is None or never else best_level(outcome)
        when = beginning(finding) if never else f"step {harmed_since(summary, finding)}"
        lines.setdefault(what, f"since {when}: {what}")
    return list(lines.values())


def harmed_since(summary: Summary, finding: Finding) -> int:
    """The onset of `finding`, a damage, or an earlier one by all rows of its outcome."""
    outcome = _outcome(summary, finding)
    lost = outcome.onset if outcome is not None and outcome.holds else None
    return finding.onset if lost is None else min(lost, finding.onset)


def _outcome(summary: Summary, finding: Finding) -> Reading | None:
    """The outcome that `finding` is about, as it is now."""
    levels = {outcome.series: outcome for outcome in summary.best}
    signs = sorted(finding.evidence, key=lambda reading: not reading.holds)
    keys = [key for reading in signs for key in (reading.series, *reading.keys)]
    return next((levels[key] for key in keys if key in levels), None)


def spent(summary: Summary) -> str:
    """The steps from the onset of what broke first to its end, or to that of the run; empty if there are none."""
    first = main_finding(summary)
    if first is None or summary.last_step is None:
        return ""
    begin = (summary.first_step or 0) if never_rose(first) else first.onset
    end = summary.last_step if first.resolved is None else first.resolved
    steps = max(end - begin, 0)
    return f"{steps:,} step{'s' * (steps != 1)}" if steps else ""


def outcomes(summary: Summary) -> list[str]:
    """Best and last level of reward and evaluation, of those that `damage` leaves out."""
    harm = " ".join(damage(summary))
    return [level for level in map(best_level, summary.best) if level not in harm]


def best_level(reading: Reading) -> str:
    """Of an outcome, its best level, where that was, and its last one; each is a mean over some rows."""
    now, best = different(reading.value or 0.0, reading.baseline or 0.0)
    return f"{reading.series} {now} recently, {best} at its best (mean of several steps up to {reading.at})"


def in_words(reading: Reading) -> str:
    """The series, its value, and what that is held against."""
    text = f"{reading.series} is {reading.value:.3g}"
    if reading.baseline is not None and reading.at is not None:
        text += f", from {reading.baseline:.3g} at step {reading.at}"
    elif reading.baseline is not None:
        times = reading.ratio is not None and reading.ratio > 0
        against = f"{reading.ratio:.3g} times its baseline of" if times else "in the baseline"
        text += f", {against} {reading.baseline:.3g}"
    of_tokens = "/" in reading.series  # a statistic of a slice, and no metric of the trainer's
    return f"{text} ({reading.n:,} tokens)" if reading.n and of_tokens else text
