"""Files that anybody may have written: each reader gives a run or says in one line what is wrong, and nothing else."""

import io
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tracker_diag.cli.app import app

pytestmark = pytest.mark.slow

STEPS = range(12)
ROWS = [{"step": step, "loss": 1 / (step + 1), "reward": step / 10, "kl": 0.1} for step in STEPS]

PIECES = (
    b"\xff\xfe", b"\\ud800", b"1e999", b"-" + b"9" * 5000, b"9" * 40, b"NaN", b"[" * 9000, b"\0", b"\x1b]8;;http://x\x07",
    b"[/red]", b"{", b"}", b'"', b",", b"null", b"true", b"\n", b"\r", b"-1", b"0x", b"Infinity", b": ", b"step",
    b"{'a':" * 2000, b"2024-13-45", b"0001-01-01", b"\xed\xa0\x80", b"1_0", b"\xe2\x80\xae", b"diag/step", b"1e300",
)  # fmt: skip
"""What readers have stumbled over."""


def lines(texts):
    return "\n".join(texts).encode()


def npz():
    out = io.BytesIO()
    np.savez(out, timesteps=np.arange(5), results=np.ones((5, 3)), ep_lengths=np.ones((5, 3)))
    return out.getvalue()


def parquet():
    n = 200
    table = pa.table(
        {
            "step": np.repeat(np.arange(10), 20), "sequence": np.tile(np.repeat([0, 1], 10), 10),
            "position": np.tile(np.arange(10), 20), "is_model": np.tile(np.arange(10) != 4, 20),
            "logprob": np.full(n, -1.0), "old_logprob": np.full(n, -1.1), "tool": ["search"] * n,
        }
    )  # fmt: skip
    out = io.BytesIO()
    pq.write_table(table, out, compression="none", use_dictionary=False)
    return out.getvalue()


def events():
    """Records of an event file, without what frames them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_tensor_proto

    of_text = Summary.Value(tag="args/text_summary", tensor=make_tensor_proto(np.array(['{"a": 1}'], dtype=object)))
    of_text.metadata.plugin_data.plugin_name = "text"
    parameters = HParamsPluginData()
    parameters.session_start_info.hparams["lr"].number_value = 0.5
    of_settings = Summary.Value(tag="_hparams_/session_start_info")
    of_settings.metadata.plugin_data.plugin_name = "hparams"
    of_settings.metadata.plugin_data.content = parameters.SerializeToString()
    number = Summary.Value(tag="t", tensor=make_tensor_proto(0.5))
    result = [Event(file_version="brain.Event:2")]
    loss = Summary(value=[Summary.Value(tag="loss", simple_value=1)])
    result += [Event(step=step, wall_time=step, summary=loss) for step in STEPS]
    result += [Event(step=3, summary=Summary(value=[value])) for value in (of_text, of_settings, number)]
    return [event.SerializeToString() for event in result]


def framed(records):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    out = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        out += head + struct.pack("<I", masked_crc32c(head)) + record + struct.pack("<I", masked_crc32c(record))
    return out


FILES = {
    "metrics.jsonl": lambda: lines(map(json.dumps, ROWS)),
    "verl.jsonl": lambda: lines(json.dumps({"step": row["step"], "data": {"actor/entropy": 0.3}}) for row in ROWS),
    "trainer_state.json": lambda: json.dumps({"log_history": [row | {"epoch": 1.0} for row in ROWS], "a": 1}).encode(),
    "progress.csv": lambda: lines(["step,loss,timestamp", *(f"{i},{i / 7},2024-01-01T00:00:{i:02}" for i in STEPS)]),
    "mlflow.csv": lambda: lines(["key,value,step", *(f"loss,{i / 7},{i}" for i in STEPS)]),
    "monitor.csv": lambda: lines(['#{"t_start": 1.0}', "r,l,t", *(f"{i / 2},{i + 1},{i / 10}" for i in STEPS)]),
    "verl.log": lambda: lines(f"(x) step:{i} - actor/entropy:0.{i} - critic/score:np.float64(0.{i})" for i in STEPS),
    "trl.log": lambda: lines(f"{i}%|#| {i}/30 [00:01\r\n{{'loss': 0.{i}, 'kl': 'nan', 'epoch': 0.{i}}}" for i in STEPS),
    "evaluations.npz": npz,
    "tokens.parquet": parquet,
    "events.out.tfevents.1": lambda: framed(events()),
    "own.yaml": lambda: b"id: OWN001\ntitle: x\nsummary: y\nwhen:\n  - all: [{metric: loss, above: 1}]\n",
}  # fmt: skip


def damaged(data, random):
    """`data` with a byte changed, a piece put in, taken out, repeated, or the end cut off; once or more often."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randint(0, len(data))
        match random.randint(0, 4):
            case 0 if at < len(data):
                data[at] = random.randrange(256)
            case 1:
                data[at:at] = random.choice(PIECES)
            case 2:
                end = at
                while end < len(data) and chr(data[end]).isalnum():
                    end += 1
                data[at:end] = random.choice(PIECES)
            case 3:
                data[at : at + random.choice((1, 5, 50))] = data[at : at + 20] if random.random() < 0.5 else b""
            case _:
                del data[at:]
    return bytes(data)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(random=st.randoms(use_true_random=False))
def test_a_damaged_file_is_read_or_refused_in_one_line(name, random, tmp_path):
    whole = FILES[name]()
    bad = damaged(whole, random)
    if "tfevents" in name and random.random() < 0.7:  # what is behind the checksums
        records = events()
        at = random.randrange(1, len(records))
        records[at] = damaged(records[at], random)
        bad = framed(records)
    file = tmp_path / name
    file.write_bytes(bad)
    command = ["diagnose", str(file), "--html", str(tmp_path / "page.html")]
    if name == "tokens.parquet":
        command = ["replay", str(file)]
    elif name == "own.yaml":
        (tmp_path / "good.jsonl").write_bytes(FILES["metrics.jsonl"]())
        command = ["diagnose", str(tmp_path / "good.jsonl"), "--rules", str(file)]
    done = CliRunner().invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert done.exit_code in (0, 2)
    if done.exit_code == 2:
        text = [line for line in done.stderr.splitlines() if line.startswith("tracker-diag: ")]
        assert len(text) == 1, done.stderr


def test_they_are_read_while_nothing_is_wrong_with_them(tmp_path):
    for name in FILES.keys() - {"own.yaml"}:
        file = tmp_path / name
        file.write_bytes(FILES[name]())
        done = CliRunner().invoke(app, ["replay" if name == "tokens.parquet" else "diagnose", str(file)])
        assert done.exit_code == 0, (name, done.output)
