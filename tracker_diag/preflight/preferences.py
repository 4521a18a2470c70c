"""Preference data: pairs that are equal, that hold the prompt as well, or that are the wrong way round."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, judged, unchecked

NAMES = EQUAL, PROMPT, ORDER = "pairs_equal", "pairs_prompt", "pairs_order"

WRONG = 0.5
"""Share of pairs in the wrong order from which on the two columns are swapped, and not the labels noisy."""

GIVE = "give preferences=..., a list of mappings with prompt, chosen and rejected"

Pairs = Sequence[Mapping[str, Any]]


def preference_checks(preferences: Pairs) -> Iterator[Check]:
    """Look at pairs, whose texts are strings, lists of messages or lists of ids.

    Raises:
        BatchError: a pair without chosen or rejected.
    """
    for i, pair in enumerate(preferences):
        if missing := [name for name in ("chosen", "rejected") if pair.get(name) is None]:
            raise BatchError(f"preferences[{i}]", f"a pair without {missing[0]}", "chosen and rejected in each")
    if not preferences:
        yield from (unchecked(name, "no pairs", GIVE) for name in NAMES)
        return
    yield _equal(preferences)
    yield _prompt(preferences)
    yield _order(preferences)


def _equal(pairs: Pairs) -> Check:
    same = [i for i, pair in enumerate(pairs) if _stripped(pair["chosen"]) == _stripped(pair["rejected"])]
    reason = (
        f"chosen and rejected are the same in {len(same)} of {len(pairs)} pairs, first in pair {min(same, default=0)}"
    )
    flaws = [(same, reason, "drop them: they cost a step and teach nothing")]
    return judged(EQUAL, f"chosen and rejected differ in all {len(pairs)} pairs", flaws, equal=len(same))


def _prompt(pairs: Pairs) -> Check:
    known = [(i, pair) for i, pair in enumerate(pairs) if pair.get("prompt")]
    if not known:
        return unchecked(PROMPT, "no pair has a prompt", "give prompt in each pair")
    holding = [i for i, pair in known if any(_begins(pair[name], pair["prompt"]) for name in ("chosen", "rejected"))]
    first = min(holding, default=0)
    reason = f"the answer begins with its prompt in {len(holding)} of {len(known)} pairs, first in pair {first}"
    do = "cut the prompt off chosen and rejected, or leave out the column prompt: it is there twice, and trained"
    flaws = [(holding, reason, do)]
    return judged(PROMPT, f"no answer of {len(known)} pairs begins with its prompt", flaws, holding=len(holding))


def _order(pairs: Pairs) -> Check:
    scores = [(pair.get("chosen_score"), pair.get("rejected_score")) for pair in pairs]
    known = [(float(a), float(b)) for a, b in scores if a is not None and b is not None and a != b]
    if not known:
        do = "give chosen_score and rejected_score in each pair, by whatever made or could judge them"
        return unchecked(ORDER, "nothing says which answer is better", do)
    wrong = sum(not a > b for a, b in known)
    reason = f"rejected has the higher score in {wrong} of {len(known)} pairs"
    flaws = [(wrong > WRONG * len(known), reason, "swap the two columns, or the sign of the score")]
    return judged(ORDER, reason, flaws, wrong=wrong)


def _stripped(answer: Any) -> Any:
    return answer.strip() if isinstance(answer, str) else answer


def _begins(answer: Any, prompt: Any) -> bool:
    return type(answer) is type(prompt) and bool(answer[: len(prompt)] == prompt)
