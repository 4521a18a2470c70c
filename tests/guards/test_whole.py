"""What a half-written checkpoint looks like, layout by layout, and that none of them is gone back to."""

import json
import os
import re

import pytest
import torch
from bandit import wait_until_read
from safetensors.torch import save_file

from tracker_diag.guards.checkpoints import MANIFEST, Register

TENSORS = {"a": torch.zeros(1000), "b": torch.ones(10, dtype=torch.bfloat16)}


def zip_of_torch(folder):
    torch.save(TENSORS, folder / "model.pt")


def older_torch(folder):
    torch.save(TENSORS, folder / "model.pt", _use_new_zipfile_serialization=False)


def shards(folder):
    for number, name in enumerate(TENSORS, 1):
        save_file({name: TENSORS[name]}, folder / f"model-{number:05}-of-00002.safetensors")
    index = {name: f"model-{number:05}-of-00002.safetensors" for number, name in enumerate(TENSORS, 1)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def distributed(folder):
    import torch.distributed.checkpoint as dcp

    dcp.save(TENSORS, checkpoint_id=str(folder))


def trainer(folder):
    save_file(TENSORS, folder / "model.safetensors")
    for name in ("optimizer.pt", "training_args.bin"):
        torch.save({}, folder / name)
    (folder / "trainer_state.json").write_text('{"global_step": 10}')


def cut(name, part=0.5):
    def damage(folder):
        os.truncate(folder / name, int((folder / name).stat().st_size * part))

    return damage


def gone(name):
    return lambda folder: (folder / name).unlink()


def only_one_shard(folder):
    gone("model.safetensors.index.json")(folder)
    gone("model-00002-of-00002.safetensors")(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("layout", "damage", "message"), [
    (zip_of_torch, cut("model.pt"), "a zip file without its end"),
    (older_torch, cut("model.pt"), r"bytes"),
    (older_torch, cut("model.pt", 0.05), r"it ends early"),
    (shards, gone("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors is missing"),
    (shards, only_one_shard, "model-00002-of-00002.safetensors is missing, and the other shards name it"),
    (shards, cut("model-00001-of-00002.safetensors"), "of 40.. bytes"),
    (distributed, gone(".metadata"), ".metadata is missing, and it is written last"),
    (distributed, cut("__0_0.distcp"), "__0_0.distcp is half written|__0_0.distcp has"),
    (distributed, gone("__0_0.distcp"), "__0_0.distcp has 0 of"),
    (trainer, cut("optimizer.pt", 0), "optimizer.pt is half written, it is empty"),
    (trainer, cut("trainer_state.json"), "trainer_state.json is half written, it is no JSON"),
    (trainer, gone("trainer_state.json"), "trainer_state.json is missing, and it is written last"),
])  # fmt: skip
def test_what_is_half_written_is_not_registered(tmp_path, layout, damage, message):
    whole, half = tmp_path / "whole", tmp_path / "half"
    for folder in (whole, half):
        folder.mkdir()
        layout(folder)
    damage(half)
    register = Register()
    register.register(whole, 1, ())
    register.register(half, 2, ())
    wait_until_read(register)
    (error,) = register.errors()
    assert re.search(message, str(error))
    assert register.before(9, register.reread)[0].step == 1


def test_without_its_manifest_a_checkpoint_has_no_proof(tmp_path):
    folder = tmp_path / "step-1"
    folder.mkdir()
    (folder / "weights.raw").write_bytes(b"anything")
    register = Register()
    register.register(folder, 1, ())
    assert register.before(2, register.reread)[0].step == 1
    (folder / "tracker_diag_0.json").write_text("{}")  # the state of the diagnostics, which is written later
    (folder / "notes.txt").write_text("a person's own")
    assert register.before(2, register.reread)[0].step == 1
    (folder / MANIFEST).unlink()
    assert register.before(2, register.reread) == (None, [f"that of step 1: {MANIFEST} is gone"], True)
