"""Prompts of an evaluation in the training set: after normalisation, and by n-grams."""

from tracker_diag.samples.audit.overlap import overlap, words

LONG = "a farmer has twelve cows and buys five more how many cows does the farmer have now"


def test_case_punctuation_and_compatible_forms_make_no_difference():
    assert words("Ｗhat's  2+2?\n") == words("what s 2 2")
    assert words("速度は？") == ["速", "度", "は"]


def hits(training, evaluation):
    return [(hit.row, hit.training, hit.exact) for hit in overlap(training, evaluation)]


def test_thirteen_words_in_common_are_a_hit_and_twelve_are_not():
    thirteen, twelve = LONG.split()[:13], LONG.split()[:12]
    assert hits([LONG], [f"Tell me: {' '.join(thirteen)} or what else is there to say"]) == [(0, 0, False)]
    assert hits([LONG], [f"Tell me: {' '.join(twelve)} or what else is there to say"]) == []


def test_a_short_text_is_compared_as_a_whole():
    assert hits([LONG], [" ".join(LONG.split()[:8])]) == [(0, 0, False)]
    assert hits([LONG], [" ".join(LONG.split()[:7])]) == []
    assert hits(["x", "Why?", "why"], ["WHY"]) == [(0, 1, True)]


def test_an_instruction_that_many_prompts_share_is_no_hit():
    instruction = "please answer step by step and put the final answer into a box at the end"
    training = [f"{instruction} question number {i}" for i in range(11)]
    assert hits(training, [f"{instruction} and another question"]) == []
    assert hits(training[:10], [f"{instruction} and another question"]) == [(0, 0, False)]


def test_empty_texts_are_in_no_set():
    assert hits(["", None, "?"], ["", None, "!"]) == []
