"""The prose linter sees what it should."""

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


def test_a_mistake_fails_with_file_line_and_a_better_word(monkeypatch):
    names = PROSE["main"].__globals__
    monkeypatch.setitem(names, "texts", lambda: [("new.md", 7, "beside")])
    monkeypatch.setitem(names, "name_reports", list)
    monkeypatch.setitem(names, "test_reports", list)
    with pytest.raises(SystemExit) as end:
        PROSE["main"]()
    assert end.value.code == "new.md:7: 'beside' is retired, say 'next to'"


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("a.py", '"""It is told.\n\n    f(told)\n\n>>> told\n"""\n', 1),
        ("a.py", 'raise ValueError(f"{x} is told, and {y} lies beside it")\n', 3),
        ("a.py", "x = 1  # told\ny = 2  # noqa: S101  # who is told\n", 2),
        ("a.py", f"# {LONG[:60]}\n# {LONG[60:]}\n", 1),
        ("a.py", 'PATTERN = r"(told) \\d+ beside that"\n', 0),
        ("a.yaml", "note: all of it is told\nseries: 1 2 3 4\nbeside: told  # whoever\n", 2),
        ("a.html.j2", '<p title="It is told">{{ told }} whoever</p><style>/* beside */</style>', 3),
        ("Makefile", "told: all  ## what is told\n", 1),
    ],
)
def test_docstrings_comments_messages_and_templates_are_read(monkeypatch, tmp_path, name, text, number):
    monkeypatch.setitem(PROSE["read_file"].__globals__, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    parts = [part if isinstance(part, str) else " ".join(part) for _, part in PROSE["read_file"](name)]
    assert len([what for part in parts for what in PROSE["mistakes"](part)]) == number


@pytest.mark.slow
def test_rules_helps_and_pages_are_all_read():
    files = {file for file, _, _ in PROSE["texts"]()}
    assert {"README.md", "Makefile", "tracker_diag/rules/catalog/POL001.yaml", "tracker_diag/cli"} <= files
    assert {
        "tracker_diag/report/report.html.j2",
        "tracker_diag/errors.py",
        "integrations/tracker_diag_trl/about.yaml",
    } <= files
    assert "docs/rules/POL001.md" not in files  # made from the rule


def test_of_a_test_docstrings_and_comments_are_read_and_no_data():
    code = '"""All of it is told."""\nx = "data that is told here"  # whoever reads\n'
    assert [text.strip() for _, text in PROSE["notes"](code)] == ["All of it is told.", "whoever reads"]
