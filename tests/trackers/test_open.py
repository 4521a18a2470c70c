"""From a source to a run: what it is goes by its content, and whatever is wrong is one line that names the place."""

import json
import struct
import tracemalloc

import numpy as np
import pytest

from tracker_diag import DiagError
from tracker_diag.errors import SourceError
from tracker_diag.trackers.open import read_run

JSONL = '{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.25}\n'
STATE = json.dumps({"log_history": [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.25}]}, indent=2)
CSV = "step,reward\n1,0.5\n2,0.25\n"
VERL = "loading, please wait\nstep:1 - reward:0.5000 - x:1\nstep:2 - reward:0.25 - x:2\n"
TRL = "{'reward': 0.5, 'epoch': 0.1}\n{'reward': 0.25, 'epoch': 0.2}\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", JSONL),
        ("trainer_state.json", STATE),
        ("trainer_state.json", json.dumps(json.loads(STATE))),
        ("result.json", JSONL),
        ("result.json", json.dumps({"reward": [0.5, 0.25], "step": [1, 2]})),
        ("rows.json", "[\n" + JSONL.replace("}\n{", "},\n{") + "]"),
        ("progress.csv", CSV),
        ("table.tsv", CSV.replace(",", "\t")),
        ("table", CSV),
        ("train.log", VERL),
        ("out.txt", TRL),
        ("metrics.csv", JSONL),
        ("metrics.jsonl", CSV),
        ("run.wandb", JSONL),
        ("events.out.tfevents.1.host", STATE),
    ],
)
def test_a_file_is_what_its_content_says(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    shown = []
    run = read_run(str(file), shown.append)
    assert run.source == str(file)
    assert [row["reward"] for row in run.rows.values()] == [0.5, 0.25]
    assert list(run.rows) == [1, 2]
    assert shown[-1] == 1.0


def test_binary_files_are_recognised_whatever_their_name(tmp_path):
    np.savez(tmp_path / "evaluations.npz", timesteps=[5], results=[[1.0, 3.0]])
    (tmp_path / "evaluations.npz").rename(tmp_path / "backup")
    assert read_run(str(tmp_path / "backup")).rows == {5: {"eval/mean_reward": 2.0, "eval/std_reward": 1.0}}
    (tmp_path / "0.monitor.csv").write_text('#{"t_start": 1.0, "env_id": "x"}\nr,l,t\n1.0,10,1.0\n')
    assert read_run(str(tmp_path / "0.monitor.csv")).rows == {10: {"monitor/r": 1.0, "monitor/l": 10.0}}
    from torch.utils import tensorboard

    with tensorboard.SummaryWriter(tmp_path / "events") as writer:
        writer.add_scalar("reward", 0.5, 1)
    (file,) = (tmp_path / "events").iterdir()
    assert read_run(str(file)).rows == {1: {"reward": 0.5}}
    assert read_run(str(file.rename(tmp_path / "renamed"))).rows == {1: {"reward": 0.5}}


def test_a_folder_is_read_by_the_file_in_it(tmp_path):
    for step, name in ((9, "9"), (10, "10"), (100, "100"), (99, "99-backup2")):
        (tmp_path / f"checkpoint-{name}").mkdir()
        row = {"step": step, "loss": 1.0}
        (tmp_path / f"checkpoint-{name}" / "trainer_state.json").write_text(json.dumps({"log_history": [row]}))
    run = read_run(str(tmp_path))
    assert list(run.rows) == [100]
    assert run.notes == ("of the folder, trainer_state.json was read",)
    (tmp_path / "progress.csv").write_text(CSV)
    assert list(read_run(str(tmp_path)).rows) == [1, 2]


def test_a_password_is_not_kept(tmp_path):
    with pytest.raises(SourceError) as error:
        read_run(f"mlflow:@sqlite://me:secret@{tmp_path}")
    assert "secret" not in str(error.value)


def record(data):
    return struct.pack("<Q", len(data)) + b"0000" + data + b"0000"


BAD = {
    "empty.jsonl": (b"", "{file}: the file is empty"),
    "blank.csv": (b"\n \n", "{file}: the file is empty"),
    "a.jsonl": (b'{"step": oops}\n{"step": 3 "a": 1}\n', "{file}:1: no JSON object: "),
    "b.jsonl": (b'{"step": 1, "a"}\n[1, 2]\n', "{file}:1: no JSON object: "),
    "c.jsonl": (b'{"step": "x", "a": 1}\n', "{file}:1: step is 'x', expected a whole number"),
    "d.jsonl": (b'{"step": 1, "a": "text"}\n', "{file}: no metrics: not one number was logged; values that are no"),
    "e.jsonl": (b'{"a":' * 100_000 + b"\n", "{file}:1: no JSON object: "),
    "f.jsonl": (b'{"step": 1, "a": "\xff"}\n', "{file}: no metrics: not one number was logged; "),
    "g.jsonl": (b'{"step": 1e400, "a": 1}\n', "{file}:1: step is 'inf', expected a whole number"),
    "h.jsonl": (b"hello\nworld\n", "{file}: the content does not fit .jsonl"),
    "a.csv": (b"step,a\n2\n3\n", "{file}:2: 1 cells, expected 2 as in the header"),
    "b.csv": (b"step,a\nx,2\ny,4\n", "{file}:2: step is 'x', expected a whole number"),
    "d.csv": (b"step,a\n", "{file}: no metrics: not one number was logged"),
    "e.csv": (b'step,a\n1,"2"3\n', "{file}:2: no CSV: "),
    "a.json": (b'{"log_history": [zzz, {"step": 2}], "x": 1}', "{file}: character 17: no JSON: Expecting value"),
    "b.json": (b'{"model": "x"}', "{file}: no metrics: "),
    "c.json": (b'{\n "model": "x"\n}', "{file}: a JSON object of model, expected log_history, or a list of"),
    "x.wandb": (b"hello\n", "{file}: the content does not fit .wandb"),
    "x.npz": (b"PK\3\4 and nothing else", "{file}: no arrays of numbers: "),
    "events.out.tfevents.1": (record(b"\x1a\rbrain.Event:2"), "{file}: byte 0: no record of a TensorBoard event file"),
    "tokens.parquet": (b"PAR1....", "{file}: this is a Parquet file; token tables are for `tracker-diag replay`"),
    "mlflow.db": (b"SQLite format 3\0...", "{file}: this is a SQLite store; give mlflow:<run id>@sqlite:///<file>"),
    "m.jsonl.gz": (b"\x1f\x8b\x08...", "{file}: this is compressed with gzip; unpack it first"),
    "utf16.csv": ("step,a\n1,2".encode("utf-16"), "{file}: this is text in UTF-16, expected UTF-8"),
    "model.bin": (b"\x80\x02ab\0\0\1", "{file}: neither text nor a file of TensorBoard, W&B or numpy"),
    "train.log": (b"hello\nworld\n", "{file}: no metrics in 2 lines, expected steps of verl"),
}  # fmt: skip


JSONL = b'{"step": 1, "a": 1}\n%b\n{"step": 3, "a": 2}\n'
TABLE = b"step,a\n1,1\n%b\n3,2\n"


def test_the_header_of_an_older_monitor_file_has_a_space_in_it(tmp_path):
    file = tmp_path / "00.monitor.csv"
    file.write_text('# {"t_start": 1.0, "env_id": "x"} \nr,l,t\n1.0,10,1.0\n')
    assert read_run(str(file)).rows == {10: {"monitor/r": 1.0, "monitor/l": 10.0}}


MONITOR = b'#{"t": 1}\na,l,t\n1,1,0\n%b\n2,2,0\n'
HISTORY = b'{"log_history": [{"step": 1, "a": 1}, %b, {"step": 3, "a": 2}]}'
BROKEN = [
    ("m.jsonl", JSONL, b'{"step": oops}', "m.jsonl:2: no JSON object: "),
    ("m.jsonl", JSONL, b"[1, 2]", "m.jsonl:2: list given"),
    ("m.jsonl", JSONL, b"[" * 100_000, "m.jsonl:2: no JSON object: "),
    ("m.jsonl", JSONL, b'{"step": 1e40, "a": 1}', "m.jsonl:2: step is '1e+40', expected a whole number"),
    ("m.jsonl", JSONL, b'{"step": ' + b"9" * 40 + b"}", "m.jsonl:2: step is '999"),
    ("m.jsonl", JSONL, b"9" * 10_000, "m.jsonl:2: no JSON object: "),
    ("m.jsonl", JSONL, b'{"step": 1, "\xff": "x"}', "lines with bytes that are no UTF-8: 1, first line 2"),
    ("p.csv", TABLE, b"2", "p.csv:3: 1 cells, expected 2 as in the header"),
    ("p.csv", TABLE, b"2,3,4", "p.csv:3: 3 cells, expected 2 as in the header"),
    ("p.csv", TABLE, b"x,2", "p.csv:3: step is 'x', expected a whole number"),
    ("p.csv", TABLE, b"9" * 50 + b",2", "p.csv:3: step is '1e+50'"),
    ("p.csv", TABLE, b'2,"3"4', "p.csv:3: no CSV: "),
    ("p.csv", TABLE, b'2,"3', "p.csv:3: no CSV: unexpected end of data"),
    ("p.csv", TABLE, b"2,\xff", "lines with bytes that are no UTF-8: 1, first line 3"),
    ("monitor.csv", MONITOR, b"oops", "monitor.csv:4: 1 cells, expected 3"),
    ("monitor.csv", MONITOR, b"1,2.5,3", "monitor.csv:4: l is 2.5, expected a whole"),
    ("trainer_state.json", HISTORY, b"5", "log_history[1]: int given, expected an object with a step"),
    ("trainer_state.json", HISTORY, b'{"step": 1e40}', "log_history[1]: step is '1e+40'"),
]


@pytest.mark.parametrize(("name", "whole", "broken", "shown"), BROKEN)
def test_a_broken_row_costs_itself_alone_and_is_named(tmp_path, name, whole, broken, shown):
    file = tmp_path / name
    file.write_bytes(whole % broken)
    run = read_run(str(file))
    assert {step: row.get("a", row.get("monitor/a")) for step, row in run.rows.items()} == {1: 1.0, 3: 2.0}
    assert any(shown in note for note in run.notes), run.notes


@pytest.mark.parametrize("rest", [b"zzz, ", b'{"step": 2} '])
def test_of_a_document_that_is_broken_what_came_before_is_read(tmp_path, rest):
    file = tmp_path / "trainer_state.json"
    file.write_bytes(HISTORY % (rest + b"x" * 50))
    run = read_run(str(file))
    assert list(run.rows) == [1]
    assert any("no JSON: Expecting" in note and note.startswith("character") for note in run.notes)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_that_names_the_place(tmp_path, name):
    content, message = BAD[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(SourceError) as error:
        read_run(str(file))
    assert str(error.value).startswith(message.format(file=file))
    assert "\n" not in str(error.value)
    assert "Traceback" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("none.jsonl", "none.jsonl: no such file or folder; runs of trackers begin with mlflow:, trackio:, wandb:"),
        ("", "no source given, expected a file, a folder or one of mlflow:, trackio:, wandb:"),
        ("/dev/zero", "/dev/zero: no such file or folder"),
        ("wandb:only/two", "wandb:only/two: expected wandb:<entity>/<project>/<run>"),
        ("wandb:", "wandb: no such file or folder"),
        ("trackio:project", "trackio:project: expected trackio:<project>/<run>"),
        ("mlflow:x@sqlite:///none.db", "mlflow:x@sqlite:///none.db: no SQLite file none.db; add @<tracking uri> "),
        ("mlflow:x@none", "mlflow:x@none: no folder none; add @<tracking uri> "),
        (".", ".: no run in this folder: no event files, no .wandb file, none of trainer_state.json"),
    ],
)  # fmt: skip
def test_sources_that_do_not_exist(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiagError) as error:
        read_run(source)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.nightly
def test_a_long_file_is_not_held(tmp_path):
    file = tmp_path / "m.jsonl"
    with file.open("w") as out:
        for step in range(20_000):
            out.write(f'{{"step": {step}, "reward": 0.5, "text": "{"x" * 2000}"}}\n')
    tracemalloc.start()
    try:
        run = read_run(str(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(run.rows) == 20_000
    assert peak < file.stat().st_size / 3


def test_one_line_without_an_end_is_refused(tmp_path, monkeypatch):
    from tracker_diag.trackers.files import text

    monkeypatch.setattr(text, "LONGEST", 1000)
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1, "a": "' + "x" * 5000)
    with pytest.raises(SourceError, match=r"m\.jsonl:1: a line of more than 0 MiB"):
        read_run(str(file))
