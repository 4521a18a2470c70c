import json

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.report.fleet import FleetRow
from tracker_diag.runs.watch import FILE, VERSION, WatchState
from tracker_diag.runs.watched_run import RunState


def kept_in(folder, source="runs", *, project=True):
    return WatchState.kept_in(folder, source, project=project)


def test_the_next_watch_reads_what_this_one_saved(tmp_path):
    state = kept_in(tmp_path)
    state.runs["a"] = RunState(row=FleetRow("a", "ok", ""), underway=True, mark="1", sent={"log": ["id"]})
    (tmp_path / FILE).write_text(state.model_dump_json())
    assert kept_in(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


OF_THIS = {"version": VERSION, "source": "runs", "project": True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (OF_THIS | {"version": 2, "logbook": []}, f"version 2 given, expected {VERSION}"),
        (OF_THIS | {"source": "others"}, "source 'others' given, expected 'runs'"),
        (OF_THIS | {"project": False}, "project False given, expected True"),
        (OF_THIS | {"runs": {"a": {"mark": 3}}}, "damaged: runs.a.row"),
        ({"version": VERSION}, "damaged: source"),
        ([2], "damaged: "),
        ("", "damaged: "),
    ],
)
def test_an_old_or_damaged_file_is_refused_in_one_line_and_stays_as_it_is(content, message, tmp_path):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DiagError) as error:
        kept_in(tmp_path)
    assert message in str(error.value)
    assert str(error.value).endswith("to start over, or name another folder with --state")
    assert "\n" not in str(error.value)
    assert (tmp_path / FILE).read_text() == text


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError, match=r"file.*; name another folder with --state"):
        kept_in(tmp_path / "file")
