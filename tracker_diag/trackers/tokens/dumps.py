"""Dumps of trainers that hold log-probabilities: SkyRL's batches and slime's samples, as arrays with our names."""

import pickle
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from tracker_diag.errors import require

SKYRL = {
    "action_log_probs": "old_logprob", "base_action_log_probs": "ref_logprob", "rollout_logprobs": "rollout_logprob",
    "loss_mask": "is_model", "advantages": "advantage",
}  # fmt: skip
"""Tensors of SkyRL's `TrainingInputBatch`, (B, T), and the columns that they are."""
SLIME = {
    "log_probs": "old_logprob", "ref_log_probs": "ref_logprob", "rollout_log_probs": "rollout_logprob",
    "advantages": "advantage",
}  # fmt: skip
"""Lists of a sample of slime's, a value for each token of its response, and the columns that they are."""


class _Nothing:
    """In place of whatever a pickle names: takes what it is given, and does nothing."""

    def __init__(self, *given: object, **named: object) -> None:
        """Nothing is kept."""

    append = extend = __setitem__ = __setstate__ = __init__


class _State(pickle.Unpickler):
    """Reads the state of a batch, of numbers and bytes, and imports nothing that the file names."""

    def find_class(self, module: str, name: str) -> Any:
        return (lambda _, state: state) if name == "_rebuild_tensor_batch" else _Nothing


def skyrl_arrays(handle: Any) -> dict[str, Any]:
    """(B, T) arrays of a file of `trainer.dump_data_batch`, by column; TypeError where it is another pickle."""
    state = _State(handle).load()
    batch = state.get("batch_dict") if isinstance(state, Mapping) else None
    if not isinstance(batch, Mapping):
        raise TypeError(f"{type(state).__name__} given, expected a TrainingInputBatch that SkyRL has saved")
    return {ours: _array(batch[theirs]) for theirs, ours in SKYRL.items() if batch.get(theirs) is not None}


def _array(saved: Mapping[str, Any]) -> Any:
    if "dtype" not in saved:  # torch's own format: bfloat16, which numpy does not have
        return require("torch", "torch").load(BytesIO(saved["data"]), weights_only=True).float().numpy()
    return np.frombuffer(saved["data"], saved["dtype"]).reshape(saved["shape"])


def slime_arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    """(N,) arrays of the samples of a rollout, by column; the step is the rollout's number.

    `given` is what `--save-debug-train-data` or `--save-debug-rollout-data` writes.
    """
    samples = given["samples"]
    masks = [_mask(sample) for sample in samples]
    arrays = {"step": np.array(given["rollout_id"]), "is_model": np.concatenate([*masks, np.zeros(0, np.bool_)])}
    arrays["sequence"] = np.repeat(np.arange(len(masks)), [len(mask) for mask in masks])
    for theirs, ours in SLIME.items():
        if samples and all(sample.get(theirs) is not None for sample in samples):
            arrays[ours] = np.concatenate([np.asarray(sample[theirs], np.float32) for sample in samples])
    return arrays


def _mask(sample: Mapping[str, Any]) -> Any:
    """(T,) of the response: what the policy sampled and is trained on. The trainer's dump calls it otherwise."""
    mask = sample.get("loss_masks", sample.get("loss_mask"))
    mask = np.ones(sample["response_length"]) if mask is None else np.asarray(mask)
    return (mask != 0) & (not sample.get("remove_sample"))
