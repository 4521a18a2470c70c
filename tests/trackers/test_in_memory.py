import math

import numpy as np
import pandas as pd
import pytest

from tracker_diag import diagnose, read_run
from tracker_diag.errors import SourceError

NAN = math.nan


def test_a_list_of_rows():
    run = read_run([{"step": 3, "kl": 0.1, "eval": {"score": 0.5}}, {"step": 4, "kl": NAN, "reward": None}])
    assert run.source == "2 rows"
    assert run.rows[3] == {"kl": 0.1, "eval/score": 0.5}
    assert list(run.rows[4]) == ["kl"]  # NaN was put there by somebody; None is no value


def test_numbers_of_numpy():
    run = read_run([{"step": np.int64(3), "kl": np.float32(0.5), "reward": np.array(0.25)}])
    assert run.rows == {3: {"kl": 0.5, "reward": 0.25}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1.0], r"1 rows: row 0 is of type float, expected a mapping"),
        ([{"step": 1.5, "kl": 1.0}], "step is '1.5', expected a whole number"),
        ([], "no metrics"),
        (pd.DataFrame({"step": [1]}), "no metrics"),
        ({"kl": [1.0]}, "dict given, expected a path, a source, a pandas.DataFrame or a list of rows"),
        (7, "int given, expected"),
    ],
)
def test_what_is_no_run_says_so(given, text):
    with pytest.raises(SourceError, match=text):
        read_run(given)


def test_a_frame_is_read_as_its_rows():
    rows = [{"step": 10 * step, "kl": 0.1 * step, "reward": 1 - 0.1 * step} for step in range(1, 30)]
    run = read_run(pd.DataFrame(rows))
    assert run.source == "a data frame of 29 rows"
    assert run.rows == read_run(rows).rows
    assert read_run(pd.DataFrame(rows).set_index("step")).rows == run.rows


def test_a_diagnosis_as_a_frame_can_be_read_again():
    rows = [{"step": step, "kl": 0.1 + step % 3, "reward": 0.5} for step in range(30)]
    assert read_run(diagnose(rows).to_pandas()).rows == read_run(rows).rows


def test_nan_where_nothing_was_logged_is_no_nan():
    """A row a step with an evaluation every tenth, as W&B's history has it."""
    rows = [{"_step": step, "loss": 1.0, "kl": 0.1, "eval_score": 0.5 if step % 10 == 0 else NAN} for step in range(50)]
    run = read_run(pd.DataFrame(rows))
    assert sum("eval_score" in row for row in run.rows.values()) == 5
    assert not any(math.isnan(value) for row in run.rows.values() for value in row.values())


def test_irregular_evaluations_in_rows_of_their_own():
    """The history of Hugging Face's trainer: training rows, evaluations between them, and sums at the end."""
    history = []
    for step in range(1, 31):
        history.append({"step": step, "epoch": step / 30, "loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-6})
        if step in (5, 6, 17, 30):
            history.append({"step": step, "epoch": step / 30, "eval_loss": 0.4, "eval_runtime": 3.0})
    history.append({"step": 30, "epoch": 1.0, "train_runtime": 100.0})
    run = read_run(pd.DataFrame(history))
    assert run.rows == read_run(history).rows


@pytest.mark.parametrize("others", [{"learning_rate": 1e-6}, {}])
def test_nan_at_the_end_of_a_run_that_diverged_stays(others):
    rows = [
        {"step": step, **others, **({"loss": 0.5, "reward": 0.1} if step < 20 else {"loss": NAN, "reward": NAN})}
        for step in range(30)
    ]
    run = read_run(pd.DataFrame(rows))
    assert sum(math.isnan(row["loss"]) for row in run.rows.values()) == 10
    assert diagnose(pd.DataFrame(rows)).summary.first_break.onset == 20


def test_a_column_of_nan_was_logged_and_missing_values_were_not():
    frame = pd.DataFrame({"step": [1, 2], "reward_std": [NAN, NAN], "kl": pd.array([0.1, None], dtype="Float64")})
    run = read_run(frame)
    assert all(math.isnan(row["reward_std"]) for row in run.rows.values())
    assert run.rows[1]["kl"] == 0.1
    assert "kl" not in run.rows[2]
