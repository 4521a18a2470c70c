"""The prose linter sees what it should, and what is listed as old is no more than there is."""

import runpy
from pathlib import Path

import pytest

PROSE = runpy.run_path(str(Path(__file__).with_name("prose.py")))
LONG = " ".join(f"word{i}" for i in range(21))


def mistakes(markdown):
    return [what for _, text in PROSE["paragraphs"](markdown) for what in PROSE["mistakes"](text)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("You are told of it.", 1),
        ("Training goes on. The report stands beside it.", 3),
        ("| a | whoever\nreads |", 1),
        (LONG, 1),
        (f"{LONG} `code`.", 1),
        ("- A list item\n- and another", 0),
        ("`told` and ``a `told` b`` are code. [link](docs/told.md)", 0),
        ("```\nwhoever is told\n```", 0),
        ("We recommend a besides-free, untold standstill: believe it.", 0),
        (LONG.replace("word10 ", "word10. "), 0),
    ],
)
def test_retired_words_and_long_sentences_are_seen_outside_code(text, number):
    assert len(mistakes(text)) == number


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("one = 1", 1),
        ("def f(of, other): return [found for found in other]", 2),
        ("class A:\n    def add(self): pass", 1),
        ("class Tracker:\n    def read(self): pass\nclass Own(Tracker):\n    def read(self): pass", 0),
        ("class Own(Tracker):\n    def tell(self): pass", 1),
        ("said.one = told(of=1)", 0),
    ],
)
def test_names_that_say_nothing_are_seen_where_they_are_defined(code, number):
    assert len([*PROSE["names"](code)]) == number


def test_a_new_mistake_fails_and_an_old_one_does_not(monkeypatch, tmp_path):
    names = PROSE["main"].__globals__
    monkeypatch.setitem(names, "texts", lambda: [("old.md", 1, "told"), ("new.md", 7, "beside")])
    monkeypatch.setitem(names, "name_reports", list)
    monkeypatch.setitem(names, "EXCEPTIONS", tmp_path / "exceptions.txt")
    (tmp_path / "exceptions.txt").write_text("old.md 1\n")
    with pytest.raises(SystemExit) as end:
        PROSE["main"]()
    assert end.value.code == "new.md:7: 'beside' is retired, say 'next to'\nnew.md: 1 given, 0 allowed"
    (tmp_path / "exceptions.txt").write_text("old.md 1\nnew.md 1\n")
    PROSE["main"]()


@pytest.mark.slow
def test_rules_helps_and_pages_are_all_read():
    files = {file for file, _, _ in PROSE["texts"]()}
    assert {"README.md", "docs/inputs.md", "tracker_diag/rules/catalog/POL001.yaml", "tracker_diag/cli"} <= files
    assert "docs/rules/POL001.md" not in files  # made from the rule
