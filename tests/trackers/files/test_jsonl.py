import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.read import read_jsonl, read_metrics
from tracker_diag.trackers.keys import CLOCKS, NO_METRICS, STEPS


def test_lines_of_a_step_are_merged_and_steps_are_sorted(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 3, "a": 1}\n\n{"step": 1, "a": 2, "diag/x": 9}\n{"step": 3, "b": 4}\n')
    assert read_metrics(file) == {1: {"a": 2}, 3: {"a": 1, "b": 4}}


def test_nan_and_infinity_are_read_back(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1, "a": "nan", "b": "inf", "c": "-inf", "d": "text"}\n')
    assert repr(read_metrics(file)[1]) == "{'a': nan, 'b': inf, 'c': -inf}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 1}\n{"step": 2', "m.jsonl:2: no JSON object: "),
        ('{"a": 1}\n', "m.jsonl:1: step is 'None', expected a whole number"),
        ("[1]\n", "m.jsonl:1: list given, expected a JSON object"),
        ('{"step": true}\n', "m.jsonl:1: step is 'True', expected a whole number"),
        ("[" * 100_000 + "\n", "m.jsonl:1: no JSON object: "),
        ('{"step": "1"}\n', "m.jsonl:1: step is '1', expected a whole number"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(tmp_path, text, message):
    file = tmp_path / "m.jsonl"
    file.write_text(text)
    with pytest.raises(SourceError) as error:
        read_metrics(file)
    assert message in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        read_metrics(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(SourceError, match="binary:1: no JSON object"):
        read_metrics(tmp_path / "binary")


def run_of(tmp_path, text, name="m.jsonl"):
    file = tmp_path / name
    file.write_text(text)
    return read_jsonl(file, "it")


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8).filter(
    lambda key: key not in {*STEPS, *CLOCKS, *NO_METRICS, "config", "data"}
)
ROWS = st.dictionaries(
    st.integers(-(10**9), 10**9), st.dictionaries(KEYS, st.floats(), min_size=1, max_size=4), min_size=1, max_size=8
)


def same(left, right):
    return repr({step: sorted(row.items()) for step, row in left.items()}) == repr(
        {step: sorted(row.items()) for step, row in right.items()}
    )


@pytest.mark.slow
@settings(deadline=None)
@given(ROWS, st.randoms())
def test_any_rows_come_back(tmp_path_factory, rows, random):
    lines = [json.dumps({"step": step, **row}) for step, row in rows.items()]
    random.shuffle(lines)
    file = tmp_path_factory.mktemp("j") / "m.jsonl"
    file.write_text("\n".join(lines) + "\n")
    run = read_jsonl(file, "it")
    if not any("padding" in note for note in run.notes):
        assert same(run.rows, dict(sorted(rows.items())))
    assert list(run.rows) == sorted(rows)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 3, "reward": 0.5}',
        '{"_step": 3, "reward": 0.5, "_timestamp": 5.0}',
        '{"train/global_step": 3.0, "reward": 0.5}',
        '{"step": 3, "data": {"reward": 0.5}}',
        '{"training_iteration": 3, "reward": 0.5, "config": {"lr": 1, "model": {"size": 2}}}',
    ],
)
def test_the_step_has_many_names(tmp_path, line):
    run = run_of(tmp_path, line + "\n")
    assert run.rows == {3: {"reward": 0.5}}
    assert run.config in ({}, {"lr": 1, "model.size": 2})
    assert run.notes == ()


def test_nested_rows_lists_texts_and_the_time(tmp_path):
    text = '{"step": 0, "info": {"kl": 0.1}, "list": [1], "timestamp": "2026-01-01T00:00:00Z"}\n'
    text += '{"step": 1, "info": {"kl": "NaN"}, "note": "x", "timestamp": "2026-01-01T00:01:00Z"}\n'
    run = run_of(tmp_path, text)
    assert list(run.rows[0].items()) == [("info/kl", 0.1)]
    assert math.isnan(run.rows[1]["info/kl"])
    assert run.seconds == {0: 0.0, 1: 60.0}
    assert run.notes == ("values that are no numbers, left out: 2, first 'list' at line 1",)


def test_rows_without_any_step_are_counted(tmp_path):
    run = run_of(tmp_path, '{"loss": 1}\n{"loss": 2}\n')
    assert run.rows == {0: {"loss": 1.0}, 1: {"loss": 2.0}}
    assert "rows are counted from 0" in run.notes[0]


def test_some_rows_without_a_step_are_reported(tmp_path):
    run = run_of(tmp_path, '{"meta": 1}\n{"step": 1, "loss": 2}\n{"step": null, "loss": 3}\n')
    assert run.rows == {1: {"loss": 2.0}}
    assert run.notes == ("rows without a step, left out: 2, first line 1",)


@pytest.mark.parametrize("tail", ['{"step": 2, "lo', '{"step": 2, "loss": "\u00e9'.encode()[:-1], b"\0\0\0\0"])
def test_a_last_line_that_breaks_off_is_a_note(tmp_path, tail):
    file = tmp_path / "m.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"step": 1, "loss": 1}\n' + (tail if isinstance(tail, bytes) else tail.encode()))
    run = read_jsonl(file, "it")
    assert run.rows == {1: {"loss": 1.0}}
    assert run.notes in ((), ("the last line, 2, breaks off and was left out",))


@pytest.mark.slow
def test_progress_rises_to_the_end(tmp_path):
    shown = []
    file = tmp_path / "m.jsonl"
    file.write_text("".join(f'{{"step": {i}, "text": "{"x" * 1000}", "a": 1}}\n' for i in range(6000)))
    read_jsonl(file, "it", shown.append)
    assert shown == sorted(shown)
    assert len(shown) >= 5
    assert 0.8 < shown[-1] <= 1.0
