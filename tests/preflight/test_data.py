"""The audit of masks, ids and pairs: every form that a batch comes in, and batches that cannot be audited."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import BatchError, DiagError

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("setups.py"))))
MASKS = ("mask_padding", "mask_prompt", "mask_tools", "mask_coverage", "mask_end")


def statuses(batch, **given):
    given = {"pad_id": made.PAD, "eos_id": made.EOS} | given
    result = {check.name: check for check in td.preflight(batch=batch, **given).checks}
    return {name: result[name].status for name in MASKS}, result


def packed(batch):
    """The same without its padding, as (N,) with `sequence_ids`."""
    keep = batch["attention_mask"].astype(bool)
    rows = np.broadcast_to(np.arange(len(keep))[:, None], keep.shape)
    return {name: value[keep] for name, value in batch.items()} | {"sequence_ids": rows[keep]}


def ragged(batch):
    keep = batch["attention_mask"].astype(bool)
    return {name: [row[at].tolist() for row, at in zip(value, keep, strict=True)] for name, value in batch.items()}


FORMS = {
    "numpy": lambda batch: batch,
    "torch": lambda batch: {name: torch.as_tensor(value) for name, value in batch.items()},
    "packed": packed,
    "ragged lists": ragged,
    "booleans": lambda batch: batch | {name: batch[name].astype(bool) for name in batch if name.endswith("mask")},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_audited_in_any_form(form):
    good, result = statuses(FORMS[form](made.batch()))
    assert good == dict.fromkeys(MASKS, "pass"), result
    bad = made.batch()
    bad["loss_mask"] = bad["response_mask"]
    result = statuses(FORMS[form](bad))[1]["mask_tools"]
    assert (
        result.reason
        == "32 of 136 trained tokens are tool output, first in sequence 0, at token "
        + (result.reason.rsplit(maxsplit=1)[1])
    )
    assert result.values["wrong"] == 32


def test_without_a_response_mask_the_response_begins_with_the_first_sampled_token():
    batch = made.batch()
    del batch["response_mask"]
    assert statuses(batch)[0] == dict.fromkeys(MASKS, "pass")
    batch["loss_mask"] = batch["attention_mask"]
    assert statuses(batch)[0] | {"mask_coverage": "pass", "mask_end": "pass"} == dict.fromkeys(
        MASKS, "fail"
    ) | {"mask_padding": "pass", "mask_coverage": "pass", "mask_end": "pass"}  # fmt: skip


def test_padding_is_known_by_its_id_where_nothing_else_does():
    batch = made.batch()
    del batch["attention_mask"]
    assert statuses(batch)[0]["mask_padding"] == "pass"
    assert statuses(batch, pad_id=None)[0]["mask_padding"] == "not checked"
    batch["loss_mask"] = 1 - batch["response_mask"] * (1 - batch["model_mask"])
    assert statuses(batch)[0]["mask_padding"] == "fail"


def test_an_end_that_is_the_padding_is_masked_with_it():
    batch = made.batch()
    batch["token_ids"][batch["token_ids"] == made.PAD] = made.EOS
    batch["loss_mask"] = batch["model_mask"] * (batch["token_ids"] != made.EOS)
    batch["attention_mask"] = (batch["token_ids"] != made.EOS).astype(int)
    check = statuses(batch, pad_id=made.EOS)[1]["mask_end"]
    assert check.status == "fail"
    assert "it is the padding token as well" in check.reason


def test_responses_that_all_lack_an_end_are_reported():
    assert "none of 8 responses has the end token 77777" in statuses(made.batch(), eos_id=77777)[1]["mask_end"].reason
    assert statuses(made.batch(), eos_id=None)[0]["mask_end"] == "not checked"


def test_sequences_that_are_left_out_whole_are_no_mistake():
    batch = made.batch()
    batch["loss_mask"][:7] = 0
    assert statuses(batch)[0] == dict.fromkeys(MASKS, "pass")
    batch["loss_mask"][:] = 0
    tried, result = statuses(batch)
    assert tried == dict.fromkeys(MASKS, "not checked") | {"mask_coverage": "fail"}
    assert "nothing is trained" in result["mask_coverage"].reason


def test_a_turn_of_the_user_after_the_response_began_is_reported():
    batch = made.batch()
    batch["response_mask"] = batch["model_mask"].copy()  # what was a tool's is the user's now
    batch["loss_mask"] = batch["model_mask"] | (batch["token_ids"] == made.TOOL)
    check = statuses(batch)[1]["mask_prompt"]
    assert check.status == "fail"
    assert check.reason.startswith("32 of 136 trained tokens are prompt, or of another's turn")


@pytest.mark.parametrize("by", [1, -1])
def test_a_mask_that_is_shifted_either_way_is_reported(by):
    batch = made.batch()
    batch["loss_mask"] = np.roll(batch["model_mask"], by, axis=1)
    assert ("late" if by == 1 else "early") in statuses(batch)[1]["mask_coverage"].reason


def test_a_batch_without_what_a_check_needs_says_what_to_give():
    for batch in ({}, {"token_ids": np.ones((2, 3), int)}, {"loss_mask": None}):
        tried, result = statuses(batch)
        assert tried == dict.fromkeys(MASKS, "not checked")
        assert all(result[name].do.startswith("give ") for name in (*MASKS, "batch_form", "sampler_step0"))
    tried, result = statuses({"loss_mask": np.ones((2, 3), int)})
    assert tried == dict.fromkeys(MASKS, "not checked")


def test_arrays_that_do_not_fit_together_are_refused():
    batch = made.batch()
    for name, wrong in (
        ("token_ids", np.ones((8, 39), int)),
        ("loss_mask", np.ones((2, 2), int)),
        ("loss_mask", np.full((8, 40), 0.3)),
        ("attention_mask", batch["attention_mask"] * 2),
        ("token_ids", np.ones((8, 40))),
    ):
        with pytest.raises(BatchError):
            td.preflight(batch=batch | {name: wrong})
    with pytest.raises(BatchError, match="one token or more"):
        td.preflight(batch={"loss_mask": np.ones((0, 40), int)})
    with pytest.raises(DiagError, match="batch: list given, expected a mapping"):
        td.preflight(batch=[1, 2])
