"""Lines of loops of one's own, in the forms that public logs have."""

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.console import read_console


def run_of(tmp_path, lines):
    file = tmp_path / "train.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    return read_console(file, "it")


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("[my run]   {0}/50 | loss=-3.25 | reward=0.125 | acc=12.5%", {"loss": -3.25, "reward": 0.125}),
        ("Epoch:[1/1]({0}/9751), Reward: -2.5, KL_ref: 1e-3, Adv Std: 0.9", {"reward": -2.5, "kl_ref": 0.001}),
        ("✅ Step {0} | Avg reward: 0.5", {"avg_reward": 0.5}),
        ("step: {0}, loss: nan, entropy: .25", {"loss": pytest.approx(float("nan"), nan_ok=True), "entropy": 0.25}),
        ("2026-01-01 10:00:00,123 - train - INFO - update {0} loss: 2.0 grad_norm: 1", {"loss": 2.0, "grad_norm": 1.0}),
        ('iteration={0} {{"mean_reward": 0.75, "kl": 0.01}}', {"mean_reward": 0.75, "kl": 0.01}),
        ("global_step=1{0} truncated_rate=25% reward=1", {"truncated_rate": 0.25, "reward": 1.0}),
    ],
)
def test_a_line_gives_its_step_and_the_names_that_are_known(tmp_path, line, values):
    run = run_of(tmp_path, ["rank=8 seed=42 lr=3e-05", *(line.format(step) for step in range(1, 9))])
    first = 11 if line.startswith("global") else 1
    assert run.rows == dict.fromkeys(range(first, first + 8), values)
    assert run.notes == (f"read from lines such as {line.format(1)[:80]!r}",)


def test_without_steps_lines_are_counted_and_samples_are_no_rows(tmp_path):
    """A sample's reward is not that of the batch. An evaluation has the number of the last batch."""
    lines = []
    for batch in range(10):
        lines += [f"INFO - rl_loss: 0.5, token_entropy: 0.8, data: {{'total_reward': {batch}.0}}"]
        lines += ["INFO - reward: {'format': 1.0, 'reward': 0.0}"] * 3
        lines += ["INFO - eval_acc: 0.25"] * (batch % 2)
    run = run_of(tmp_path, lines)
    assert run.rows[2] == {"rl_loss": 0.5, "token_entropy": 0.8, "total_reward": 1.0, "eval_acc": 0.25}
    assert list(run.rows) == list(range(1, 11))
    assert run.notes[1] == "the log does not say its steps: they were counted, a step a line"


def test_four_lines_and_text_are_no_log(tmp_path):
    with pytest.raises(SourceError, match="or five lines such as 'step 12"):
        run_of(tmp_path, ["step 1 | reward: 0.5"] * 4 + ["we got reward: high", "https://a.b/c?loss=x1"] * 9)


def test_rows_of_a_trainer_go_before_lines(tmp_path):
    run = run_of(tmp_path, [*("step 1 | reward: 0.5",) * 9, *("{'loss': 0.1, 'reward': 0.25}",) * 5])
    assert run.rows == {step: {"loss": 0.1, "reward": 0.25} for step in range(1, 6)}
