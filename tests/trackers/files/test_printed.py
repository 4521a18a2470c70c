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
        ("[my run]   {0}/50 | loss=-3.25 | reward=0.125 | acc=12.5%", {"loss": -3.25, "reward": 0.125, "acc": 0.125}),
        ("Epoch:[1/1]({0}/9751), Reward: -2.5, Adv Std: 0.9", {"reward": -2.5, "adv_std": 0.9}),
        ("✅ Step {0} | Avg reward: 0.5", {"avg_reward": 0.5}),
        ("step: {0}, loss: nan, entropy: .25", {"loss": pytest.approx(float("nan"), nan_ok=True), "entropy": 0.25}),
        ("2026-01-01 10:00:00,123 - train - INFO - update {0} loss: 2.0 grad_norm: 1", {"loss": 2.0, "grad_norm": 1.0}),
        ('iteration={0} {{"mean_reward": 0.75, "kl": 0.01}}', {"mean_reward": 0.75, "kl": 0.01}),
        ("[INFO] Episode {0} reward -20.5 eps 0.995 to 3", {"reward": -20.5}),
        ("global_step=1{0} truncated_rate=25% reward=1", {"truncated_rate": 0.25, "reward": 1.0}),
    ],
)
def test_a_line_gives_its_step_and_all_names_that_have_a_number(tmp_path, line, values):
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
    assert run.notes[2].startswith("30 lines were left out, such as \"INFO - reward: {'format'")


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("[EVAL] step {0}: accuracy=0.515", "eval_accuracy", 0.515),
        ("Evaluation at step {0}: pass@1 = 51.5%", "eval_pass@1", 0.515),
        ("Eval: reward=0.515", "eval_reward", 0.515),
        ("Validation: val_acc=0.515", "val_acc", 0.515),
        ("gsm8k_acc: 0.515", "gsm8k_acc", 0.515),
        ("step {0} eval_acc: 0.515 (best: 0.6)", "eval_acc", 0.515),
    ],
)
@pytest.mark.parametrize("later", [0, 3, -1])  # -1: before the row of its step
def test_lines_of_an_evaluation_go_to_the_row_of_their_step(tmp_path, line, key, value, later):
    """A line without a step goes to the row before it."""
    printed = []
    for step in range(1, 61):
        rows = [f"step {step} | reward: 0.25 | loss: 0.1" + " | lr: 0.1" * (step % 7 == 0)]
        if (done := step - max(later, 0)) % 10 == 0 and 0 < done <= 50:
            rows.insert(0 if later < 0 else 1, line.format(done))
        printed += rows
    run = run_of(tmp_path, printed)
    off = 0 if "{0}" in line else later
    assert [step for step, row in run.rows.items() if key in row] == [*range(10 + off, 51 + off, 10)]
    assert {row[key] for row in run.rows.values() if key in row} == {value}
    assert [row["reward"] for row in run.rows.values()] == [0.25] * 60
    assert not run.caveats


def test_a_run_that_starts_over_keeps_its_evaluations_in_each_phase(tmp_path):
    lines = []
    for phase in range(2):
        for step in range(1, 31):
            lines += [f"step {step} reward: {phase}.0", *[f"[eval] step {step} acc: 0.{phase}"] * (step % 5 == 0)]
    run = run_of(tmp_path, lines)
    assert [row["eval_acc"] for row in run.rows.values() if "eval_acc" in row] == [0.0] * 6 + [0.1] * 6


def test_four_lines_and_text_are_no_log(tmp_path):
    with pytest.raises(SourceError, match="or five lines such as 'step 12"):
        run_of(tmp_path, ["step 1 | reward: 0.5"] * 4 + ["we got reward: high", "https://a.b/c?loss=x1"] * 9)


def test_rows_of_a_trainer_go_before_lines(tmp_path):
    run = run_of(tmp_path, [*("step 1 | reward: 0.5",) * 9, *("{'loss': 0.1, 'reward': 0.25}",) * 5])
    assert run.rows == {step: {"loss": 0.1, "reward": 0.25} for step in range(1, 6)}
