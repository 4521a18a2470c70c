"""What a finding rests on, in words: what speaks for it, and what does not."""

from tracker_diag.rules.findings import Finding, Reading


def speaks_for(finding: Finding) -> list[str]:
    """The readings that hold, one a series."""
    said: dict[str, str] = {}
    for reading in finding.evidence:
        if reading.holds and reading.value is not None and (reading.series not in said or reading.baseline is not None):
            said[reading.series] = in_words(reading)
    return list(said.values())


def speaks_against(finding: Finding) -> list[str]:
    """What was looked at beside the condition and is calm: it may be a sign that the finding is none."""
    support = {*finding.rule.support}
    calm = [one for one in finding.evidence if one.signal in support and one.holds is False and one.value is not None]
    return [f"{one.signal.replace('_', ' ')}: no; {in_words(one)}" for one in calm]


def in_words(reading: Reading) -> str:
    """The series, its value, and what that is held against."""
    text = f"{reading.series} is {reading.value:.3g}"
    if reading.baseline is not None:
        text += (
            f", from {reading.baseline:.3g} at step {reading.at}"
            if reading.at is not None
            else (
                f", {reading.ratio:.3g} times its baseline of {reading.baseline:.3g}"
                if reading.ratio is not None and reading.ratio > 0
                else f", in the baseline {reading.baseline:.3g}"
            )
        )
    of_tokens = "/" in reading.series  # a statistic of a slice, and no metric of the trainer's
    return f"{text} ({reading.n:,} tokens)" if reading.n and of_tokens else text
