"""Prompts of an evaluation that are in the training set as well.

It compares text after normalisation, and n-grams of 13 words (Brown et al. 2020, "Language Models are Few-Shot
Learners", appendix C). A text of 8 to 12 words is one n-gram; shorter ones are compared as a whole.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracker_diag.samples.records import Record, prompt_of

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


@dataclass(frozen=True)
class Prompts:
    """The prompts of a file of samples, and which of an evaluation are among them."""

    texts: Sequence[str | None]
    """Of each sample."""
    different: int
    """How many there are, by group, or by text where there are no groups."""
    evaluation: Sequence[str | None] | None
    """Of the evaluation set, if one was given."""
    overlap: Sequence[Hit]

    @classmethod
    def from_records(cls, records: Sequence[Record], evaluation: Sequence[Record] | None) -> "Prompts":
        """Those of `records` and of `evaluation`; a prompt counts once for each step."""
        texts, groups = [prompt_of(record) for record in records], [record.get("group") for record in records]
        grouped = None not in groups
        owners = [repr(group) for group in groups] if grouped else texts
        steps = [repr(record.get("step")) if grouped else "" for record in records]  # a step may be anything
        different = {(step, owner) for step, owner in zip(steps, owners, strict=True) if owner is not None}
        held_out = None if evaluation is None else [prompt_of(record) for record in evaluation]
        return cls(texts, len(different), held_out, overlap(texts, held_out or ()))


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation; characters in their compatible form."""
    return WORD.findall(unicodedata.normalize("NFKC", text).lower())


def overlap(training: Iterable[str | None], evaluation: Sequence[str | None]) -> list[Hit]:
    """Rows of the evaluation set that are in the training set, one hit each; an exact one counts before an n-gram.

    Memory grows with the evaluation set alone.
    """
    whole: dict[str, list[int]] = defaultdict(list)
    grams: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(evaluation):
        if text_words := words(text or ""):
            whole[" ".join(text_words)].append(row)
        if len(text_words) >= SHORTEST:
            for gram in _grams(text_words, min(LONGEST, len(text_words))):
                grams[gram].append(row)
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


def _grams(text_words: Sequence[str], n: int) -> set[str]:
    return {" ".join(text_words[i : i + n]) for i in range(len(text_words) - n + 1)}
