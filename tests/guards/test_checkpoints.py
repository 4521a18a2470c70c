"""What is proposed is whole: gone, cut off, changed or still being written is passed over, and reported."""

import json
import os
import re
import shutil

import pytest
import torch
from bandit import wait_until_read
from safetensors.torch import save_file

from tracker_diag import Monitor
from tracker_diag.guards import checkpoints
from tracker_diag.guards.checkpoints import Checkpoint, Register, digest_of, read_manifest


@pytest.fixture
def saved(tmp_path):
    """A register with three checkpoints, folders of two files each, at steps 1, 2 and 3."""
    register = Register()
    for step in (1, 2, 3):
        folder = tmp_path / f"step-{step}"
        (folder / "shards").mkdir(parents=True)
        torch.save({"weight": torch.full((100,), float(step))}, folder / "optimizer.pt")
        save_file({"weight": torch.full((100,), float(step))}, folder / "shards" / "model.safetensors")
        register.register(folder, step, ())
    return register, tmp_path


def gone(folder):
    shutil.rmtree(folder)


def a_file_gone(folder):
    (folder / "optimizer.pt").unlink()


def cut_off(folder):
    file = folder / "shards" / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def one_bit_other(folder):
    file = folder / "shards" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def overwritten(folder):
    torch.save({"weight": torch.full((100,), 7.0)}, folder / "optimizer.pt")


def unreadable(folder):
    (folder / "optimizer.pt").unlink()
    (folder / "optimizer.pt").symlink_to("/proc/self/mem")


@pytest.mark.parametrize("damage", [gone, a_file_gone, cut_off, one_bit_other, overwritten, unreadable])
def test_what_is_damaged_is_never_proposed_but_the_one_before(saved, damage):
    register, folder = saved
    assert register.before(4, register.reread)[0].step == 3
    damage(folder / "step-3")
    result, wrong, certain = register.before(4, register.reread)
    assert (result.step, certain) == (2, True)
    assert [item.partition(":")[0] for item in wrong] == ["that of step 3"]
    damage(folder / "step-2")
    damage(folder / "step-1")
    result, wrong, certain = register.before(4, register.reread)
    assert (result, len(wrong), certain) == (None, 3, True)


@pytest.mark.parametrize("damage", [gone, a_file_gone, cut_off])
def test_a_dry_run_reads_no_contents_and_sees_what_names_and_sizes_tell(saved, damage, monkeypatch):
    register, folder = saved
    register.before(4, register.reread)
    monkeypatch.setattr(checkpoints, "read_manifest", lambda root, names: 1 / 0)
    assert register.before(4)[0].step == 3
    damage(folder / "step-3")
    assert register.before(4)[0].step == 2


def test_it_is_before_the_onset_and_is_clean_as_far_as_is_known_now(saved):
    register, _ = saved
    assert register.before(3, register.reread)[0].step == 2
    assert register.before(1, register.reread) == (None, [], True)
    register.taint(2, "POL001@2:policy:post_tool")
    assert register.before(4, register.reread)[0].step == 1
    table = register.table()
    assert [row[2:4] for row in table.rows] == [("yes", ""), *[("no", "POL001@2:policy:post_tool")] * 2]
    assert [row[4] for row in table.rows] == [2, 2, 2]


def half_a_zip(file):
    torch.save({"weight": torch.zeros(1000)}, file)
    os.truncate(file, file.stat().st_size - 100)


def half_of_safetensors(file):
    save_file({"weight": torch.zeros(1000)}, file)
    os.truncate(file, file.stat().st_size - 100)


def a_header_alone(file):
    save_file({"weight": torch.zeros(1000)}, file)
    os.truncate(file, 20)


def no_file(file):
    pass


def an_empty_file(file):
    file.touch()


@pytest.mark.parametrize(("write", "name", "message"), [
    (half_a_zip, "policy.pt", "policy.pt is half written, a zip file without its end; register it once it is whole"),
    (half_of_safetensors, "model.safetensors", "model.safetensors is half written, .* of 40.. bytes"),
    (a_header_alone, "model.safetensors", "is half written, 20 bytes, shorter than its header"),
    (no_file, "policy.pt", "policy.pt: nothing there, expected a file or a folder with files"),
    (an_empty_file, "policy.pt", "policy.pt is half written, it is empty; register it once it is whole"),
])  # fmt: skip
def test_what_is_no_whole_checkpoint_is_not_registered_and_training_continues(tmp_path, write, name, message):
    write(tmp_path / name)
    monitor = Monitor()
    monitor.checkpoint(tmp_path / name, 3)
    wait_until_read(monitor.guards.checkpoints)
    monitor.log({"loss": 0.5}, 4)
    assert monitor.health["checkpoint_errors"] == 1
    (failure,) = monitor.failures
    assert re.search(message, failure)
    assert not monitor.guards.checkpoints
    monitor.close()


def test_what_is_given_wrongly_raises_nothing_into_training():
    monitor = Monitor()
    monitor.log({"loss": 0.5}, 0)
    monitor.checkpoint(None)
    monitor.checkpoint("policy.pt", 1.5)
    assert monitor.health["checkpoint_errors"] == 2
    monitor.close()
    monitor.checkpoint("policy.pt")
    assert monitor.health["after_close"] == 1


def test_a_path_that_is_overwritten_is_one_checkpoint(tmp_path):
    register = Register()
    for step in range(3):
        (tmp_path / "last.raw").write_bytes(bytes([step]))
        register.register(tmp_path / "last.raw", step, ())
    assert [row[0] for row in register.table().rows] == [2]
    assert register.before(2, register.reread)[0] is None
    assert register.before(3, register.reread)[0].step == 2


@pytest.mark.slow
def test_the_register_is_bounded_and_the_same_after_json(tmp_path):
    register = Register()
    for step in range(checkpoints.MOST + 4):
        file = tmp_path / str(step)
        file.write_bytes(step.to_bytes(2, "big"))
        register.register(file, step, ["NUM004@3:all"] if step == 100 else [])
    state = json.loads(json.dumps(register.state_dict()))
    assert [item["step"] for item in state] == list(range(4, checkpoints.MOST + 4))
    again = Register()
    again.load_state_dict(state)
    assert again.table() == register.table()
    assert again.before(101, again.reread)[0].step == 99


def test_the_digest_is_of_names_sizes_and_contents(tmp_path):
    item, other = tmp_path / "one", tmp_path / "other"
    for folder, name in ((item, "a"), (other, "b")):
        folder.mkdir()
        (folder / name).write_bytes(b"weights")
    assert digest_of(read_manifest(item, ["a"])) != digest_of(read_manifest(other, ["b"]))
    assert digest_of(read_manifest(item, ["a"])) == digest_of(read_manifest(item, ["a"]))
    assert Checkpoint(str(item), 3).clean
