import json
import os

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.runs.logbook import Logbook, LogbookInUse, replace_file, short_hash


def opened(folder, source="runs", *, project=True):
    return Logbook(folder, source, project=project)


def test_what_was_kept_and_told_is_there_for_the_next_one(tmp_path):
    first = opened(tmp_path / "state")
    assert (first.run("a"), first.outcome("n1", "log"), first.runs()) == (None, None, [])
    first.keep("a", {"mark": "1", "odd": float("inf")})
    first.keep("a", {"mark": "2"})
    for outcome in ("begun", "told"):
        first.write("n1", "log", outcome)
    first.write("n2", "log", "begun")
    first.close()
    second = opened(tmp_path / "state")
    assert second.run("a")["mark"] == "2"
    assert [name for name, _ in second.runs()] == ["a"]
    assert [second.outcome(n, "log") for n in ("n1", "n2", "n3")] == ["told", "begun", None]
    assert second.outcome("n1", "other") is None
    assert second.began == first.began
    second.close()


def test_two_at_once_are_refused(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(LogbookInUse, match="another watch is at work here"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


@pytest.mark.parametrize(("source", "project"), [("others", True), ("runs", False)])
def test_the_state_of_another_watch_is_refused(source, project, tmp_path):
    opened(tmp_path).close()
    with pytest.raises(DiagError, match=r"the state of another watch: .* given, expected .*; --state names another"):
        opened(tmp_path, source, project=project)
    opened(tmp_path).close()


def test_another_version_is_refused_and_left_as_it_is(tmp_path):
    opened(tmp_path).close()
    about = json.loads((tmp_path / "watch.json").read_text())
    (tmp_path / "watch.json").write_text(json.dumps(about | {"version": 99}))
    with pytest.raises(DiagError, match="version 99 given, expected 1"):
        opened(tmp_path)
    assert json.loads((tmp_path / "watch.json").read_text())["version"] == 99


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError, match=r"file: .*; --state names another folder"):
        opened(tmp_path / "file")


def test_damage_costs_no_more_than_what_is_damaged(tmp_path):
    first = opened(tmp_path)
    first.keep("a", {"mark": "1"})
    first.keep("b", {"mark": "1"})
    first.write("n1", "log", "told")
    first.close()
    with (tmp_path / "told.jsonl").open("ab") as out:
        out.write(b'{"id": "n2", "to": "lo')  # a power cut
    (tmp_path / f"run-{short_hash('a')}.json").write_text('{"version": 1, "sou')
    second = opened(tmp_path)
    assert second.run("a") is None
    assert second.run("b")["mark"] == "1"
    second.write("n3", "log", "told")
    second.close()
    third = opened(tmp_path)
    assert [third.outcome(n, "log") for n in ("n1", "n2", "n3")] == ["told", None, "told"]
    third.close()


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    file = tmp_path / "page.html"
    replace_file(file, "one")
    replace_file(file, "two \ud800")  # half of a character
    assert file.read_text() == "two ?"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(OSError, match=r"."):
        replace_file(tmp_path / "nowhere" / "page.html", "three")
    assert os.listdir(tmp_path) == ["page.html"]  # noqa: PTH208


def test_a_short_hash_tells_parts_apart():
    assert short_hash("a", "b") != short_hash("ab") != short_hash("b", "a")
    assert short_hash("a", 1) == short_hash("a", 1)
