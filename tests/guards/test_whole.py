"""What a half-written checkpoint looks like, layout by layout, and that none of them is gone back to."""

import json
import os
import pickle
import re

import pytest
import torch
from bandit import wait_until_read
from safetensors.torch import save_file

from tracker_diag.guards.checkpoints import MANIFEST, Register
from tracker_diag.guards.whole import lacking

TENSORS = {"a": torch.arange(1.0, 1001.0), "b": torch.ones(10, dtype=torch.bfloat16)}


def zip_of_torch(folder):
    torch.save(TENSORS, folder / "model.pt")


def older_torch(folder):
    torch.save(TENSORS, folder / "model.pt", _use_new_zipfile_serialization=False)


def older_torch_of_protocol_4(folder):
    torch.save(TENSORS, folder / "model.pt", _use_new_zipfile_serialization=False, pickle_protocol=4)


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


def fsdp(folder):
    (folder / "pytorch_model_fsdp_0").mkdir()
    distributed(folder / "pytorch_model_fsdp_0")
    torch.save({}, folder / "optimizer.bin")


def deepspeed(folder):
    (folder / "latest").write_text("global_step10\n")
    (folder / "global_step10").mkdir()
    torch.save(TENSORS, folder / "global_step10" / "mp_rank_00_model_states.pt")


def pickled(folder):
    (folder / "state.ckpt").write_bytes(pickle.dumps({"a": list(range(100))}))


def first(name, size):
    return lambda folder: os.truncate(folder / name, size)


def zeros(name, part):
    """As a file system leaves it that has made room for what was not written any more."""

    def damage(folder):
        content = (folder / name).read_bytes()
        assert part in content
        (folder / name).write_bytes(content.replace(part, bytes(len(part))))

    return damage


def put(name, content=b""):
    return lambda folder: (folder / name).write_bytes(content)


def link(folder):
    (folder / "model.pt").rename(folder / "kept.pt")
    (folder / "model.pt").symlink_to("nowhere.pt")


def neither_index_nor_parts(folder):
    for file in (folder / "pytorch_model_fsdp_0").iterdir():
        file.unlink()


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
    (older_torch, cut("model.pt"), "bytes|is not there as a whole"),
    (older_torch, cut("model.pt", 0.05), r"it ends early"),
    (shards, gone("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors is missing"),
    (shards, only_one_shard, "model-00002-of-00002.safetensors is missing, and the other shards name it"),
    (shards, cut("model-00001-of-00002.safetensors"), "of 40.. bytes"),
    (distributed, gone(".metadata"), ".metadata is missing, and it is written last"),
    (distributed, cut("__0_0.distcp"), "__0_0.distcp is half written|__0_0.distcp has"),
    (distributed, gone("__0_0.distcp"), "__0_0.distcp has 0 of"),
    (trainer, cut("optimizer.pt", 0), "optimizer.pt is half written, it is empty"),
    (trainer, cut("trainer_state.json"), "trainer_state.json is half written, it is no JSON"),
    *((older_torch, first("model.pt", size), "model.pt is half written") for size in (1, 3, 8, 15, 20)),
    (older_torch, zeros("model.pt", (1000).to_bytes(8, "little")), "model.pt is .*, storage .* is not there as"),
    *((made, cut("model.pt", 0.9999), "model.pt is half written") for made in (older_torch, older_torch_of_protocol_4)),
    *((zip_of_torch, first("model.pt", size), "model.pt is half written") for size in (1, 3, 4, 8)),
    (zip_of_torch, zeros("model.pt", TENSORS["a"].numpy()[100:300].tobytes()),
     "model.pt is half written, .*Bad CRC-32 for file 'model/data/0'"),
    (distributed, cut(".metadata"), "half: .metadata is half written, "),
    (distributed, put(".metadata", pickle.dumps({})), "half: .metadata names no file"),
    (fsdp, gone("pytorch_model_fsdp_0/.metadata"), "pytorch_model_fsdp_0: .metadata is missing"),
    (fsdp, neither_index_nor_parts, "pytorch_model_fsdp_0: .metadata is missing"),
    *((zip_of_torch, put(f"other{suffix}"), f"other{suffix} is half written, it is empty")
      for suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors")),
    (zip_of_torch, put("optimizer.pt.tmp", b"x"), "optimizer.pt.tmp is there, which is not yet renamed"),
    (zip_of_torch, link, "model.pt is a link to nothing"),
    (zip_of_torch, put("model.pt", bytes(4000)), "model.pt is half written, it does not begin as a file of torch.save"),
    (pickled, cut("state.ckpt"), "state.ckpt is half written, a pickle without its end"),
    (deepspeed, put("latest", b"global_step20"), "half: latest names 'global_step20', which is not there"),
    (deepspeed, put("latest"), "half: latest names '', which is not there"),
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


@pytest.mark.parametrize("computes", [True, False])
def test_a_zip_that_torch_wrote_without_checksums_is_judged_by_its_sizes(tmp_path, computes):
    was = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(computes)
    try:
        zip_of_torch(tmp_path)
    finally:
        torch.serialization.set_crc32_options(was)
    assert lacking(tmp_path / "model.pt", [tmp_path / "model.pt"]) is None


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


def test_parts_may_be_counted_from_zero(tmp_path):
    parts = [tmp_path / f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for part in parts:
        part.write_bytes(b"rows")
    assert lacking(tmp_path, parts) is None
    assert "data-00001-of-00002.arrow is missing" in lacking(tmp_path, parts[:1])
