"""prime-rl's token exports: `token_exports/step_N/rank_R.jsonl`, one sequence a line, with a STABLE file when complete.

A run writes them with `trainer.enable_token_export=true`. They are read step by step, as a token table is. prime-rl
updates once a step, so its trainer's log-probabilities are those of the batch's start. Tokens that the policy did not
sample, such as those of a frozen model, have no log-probability of a rollout: they are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_objects
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.tokens.skipped import Skipped

SCHEMA = 1
"""The version of a record that is known here."""
COLUMNS = ("loss_mask", "inference_logprobs", "trainer_logprobs")
"""What each record must have, a value a token."""
OTHERS = ("advantages", "importance_ratio", "is_masked", "rl_weights", "ref_kl_weights")
"""What it may have: null on each token where the run has none."""


@dataclass(frozen=True)
class ExportPart:
    """One complete step of a run."""

    first: int
    files: tuple[Path, ...]

    @property
    def last(self) -> int:
        return self.first

    @property
    def rows(self) -> int:
        """Bytes over what a token takes, about."""
        return sum(file.stat().st_size for file in self.files) // 100

    def stamp(self) -> str:
        """What changes when its files do."""
        return " ".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in self.files)

    def only(self, step: int) -> "ExportPart":
        return self

    def steps(self, texts: object, skipped: Skipped) -> Iterator[tuple[int, dict[str, Any]]]:
        """The arguments of `Monitor.observe`, unless no token was sampled."""
        with skipped.instead():
            tensors = _observation([record for file in self.files for record in _records(file)])
            if tensors:
                yield self.first, tensors


def exports_of(folder: Path) -> list[ExportPart]:
    """Each complete step of `folder`, `token_exports` or what it is in, in rising order; none where it is neither."""
    inside = folder / "token_exports"
    root = inside if inside.is_dir() else folder
    steps = [
        (int(named[1]), at, tuple(sorted(files, key=lambda file: (int(re.sub(r"\D", "", file.stem) or 0), file.stem))))
        for at in (root.iterdir() if root.is_dir() else ())
        if (named := re.fullmatch(r"step_(\d+)", at.name)) and (files := [*at.glob("rank_*.jsonl")])
    ]
    parts = [ExportPart(step, files) for step, at, files in sorted(steps) if (at / "STABLE").exists()]
    if steps and not parts:
        raise SourceError(f"{folder}: no complete step, expected token_exports/step_N with STABLE in it")
    return parts


def _records(file: Path) -> Iterator[dict[str, Any]]:
    for number, record, _ in read_objects(file, Odd().count):
        if isinstance(record, SourceError):
            raise record
        lengths = {name: len(record[name]) for name in (*COLUMNS, *OTHERS) if isinstance(record.get(name), list)}
        problem = ""
        if record.get("schema_version") != SCHEMA:
            problem = f"schema_version {record.get('schema_version')} given, expected {SCHEMA}"
        elif missing := [name for name in COLUMNS if name not in lengths]:
            problem = f"no list {missing[0]}, expected a value a token"
        elif len({*lengths.values()}) > 1:
            problem = f"columns of different lengths, expected {lengths['loss_mask']} values in each"
        if problem:
            raise SourceError(f"{file}:{number}: {problem}")
        yield record


def _observation(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Packed arrays of all sequences of a step; nothing where no token was sampled."""
    if not records:
        return {}
    lengths = [len(record["loss_mask"]) for record in records]

    def column(name: str) -> Any:
        """(N,) float32, NaN for null."""
        parts = [record.get(name) or [None] * n for record, n in zip(records, lengths, strict=True)]
        return np.array([value for part in parts for value in part], np.float32)

    masked = column("loss_mask") == 1
    # What the policy sampled has a weight in the loss. Of RL null is the default, 1; of the KL it is none.
    sampled = masked & ((column("rl_weights") != 0) | (np.abs(column("ref_kl_weights")) > 0))
    if not sampled.any():
        return {}
    given: dict[str, Any] = {
        "old_logprobs": column("trainer_logprobs"),
        "rollout_logprobs": column("inference_logprobs"),
        "model_mask": sampled,
        # A frozen model's tokens are no tool's; prompts differ from tools by their place.
        "response_mask": sampled | ~masked,
        "sequence_ids": np.repeat(np.arange(len(records)), lengths),
        "advantages": column("advantages"),
    }
    ratio, dropped = column("importance_ratio"), column("is_masked")
    if np.isfinite(dropped[sampled]).all():
        given["applied_weights"] = np.where(dropped == 1, 0, ratio).astype(np.float32)
    if any(later := go_on_from_others([_prompt(record) for record in records])):
        given["begins_after_tool"] = later
    env = [record.get("env_name") for record in records]
    if any(env):
        given["env"] = [name if isinstance(name, str) else "" for name in env]
    return given


def _prompt(record: Mapping[str, Any]) -> tuple[int, ...]:
    ids, mask = record.get("token_ids"), record["loss_mask"]
    if isinstance(ids, list) and len(ids) == len(mask) and True in mask:
        return tuple(ids[: mask.index(True)])
    return ()


def go_on_from_others(prompts: Sequence[tuple[int, ...]]) -> list[bool]:
    """Which samples begin after a turn of their rollout: their prompt extends that of another one of the step.

    prime-rl makes a new sample of a rollout where its prefix breaks, and does not say of which. The prompt of a rollout
    ends where the model begins to speak. So a longer one has a turn in it, and the answer to that.
    """
    going_on: set[tuple[int, ...]] = set()
    shorter: list[tuple[int, ...]] = []
    for prompt in sorted({prompt for prompt in prompts if prompt}):
        while shorter and prompt[: len(shorter[-1])] != shorter[-1]:
            shorter.pop()
        if shorter:
            going_on.add(prompt)
        shorter.append(prompt)
    return [prompt in going_on for prompt in prompts]
