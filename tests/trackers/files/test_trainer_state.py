import json

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.read import read_trainer_state

STATE = {
    "best_metric": None,
    "epoch": 1.0,
    "log_history": [
        {"epoch": 0.1 * i, "step": i, "loss": 1 / i, "kl": 0.01 * i, "rewards/accuracy/mean": 0.5} for i in range(1, 40)
    ],
    "max_steps": 250,
    "stateful_callbacks": {"TrainerControl": {"args": {"should_save": True}}},
    "train_batch_size": 8,
    "trial_name": None,
}
STATE["log_history"][20:20] = [{"epoch": 2.0, "eval_loss": 0.7, "step": 20}]
STATE["log_history"] += [{"epoch": 0.1 * 39, "step": 39, "train_runtime": 12.5, "note": "done"}]


def run_of(tmp_path, text):
    file = tmp_path / "trainer_state.json"
    file.write_text(text)
    return read_trainer_state(file, "it")


@pytest.mark.parametrize("indent", [None, 2])
def test_training_and_evaluation_rows_share_steps(tmp_path, indent):
    run = run_of(tmp_path, json.dumps(STATE, indent=indent))
    assert list(run.rows) == list(range(1, 40))
    assert run.rows[20] == {"epoch": 2.0, "loss": 1 / 20, "kl": 0.2, "rewards/accuracy/mean": 0.5, "eval_loss": 0.7}
    assert "eval_loss" not in run.rows[21]
    assert run.rows[39]["train_runtime"] == 12.5
    assert run.config["max_steps"] == 250
    assert run.config["stateful_callbacks.TrainerControl.args.should_save"] is True
    assert run.notes == ("values that are no numbers, left out: 1, first 'note' at log_history[40]",)


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.77, 0.9])
def test_a_file_that_breaks_off_is_read_so_far(tmp_path, cut):
    text = json.dumps(STATE, indent=2)
    run = run_of(tmp_path, text[: int(len(text) * cut)])
    assert 5 < len(run.rows) < 40
    assert run.notes[0] == "the file breaks off; what came before was read"
    assert run.rows[5] == {"epoch": 0.5, "loss": 0.2, "kl": 0.05, "rewards/accuracy/mean": 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"log_history": []}', "it: no metrics"),
        ('{"log_history": [{"step": 1}, 5]}', "log_history[1]: int given, expected an object with a step"),
        ('{"log_history": [{"step": 1} oops ' + "x" * 50, "character 29: no JSON: Expecting ',' delimiter"),
        ('{"log_history": [{"step": 1, "a": zzz, "b": 1}, {"step": 2}]}', "character 34: no JSON: Expecting value"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(tmp_path, text, message):
    with pytest.raises(SourceError) as error:
        run_of(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_of_numbers_for_each_metric_is_a_table(tmp_path):
    columns = {"note": "mine", "betas": [0.9, 0.99], "step": [10, 20, 30], "rewards_avg": [0.25, None, 0.5]}
    run = run_of(tmp_path, json.dumps(columns))
    assert run.rows == {10: {"rewards_avg": 0.25}, 30: {"rewards_avg": 0.5}}
    assert list(run_of(tmp_path, json.dumps(STATE | {"betas": [0.9, 0.99]})).rows) == list(range(1, 40))
    with pytest.raises(SourceError, match="expected log_history, or a list"):
        run_of(tmp_path, json.dumps({"names": ["a", "b"], "n": [1]}))


def test_what_kaggle_keeps_of_a_notebook_is_read_as_it_was_printed(tmp_path):
    """A piece may end within a row."""
    printed = "".join(f"\r {step}%|█ | {step}/100 [00:01<?]\n{{'loss': '0.5', 'kl': {step}}}\n" for step in (10, 20))
    pieces = [{"stream_name": "stdout", "time": 1.5, "data": printed[at : at + 7]} for at in range(0, len(printed), 7)]
    run = run_of(tmp_path, json.dumps(pieces))
    assert run.rows == {10: {"loss": 0.5, "kl": 10.0}, 20: {"loss": 0.5, "kl": 20.0}}
    with pytest.raises(SourceError, match="no metrics in what was printed, 1 pieces"):
        run_of(tmp_path, json.dumps([{"stream_name": "stderr", "data": "hello"}]))
