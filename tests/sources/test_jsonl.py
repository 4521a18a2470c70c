import pytest

from tracker_diag import SourceError
from tracker_diag.sources.jsonl import read_metrics


def test_lines_of_a_step_are_merged_and_steps_are_sorted(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 3, "a": 1}\n\n{"step": 1, "a": 2, "diag/x": 9}\n{"step": 3, "b": 4}\n')
    assert read_metrics(file) == {1: {"a": 2}, 3: {"a": 1, "b": 4}}


def test_nan_and_infinity_are_read_back(tmp_path):
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1, "a": "nan", "b": "inf", "c": "-inf", "d": "text"}\n')
    assert repr(read_metrics(file)[1]) == "{'a': nan, 'b': inf, 'c': -inf, 'd': 'text'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 1}\n{"step": 2', "m.jsonl:2: no JSON object: "),
        ('{"a": 1}\n', "m.jsonl:1: expected an object with an integer step"),
        ("[1]\n", "m.jsonl:1: expected an object with an integer step"),
        ('{"step": true}\n', "m.jsonl:1: expected an object with an integer step"),
        ("[" * 100_000 + "\n", "m.jsonl:1: no JSON object: "),
        ('{"step": "1"}\n', "m.jsonl:1: expected an object with an integer step"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, text, message):
    file = tmp_path / "m.jsonl"
    file.write_text(text)
    with pytest.raises(SourceError) as error:
        read_metrics(file)
    assert message in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        read_metrics(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="binary: "):
        read_metrics(tmp_path / "binary")
