"""The token table of a demo run: Parquet, one row a token."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracker_diag.demo.grpo import TrainingStep
from tracker_diag.demo.world import PROMPT_LENGTH

GROUP = 1 << 16
"""Rows of a row group."""


def tokens_of(step: TrainingStep) -> pa.Table:
    """All tokens of `step` but the padding: prompt, model and tool tokens."""
    rollout = step.rollout
    real = rollout.is_response.numpy().copy()
    real[:, :PROMPT_LENGTH] = True
    sequence, position = np.nonzero(real)
    columns = {
        "step": np.full(len(sequence), step.step, np.int32),
        "sequence": sequence.astype(np.int32),
        "position": position.astype(np.int32),
        "is_model": rollout.is_model.numpy()[real],
        "logprob": step.logprobs.numpy()[real],
        "old_logprob": rollout.sampler_logprobs.numpy()[real],
        "ref_logprob": step.ref_logprobs.numpy()[real],
    }
    return pa.table(columns)


def write_tokens(file: Path, tables: Sequence[pa.Table]) -> None:
    """Write the tokens of all steps to `file`."""
    pq.write_table(pa.concat_tables(tables), file, row_group_size=GROUP)
