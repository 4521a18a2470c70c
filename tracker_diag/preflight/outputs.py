"""What a tool answers: whether it has one form, and a length with a limit. Open outputs are where tails begin."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracker_diag.preflight.check import Check, Flaw, judged, unchecked

NAME = "tool_outputs"
FEWEST = 8
"""Answers below which there is no verdict."""
LONGEST = 20.0
"""How many times as long as the median the longest answer may be: a choice."""

GIVE = "give tool=..., and tool_arguments=... of as many kinds as training will ask"


def outputs_check(answers: Sequence[Any]) -> Check:
    """Whether the `answers` of a tool have one form, the same fields, and none is far longer than the others."""
    if len(answers) < FEWEST:
        return unchecked(NAME, f"{len(answers)} answers", GIVE)
    forms = Counter(map(_form, answers))
    lengths = np.array([len(str(answer)) for answer in answers], float)
    longest = float(lengths.max() / max(np.median(lengths), 1.0))
    named = "; ".join(f"{form} {times} times" for form, times in forms.most_common(4))
    reason = f"{len(answers)} answers have {len(forms)} forms: {named}"
    same = "let it answer with the same fields each time, an error too; what varies in form is new to the policy"
    cut = "cut its answers at a limit, or have it give the part that was asked for"
    flaws: list[Flaw] = [
        (len(forms) > 1, reason, same),
        (longest > LONGEST, f"its longest answer has {longest:.0f} times the length of the median", cut),
    ]
    return judged(NAME, f"all {len(answers)} answers are {next(iter(forms))}", flaws, forms=len(forms), longest=longest)


def _form(answer: Any) -> str:
    """Its kind, and of a mapping or of JSON text with one the names of its fields."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            return "text"
    if isinstance(answer, dict):
        return f"fields {', '.join(sorted(map(str, answer))) or 'none'}"
    return "a number" if isinstance(answer, int | float) else type(answer).__name__
