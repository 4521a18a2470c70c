"""Slices: each model token gets one cell of each slicing dimension."""

from typing import Literal, TypeAlias

import numpy as np

from tracker_diag.arrays import RowArray
from tracker_diag.batch import TokenBatch, running_count

Slice: TypeAlias = Literal["text_only", "post_tool"]

CONTEXT: tuple[Slice, ...] = ("text_only", "post_tool")
"""The dimension `context`: model tokens before any tool result of their sequence, and after one."""

ALL = "all"
"""The merge of one dimension's slices: every model token once."""


def label_context(batch: TokenBatch) -> RowArray:
    """(N,) int32 index into `CONTEXT` of each model token; `len(CONTEXT)` on all others.

    A tool token is a response token that the policy did not sample, after the sequence's first model
    token; what stands before that is its prompt. Rows are labelled before any
    rejection or clipping mask of the trainer, so that what the optimiser drops is still seen.
    """
    after = batch.after_tool
    if after is None:
        begun = running_count(batch.model_mask, batch.sequence) > 0
        after = running_count(batch.response_mask & ~batch.model_mask & begun, batch.sequence) > 0
    return np.where(batch.model_mask, after, np.int32(len(CONTEXT))).astype(np.int32, copy=False)
