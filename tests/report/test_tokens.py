import re
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.records import WorstSequence
from tracker_diag.report.html import render_html
from tracker_diag.report.tokens import (
    BROKEN,
    IN_TABLE,
    MOST_PLACES,
    OPEN,
    excerpt,
    groups,
    strengths,
    visible,
    worst_table,
)  # fmt: skip
from tracker_diag.rules.triage import Summary

HOSTILE = (
    "<script>alert(1)</script>", "</style><img src=x onerror=alert(1)>", "[bold]|`{{ 7*7 }}", "\x00\x1b[31m\r\n\t",
    "\u202egnp.exe\u2066", "\ud800", "مرحبا", "🤖👩\u200d💻", "x" * 200, "", "\u2028",
)  # fmt: skip


def sequence(n=100, at=70, output=range(20, 30), ratios=None, **given):
    """A sequence of `n` tokens, five of a prompt, with a tool result; the largest log-ratio is −2 at `at`."""
    kinds = np.arange(n)
    tool_output = np.isin(kinds, list(output))
    sampled = (kinds >= 5) & ~tool_output
    r = np.where(sampled, 0.05, 0.0) if ratios is None else ratios.copy()
    r[at] = -2.0 if ratios is None else r[at]
    about = {
        "pair": "policy", "slice": "post_tool", "onset": 80, "moment": "worst", "step": 112, "batch": 0, "sequence": 5,
        "tool": "search", "length": n, "first": 1000, "position": 1000 + at, "limit": 0.1, "share": 0.25,
        "logprobs": np.stack([r, np.zeros(n)]), "sampled": sampled, "tool_output": tool_output, "in_slice": sampled,
    }  # fmt: skip
    return WorstSequence(**about | given)


def spelled(item, word="w{}"):
    return tuple(word.format(i) for i in range(item.in_slice.size))


def page(*sequences):
    return render_html(Summary("x", 120, 0, 119, (), {}, (), worst=sequences), [worst_table(sequences)])


def test_a_token_is_as_strong_as_it_is_far_beyond_the_limit():
    values = np.array([0.0, 0.1, 0.11, -0.21, 0.41, -0.9, np.nan, np.inf, -0.09, 3.0])
    item = sequence(10, 5, (), values, sampled=np.array([True] * 9 + [False]))
    assert strengths(item).tolist() == [0, 0, 1, 2, 3, 4, BROKEN, BROKEN, 0, 0]


def test_the_excerpt_is_what_stands_around_the_largest_and_the_end_of_the_tool_result_before_it():
    assert excerpt(sequence(200, 150, range(20, 80))) == [range(56, 80), range(110, 171)]
    assert excerpt(sequence(200, 50, range(20, 80))) == [range(10, 71)]  # the largest is in what came first
    assert excerpt(sequence(200, 85, range(60, 80))) == [range(45, 106)]
    assert excerpt(sequence(200, 120, range(40, 80))) == [range(56, 141)]
    assert excerpt(sequence(200, 7, ())) == [range(5, 28)]  # no prompt


@given(st.integers(5, 199), st.integers(0, 190), st.integers(0, 200))
def test_parts_of_an_excerpt_are_in_the_window_and_do_not_overlap(at, begin, length):
    item = sequence(200, at, range(begin, min(begin + length, 200)))
    parts = excerpt(item)
    assert any(at in part for part in parts)
    assert sum(map(len, parts)) <= 61 + 24
    assert all(0 <= part.start < part.stop <= 200 for part in parts)
    assert all(a.stop < b.start for a, b in pairwise(parts))


@pytest.mark.slow
@given(st.text())
def test_nothing_visible_steers_or_turns_a_line(text):
    shown = visible(text + "\u202e\u2028\x9b\ud800")
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\ufeff")
    shown.encode()


def test_what_is_legible_stays_as_it_is():
    assert visible('{"a": [1]} مرحبا 👩\u200d💻') == '{"a": [1]} مرحبا 👩\u200d💻'
    assert visible("a\n\tb\x00\x1b\u202e") == "a↵⇥b␀␛⟨202E⟩"


def test_the_table_has_one_type_a_column_and_says_what_is_no_number():
    broken = np.full(100, 0.05)
    broken[70] = np.nan
    table = worst_table([sequence(), sequence(ratios=broken, share=None)])
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert rows[0] == {
        "pair": "policy", "slice": "post_tool", "onset": 80, "moment": "worst", "step": 112, "batch": 0, "sequence": 5,
        "tool": "search", "position": 1070, "length": 100, "log_ratio": -2.0, "share": 0.25,
        "excerpt": "·" * 16 + "«█»" + "·" * 16,
    }  # fmt: skip
    assert (rows[1]["log_ratio"], rows[1]["share"]) == (None, None)
    assert "«×»" in rows[1]["excerpt"]


def test_the_tables_excerpt_is_text_with_the_tool_result_in_brackets():
    item = sequence(100, 40, range(20, 30))
    text = worst_table([sequence(100, 40, range(20, 30), texts=spelled(item, "w{} "))]).rows[0][-1]
    assert text.startswith("w5 w6 ")
    assert "[w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 ]w30 " in text
    assert "w39 «w40 »w41 " in text
    long = worst_table([sequence(texts=spelled(item, "a long token {} "))]).rows[0][-1]
    assert "«a long token 70 »" in long
    assert len(long) == IN_TABLE
    assert long.startswith("…")


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_and_names_are_text(hostile):
    item = sequence()
    text = page(sequence(texts=(hostile,) * item.in_slice.size, tool=hostile[:40], slice="tool:" + hostile[:40]))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("</style>") == 2
    assert "onerror=alert(1)>" not in text
    assert not set(text) & set("\x00\x1b\u202e\u2066\ud800")
    assert "http" not in text


def test_the_page_names_place_step_sequence_tool_and_position():
    text = page(sequence(), sequence(moment="first", step=90, sequence=7, batch=2, tool="", share=None))
    assert "policy, post_tool, since step 80" in text
    assert "Step 112, sequence 5</strong>" in text
    output = "the worst step · after tool search · largest log-ratio -2 at position 1,070 of 100 · 25 % of the window"
    assert output in text
    assert "Step 90, sequence 7</strong> of batch 2 <span" in text
    assert "the first step that was kept · largest" in text
    assert WORST_TABLE not in text  # the section says the same


WORST_TABLE = "diag/worst_sequences"


@pytest.mark.slow
def test_a_token_is_coloured_by_sign_and_strength_the_largest_marked_and_tool_results_boxed():
    item = sequence(100, 40, range(20, 30))
    r = np.where(item.sampled, 0.05, 0.0)
    r[38], r[39], r[40] = 0.15, -0.25, 1.0
    shown = sequence(100, 40, range(20, 30), r, texts=spelled(item))
    text = page(shown)
    assert '<span class="p1" title="position 1038: +0.15">w38</span>' in text
    assert '<span class="m2" title="position 1039: -0.25">w39</span>' in text
    assert '<span class="p4 largest" title="position 1040: +1">w40</span><span>w41</span>' in text
    boxed = re.search(r'<span class="tool" title="search">(.*?)</span></span>', text)[1]
    assert re.findall(r"w\d+", boxed) == [f"w{i}" for i in range(20, 30)]
    assert "w4<" not in text  # of the prompt nothing is shown
    assert page(sequence()).count('<p class="said">') == 0


def test_a_strip_has_a_bar_a_token_up_or_down_and_its_place_in_hundredths():
    ratios = np.array([0.0, 0.1, -0.3, np.nan, 0.0, 0.0])
    item = sequence(6, 2, range(4, 6), ratios, sampled=np.array([True] * 4 + [False] * 2))
    (group,) = groups([item])
    (strip,) = group.shown
    assert (strip.up, strip.down, strip.broken) == ("M1.5 50v-25", "M2.5 50v50", "M3.5 0v100")
    assert (strip.first, strip.last, strip.tokens) == (1000, 1005, 6)
    assert strip.tools == (pytest.approx((400 / 6, 200 / 6)),)
    assert strip.at == pytest.approx(250 / 6)
    assert group.usual == 25
    assert group.edges == (0.1, 0.2, 0.4, 0.8)


@pytest.mark.nightly
def test_however_many_there_are_the_page_stays_below_two_megabytes():
    texts = ("<&\"'>" * 40,) * 512
    rng = np.random.default_rng(0)
    kept = [
        sequence(512, 400, range(300, 380), rng.standard_t(2, 512), texts=texts, slice=f"tool:{place}", onset=place)
        for place in range(16)
        for _ in range(24)
    ]
    result = groups(kept)
    assert len(result) == MOST_PLACES
    assert {len(item.shown) for item in result} == {OPEN}
    text = page(*kept)
    assert len(text.encode()) < 2_000_000
    assert f"{8 - OPEN} more, of this step and of others" in text


@pytest.mark.slow
def test_a_page_without_sequences_has_no_such_section():
    assert "behind the tail" not in page()
