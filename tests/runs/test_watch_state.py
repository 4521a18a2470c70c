import json
import os

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.report.fleet import FleetRow
from tracker_diag.runs.watch_state import RunState, open_state, replace_file, short_hash


def opened(folder, source="runs", *, project=True):
    return open_state(folder, source, project=project)


def test_the_next_watch_reads_what_this_one_saved(tmp_path):
    with opened(tmp_path / "state") as state:
        state.runs["a"] = RunState(row=FleetRow("a", "ok", ""), underway=True, mark="1", sent={"log": ["id"]})
        state.save()
    with opened(tmp_path / "state") as later:
        assert later == state
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["lock", "watch.json"]


def test_two_watches_at_once_are_refused(tmp_path):
    with opened(tmp_path), pytest.raises(DiagError, match="another watch has it open"), opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"version": 1, "source": "runs", "project": True, "began": 0.0}, "version 1 given, expected 2"),
        ({"version": 2, "source": "others", "project": True}, "source 'others' given, expected 'runs'"),
        ({"version": 2, "source": "runs", "project": False}, "project False given, expected True"),
        ({"version": 2, "source": "runs", "project": True, "runs": {"a": {"mark": 3}}}, "damaged: runs.a.row"),
        ({"version": 2}, "damaged: KeyError: 'source'"),
        ([2], "damaged: TypeError"),
        ('{"version": 2, "sou', "damaged: JSONDecodeError"),
        ("", "damaged: JSONDecodeError"),
    ],
)
def test_an_old_or_damaged_file_is_refused_in_one_line_and_stays_as_it_is(content, message, tmp_path):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "watch.json").write_text(text)
    with pytest.raises(DiagError) as error, opened(tmp_path):
        pass
    assert message in str(error.value)
    assert str(error.value).endswith("delete the folder to begin anew, or name another with --state")
    assert "\n" not in str(error.value)
    assert (tmp_path / "watch.json").read_text() == text


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError, match=r"file: .*; name another folder with --state"), opened(tmp_path / "file"):
        pass


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    file = tmp_path / "page.html"
    replace_file(file, "first")
    replace_file(file, "second \ud800")  # half of a character
    assert file.read_text() == "second ?"
    with pytest.raises(OSError, match=r"."):
        replace_file(tmp_path / "nowhere" / "page.html", "third")
    assert os.listdir(tmp_path) == ["page.html"]  # noqa: PTH208


def test_a_short_hash_depends_on_each_part():
    assert short_hash("a", "b") != short_hash("ab") != short_hash("b", "a")
    assert short_hash("a", 1) == short_hash("a", 1)
