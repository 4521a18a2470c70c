"""Objects of a file however they stand in it, and what is broken in it."""

import json
from types import SimpleNamespace

import pytest

import tracker_diag as td
from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.read import documents
from tracker_diag.trackers.odd import Odd

ROWS = [{"n": 1, "of": {"x": [1]}}, {"n": 2}, {"n": 3}]


def objects_of(tmp_path, text):
    file = tmp_path / "traces.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    odd = Odd()
    return [item for _, item in documents(file, odd)], odd.notes


@pytest.mark.parametrize(
    "text",
    [
        "".join(json.dumps(row) + "\n" for row in ROWS),
        "".join(json.dumps(row, indent=4) + "\n" for row in ROWS),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\ufeff\n" + "\n\n".join(map(json.dumps, ROWS)),
    ],
    ids=["lines", "indented", "list", "indented list", "byte order mark and blank lines"],
)
def test_objects_are_found_however_they_stand(tmp_path, text):
    assert objects_of(tmp_path, text) == (ROWS, ())


def test_one_broken_line_in_the_middle_is_left_out_and_reported(tmp_path):
    result, (note,) = objects_of(tmp_path, '{"n": 1}\n{"n": \n{"n": 3}\n')
    assert [item["n"] for item in result] == [1, 3]
    assert note.startswith("lines that cannot be read, left out: 1, first line 2: ")


def test_an_indented_object_that_breaks_off_takes_no_other_with_it(tmp_path):
    result, (note,) = objects_of(tmp_path, '{\n "n": 1\n{\n "n": 2\n}\n{\n "n": 3\n')
    assert result == [{"n": 2}]
    assert note == "objects that cannot be read, left out: 2, first line 1: it breaks off"


def test_a_list_that_breaks_off_gives_what_came_before(tmp_path):
    result, (note,) = objects_of(tmp_path, '[{"n": 1}, {"n": 2}, {"n"')
    assert result == [{"n": 1}, {"n": 2}]
    assert note == "lists that break off: 1, first after element 2"


def test_binary_in_text_is_replaced_and_reported(tmp_path):
    result, (note,) = objects_of(tmp_path, b'{"n": "\xff\xfe\x00"}\n'.replace(b"\x00", b"\\u0000"))
    assert result == [{"n": "\ufffd\ufffd\0"}]
    assert note == "lines with bytes that are no UTF-8: 1, first line 1"


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "the file is empty"), (" \n\n", "the file is empty"), ("1\n2\n", "no JSON object"), ("[", "no JSON object"),
     ("step 1 loss 2\n", "cannot be read")],
)  # fmt: skip
def test_what_holds_no_object_is_refused(tmp_path, text, says):
    with pytest.raises(SourceError, match=says):
        objects_of(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        list(documents(tmp_path / "none.json", Odd()))


def test_the_traces_of_another_packages_store_are_read_by_its_entry_point(monkeypatch):
    from tracker_diag.samples.traces import read as opened

    def traces_in(name, source, odd):
        yield "first", {"messages": [{"role": "user", "content": name}, {"role": "assistant", "content": "done"}]}

    entry = SimpleNamespace(name="shelf", load=lambda: traces_in)
    monkeypatch.setattr(opened, "entry_points", lambda group: [entry])
    assert len(opened.records_in("shelf:books", Odd())) == 1
    with pytest.raises(td.DiagError, match="no such file; runs of trackers begin with shelf:"):
        opened.records_in("mlflow:books", Odd())


def test_a_chat_without_turns_one_of_500_and_a_tool_that_answers_nothing_are_read(tmp_path):
    def asks(number):
        return {"role": "assistant", "tool_calls": [{"id": str(number), "function": {"name": "f", "arguments": "{}"}}]}

    def answers(number, content):
        return {"role": "tool", "tool_call_id": str(number), "content": content}

    asked = {"role": "user", "content": "go"}
    long = [message for turn in range(500) for message in (asks(turn), answers(turn, "ok"))]
    mute = [asks(0), answers(0, ""), asks(1), answers(1, None), asks(2), {"role": "tool", "tool_call_id": "2"}]
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps({"messages": [asked, *more]}) + "\n" for more in ([], long, mute)))
    report = td.read_traces(str(file))
    assert [(record.get("turns"), len(record.get("calls", ()))) for record in report.records] == [
        (None, 0), (500, 500), (3, 3),
    ]  # fmt: skip
    assert [(row.tool, row.calls, row.failed) for row in report.tools] == [("f", 503, 0.0)]
