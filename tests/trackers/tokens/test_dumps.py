"""Dumps of trainers. `tests/integrations` has those that the trainers' own code writes."""

import pickle

import numpy as np
import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.records import read_records
from tracker_diag.trackers.tokens.log import TokenLog, read_tokens

# As slime at 624b824 writes them: slime/observability/train_data_utils.py (_build_dump_payload),
# slime/observability/rollout_data_utils.py (save_debug_rollout_data).
LENGTHS = (5, 7, 4)


@pytest.mark.slow
def test_slimes_dumps_of_the_trainer_are_read_and_those_of_rollouts_lack_a_pair(tmp_path):
    import torch

    old, sampled = ([-torch.rand(n) for n in LENGTHS] for _ in range(2))
    masks = [torch.tensor([1, 1, 0, 1, 1]), *(torch.ones(n, dtype=torch.int) for n in LENGTHS[1:])]
    of_trainer = [
        {"loss_masks": mask, "log_probs": a, "rollout_log_probs": b, "advantages": torch.ones(len(a)), "tokens": a}
        for mask, a, b in zip(masks, old, sampled, strict=True)
    ]
    for name, samples in {"train": of_trainer, "rollout": [
        {"response_length": n, "loss_mask": None, "remove_sample": n == 7, "rollout_log_probs": values.tolist()}
        for n, values in zip(LENGTHS, sampled, strict=True)
    ]}.items():  # fmt: skip
        (tmp_path / name).mkdir()
        torch.save({"rollout_id": 4, "samples": samples}, tmp_path / name / "4.pt")
    ((step, given),) = read_tokens(tmp_path / "train")
    assert step == 4
    np.testing.assert_array_equal(given["old_logprobs"], torch.cat(old).numpy())
    np.testing.assert_array_equal(given["rollout_logprobs"], torch.cat(sampled).numpy())
    np.testing.assert_array_equal(given["model_mask"], torch.cat(masks).numpy() == 1)
    np.testing.assert_array_equal(given["sequence_ids"], np.repeat(np.arange(3), LENGTHS))
    ((_, given),) = read_tokens(tmp_path / "rollout")
    assert given["model_mask"].sum() == 9
    with TokenLog(tmp_path / "rollout") as log:
        assert "pair mismatch: no, old_logprob is missing" in log.explained()


class Shell:
    def __reduce__(self):
        return exec, ("raise SystemExit('executed')",)


@pytest.mark.parametrize("given", [Shell(), {"batch_dict": Shell()}, [1], b"\x80\x05K", b"no pickle"])
def test_a_pickle_executes_nothing_and_is_refused_unless_skyrl_wrote_it(tmp_path, given):
    (tmp_path / "step_1.pkl").write_bytes(given if isinstance(given, bytes) else pickle.dumps(given))
    with pytest.raises(SourceError, match=r"step_1\.pkl: cannot be read: "):
        TokenLog(tmp_path)


def test_texts_and_rewards_of_trainers_are_samples(tmp_path):
    import pandas as pd

    rows = {"step": [3, 3], "prompt": ["q", "q"], "completion": ["a", "b"], "solved": [1.0, 0.0], "polite": [0.5, None]}
    pd.DataFrame({**rows, "advantage": [0.7, -0.7]}).to_parquet(tmp_path / "completions_00003.parquet")  # TRL's columns
    (first, second), _ = read_records(tmp_path / "completions_00003.parquet")
    assert (first["reward"], first["components"]) == (1.5, {"solved": 1.0, "polite": 0.5})
    assert second["reward"] == 0.0
