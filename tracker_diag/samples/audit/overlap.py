"""Prompts that are met twice: in the training set, and in training and evaluation.

By text after normalisation, and by n-grams of 13 words as in appendix C of Brown et al., "Language Models are Few-Shot
Learners" (2020). Of a text of 8 to 12 words all of it is one n-gram; shorter ones are compared as a whole.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LONGEST, SHORTEST = 13, 8
"""Words of an n-gram, and of a text below which only all of it is compared."""
COMMON = 10
"""Different prompts from which on an n-gram is taken for an instruction that they share; of the same paper."""

WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W_]+")
"""A word, or one character of a script that puts no blanks between words."""


@dataclass(frozen=True)
class Hit:
    """A row of the evaluation set that is in the training set."""

    row: int
    training: int
    """The first row of it there."""
    exact: bool
    """Whether it is the whole prompt, or one n-gram of it."""


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation; characters in their compatible form."""
    return WORD.findall(unicodedata.normalize("NFKC", text).lower())


def duplicates(prompts: Sequence[str | None], identity: Sequence[object]) -> list[tuple[int, ...]]:
    """Prompts that are the same after normalisation though their identity says that they are several: a row of each.

    Args:
        identity: what tells prompts apart, hashable: the group, say.
    """
    first: dict[str, dict[object, int]] = defaultdict(dict)
    keys: dict[str, str] = {}  # each prompt is normalised once, however many samples it has
    for row, (prompt, owner) in enumerate(zip(prompts, identity, strict=True)):
        if prompt is not None:
            key = keys.get(prompt)
            if key is None:
                key = keys[prompt] = " ".join(words(prompt))
            first[key].setdefault(owner, row)
    return [tuple(rows.values()) for rows in first.values() if len(rows) > 1]


def overlap(training: Iterable[str | None], evaluation: Sequence[str | None]) -> list[Hit]:
    """Rows of the evaluation set that are in the training set, one hit each; an exact one counts before an n-gram.

    Memory grows with the evaluation set alone.
    """
    whole, grams = _index(evaluation)
    lengths = {gram.count(" ") + 1 for gram in grams}
    exact: dict[int, Hit] = {}
    seen: dict[str, list[int]] = defaultdict(list)
    known: set[str] = set()
    for at, text in enumerate(training):
        text_words = words(text or "")
        if (key := " ".join(text_words)) not in known:
            known.add(key)
            for row in whole.get(key, ()):
                exact.setdefault(row, Hit(row, at, True))
            for gram in (gram for n in lengths for gram in _grams(text_words, n) if gram in grams):
                seen[gram].append(at)
    rare = {gram: places[0] for gram, places in seen.items() if len(places) <= COMMON}
    partly = {row: Hit(row, at, False) for gram, at in rare.items() for row in grams[gram]}
    return [hit for _, hit in sorted({**partly, **exact}.items())]


def _index(evaluation: Sequence[str | None]) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]]]:
    """Rows of the evaluation set by their whole text and by their n-grams."""
    whole: dict[str, list[int]] = defaultdict(list)
    grams: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(evaluation):
        text_words = words(text or "")
        if text_words:
            whole[" ".join(text_words)].append(row)
        if len(text_words) >= SHORTEST:
            for gram in _grams(text_words, min(LONGEST, len(text_words))):
                grams[gram].append(row)
    return whole, grams


def _grams(text_words: Sequence[str], n: int) -> set[str]:
    return {" ".join(text_words[i : i + n]) for i in range(len(text_words) - n + 1)}
