"""Writes the token table of a demo run: Parquet, one row a token."""

from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracker_diag.demo.grpo import TrainingStep
from tracker_diag.demo.world import PROMPT_LENGTH

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("sequence", pa.int32()),
        ("position", pa.int32()),
        ("is_model", pa.bool_()),
        ("logprob", pa.float32()),
        ("old_logprob", pa.float32()),
        ("ref_logprob", pa.float32()),
    ]
)
STEPS_PER_GROUP = 20


class TokenTable:
    """Appends steps to `file`; one row group every 20 steps."""

    def __init__(self, file: Path) -> None:
        self._writer = pq.ParquetWriter(file, SCHEMA)
        self._waiting: list[pa.RecordBatch] = []

    def write(self, step: TrainingStep) -> None:
        """Append all tokens of `step` but the padding: prompt, model and tool tokens."""
        rollout = step.rollout
        real = rollout.is_response.numpy().copy()
        real[:, :PROMPT_LENGTH] = True
        sequence, position = np.nonzero(real)
        arrays = [np.full(len(sequence), step.step), sequence, position]
        arrays += [
            tensor.numpy()[real]
            for tensor in (rollout.is_model, step.logprobs, rollout.sampler_logprobs, step.ref_logprobs)
        ]
        columns = [pa.array(values, field.type) for values, field in zip(arrays, SCHEMA, strict=True)]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        if len(self._waiting) == STEPS_PER_GROUP:
            self._flush()

    def __enter__(self) -> "TokenTable":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting = []
