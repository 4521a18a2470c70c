import math
import re
import shutil
import struct

import numpy as np
import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.tensorboard import read as tensorboard
from tracker_diag.trackers.tensorboard.read import read_tensorboard


@pytest.fixture
def write(tmp_path):
    """Event files as torch writes them."""
    from torch.utils.tensorboard import SummaryWriter

    def write(folder, steps, **metrics):
        with SummaryWriter(tmp_path / folder) as writer:
            for step in steps:
                for key, value in metrics.items():
                    writer.add_scalar(key, value(step), step, walltime=1000.0 + step)
        return tmp_path / folder

    return write


def test_scalars_with_nan_and_another_cadence(write):
    from torch.utils.tensorboard import SummaryWriter

    folder = write("run", range(5), reward=lambda step: step / 2, kl=lambda step: math.nan if step == 3 else 0.5)
    with SummaryWriter(folder, filename_suffix=".second") as writer:
        writer.add_scalar("eval/score", 0.25, 4, walltime=1004.0)
        writer.add_scalar("new_style", -math.inf, 4, walltime=1004.0, new_style=True)
        writer.add_histogram("weights", np.arange(5.0), 4)
    run = read_tensorboard(folder, "it")
    assert list(run.rows) == [0, 1, 2, 3, 4]
    assert run.rows[1] == {"reward": 0.5, "kl": 0.5}
    assert math.isnan(run.rows[3]["kl"])
    assert run.rows[4] == {"reward": 2.0, "kl": 0.5, "eval/score": 0.25, "new_style": -math.inf}
    assert run.seconds == {step: float(step) for step in range(5)}
    assert run.notes == ()
    (file,) = (file for file in folder.iterdir() if file.suffix != ".second")
    assert read_tensorboard(file, "it").rows[0] == {"reward": 0.0, "kl": 0.5}


def test_settings_that_trainers_write(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "run") as writer:
        writer.add_text("args", '{"learning_rate": 1e-5, "fsdp": {"x": true}}')
        writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|gamma|0.99|\n|clip_vloss|True|\n|env|Ant-v3|")
        writer.add_text("args", "no JSON")
        writer.add_hparams({"lr": 0.5, "algorithm": "grpo"}, {"score": 1.0}, run_name=".")
        writer.add_scalar("loss", 1.0, 0)
    config = read_tensorboard(tmp_path / "run", "it").config
    assert config == {
        "learning_rate": 1e-5, "fsdp.x": True, "gamma": 0.99, "clip_vloss": True, "env": "Ant-v3",
        "lr": 0.5, "algorithm": "grpo",
    }  # fmt: skip


def test_a_run_that_was_resumed_from_a_checkpoint(write):
    write("run", range(6), loss=lambda step: 1.0)
    folder = write("run", range(4, 8), loss=lambda step: 2.0)
    run = read_tensorboard(folder, "it")
    assert [row["loss"] for row in run.rows.values()] == [1.0] * 4 + [2.0] * 4
    assert run.notes == ("values logged after those of a later step, sorted in: 1, first 'loss': 4 after 5",)
    assert run.caveats == (
        "values that replace others of the same step: 2, first 'loss' at step 4; the last one counts",
    )


def test_folders_of_one_run_and_of_several(write, tmp_path):
    write("keras/train", range(2), loss=lambda step: 1.0)
    write("keras/validation", range(2), loss=lambda step: 2.0)
    for folder in (tmp_path / "keras", tmp_path):
        assert read_tensorboard(folder, "it").rows[0] == {"train/loss": 1.0, "validation/loss": 2.0}
    write("keras", range(1), lr=lambda step: 3.0)
    assert read_tensorboard(tmp_path / "keras", "it").rows[0]["lr"] == 3.0
    write("PPO_1", range(2), loss=lambda step: 1.0)
    with pytest.raises(SourceError, match=r"2 runs \(PPO_1, keras\), give one of them$"):
        read_tensorboard(tmp_path, "it")
    shutil.rmtree(tmp_path / "keras")
    assert read_tensorboard(tmp_path, "it").rows[0] == {"loss": 1.0}


def test_a_file_that_breaks_off_at_any_byte(write, tmp_path):
    folder = write("run", range(4), loss=float)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    cut = tmp_path / file.name
    for length in range(len(whole) - 60, len(whole)):
        cut.write_bytes(whole[:length])
        run = read_tensorboard(cut, "it")
        assert 2 <= len(run.rows) <= 4
        assert len(run.rows) == 4 or not run.notes or "breaks off in a record at byte" in run.notes[0]


def test_damage_costs_its_record_alone_and_is_reported_with_its_place(write, tmp_path):
    folder = write("run", range(4), loss=float)
    (file,) = folder.iterdir()
    whole = bytearray(file.read_bytes())
    starts = [0]
    while starts[-1] < len(whole):
        starts.append(starts[-1] + 16 + struct.unpack_from("<Q", whole, starts[-1])[0])
    nothing_before = {start + i for start in starts[:-4] for i in range(12)}  # of the head of a record
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        file.write_bytes(damaged)
        messages = r"byte \d+: (the record is damaged|no record of a TensorBoard)"
        if at in nothing_before:
            with pytest.raises(SourceError, match=messages):
                read_tensorboard(file, "it")
            continue
        run = read_tensorboard(file, "it")
        assert any(re.search(messages, note) for note in run.notes)
        # Where the length of a record is damaged, nobody knows where the next one begins.
        assert len(run.rows) >= 3 or any("what comes after could not be read" in note for note in run.notes)
        assert all(row == {"loss": float(step)} for step, row in run.rows.items())


def test_a_record_of_pictures_is_passed_over_whatever_its_size(write, tmp_path, monkeypatch):
    folder = write("run", range(4), loss=float)
    whole = read_tensorboard(folder, "it")
    monkeypatch.setattr(tensorboard, "LARGEST", 50)  # the file's first record, which says who wrote it, has 72
    run = read_tensorboard(folder, "it")
    assert (run.rows, run.notes) == (whole.rows, ())


def test_what_a_record_claims_costs_nothing(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    from tensorboard.util.tensor_util import make_tensor_proto

    huge = Summary.Value(tag="huge", tensor=make_tensor_proto(0.5))
    huge.tensor.tensor_shape.dim.add().size = 1 << 40
    unknown = Summary.Value(tag="unknown", tensor=make_tensor_proto(0.5))
    unknown.tensor.dtype = 127
    short = Summary.Value(tag="short", tensor=make_tensor_proto(0.5))
    short.tensor.ClearField("float_val")
    short.tensor.tensor_content = b"abc"
    settings = Summary.Value(tag="_hparams_/session_start_info")
    settings.metadata.plugin_data.plugin_name, settings.metadata.plugin_data.content = "hparams", b"\xff\xff"
    values = [huge, unknown, short, settings, Summary.Value(tag="loss", simple_value=0.5)]
    with (tmp_path / "events.out.tfevents.1").open("wb") as out:
        for event in (Event(file_version="brain.Event:2"), Event(step=3, summary=Summary(value=values))):
            data = event.SerializeToString()
            head = struct.pack("<Q", len(data))
            out.write(head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data)))
    assert read_tensorboard(tmp_path, "it").rows == {3: {"loss": 0.5}}


def test_no_scalars_and_no_events(write, tmp_path):
    write("run", [])
    with pytest.raises(SourceError, match="it: no metrics"):
        read_tensorboard(tmp_path / "run", "it")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no event files of TensorBoard in this folder"):
        read_tensorboard(tmp_path / "empty", "it")


@pytest.mark.slow
def test_the_diagnostics_next_to_a_run_have_their_own_names_once(tmp_path, make_batch, rng):
    from tensorboardX import SummaryWriter

    import tracker_diag as td

    with td.wrap(SummaryWriter(str(tmp_path / "run"))) as writer:
        for step in range(3):
            writer.diag.observe(**make_batch(rng))
            writer.add_scalar("train/reward", step / 10, step)
    run = read_tensorboard(tmp_path, "run")
    for row in run.rows.values():
        assert {key for key in row if not key.startswith("diag/")} == {"train/reward"}
        assert "diag/policy/text_only/p95" in row
        assert not [key for key in row if key.startswith("diag/diag/")]
