import csv
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.trackers.files.csv_table import read_csv
from tracker_diag.trackers.keys import NO_METRICS, STEPS


def run_of(tmp_path, text, name="progress.csv"):
    file = tmp_path / name
    file.write_text(text)
    return read_csv(file, "it")


NAMES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=8).filter(
        lambda name: name.lower() not in {*STEPS, *NO_METRICS, "key", "value"} and not name.isspace()
    ),
    min_size=1,
    max_size=4,
    unique_by=str.lower,
)


@pytest.mark.slow
@settings(deadline=None)
@given(NAMES, st.lists(st.lists(st.none() | st.floats(), min_size=4, max_size=4), min_size=1, max_size=8))
def test_any_table_comes_back(tmp_path_factory, names, table):
    file = tmp_path_factory.mktemp("c") / "p.csv"
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["step", *names])
        for step, row in enumerate(table):
            writer.writerow([step, *("" if value is None else repr(value) for value in row[: len(names)])])
    wanted = {
        step: {name: value for name, value in zip(names, row, strict=False) if value is not None}
        for step, row in enumerate(table)
    }
    wanted = {step: row for step, row in wanted.items() if row}
    if wanted and not any(" - " in name for name in names):
        run = read_csv(file, "it")
        if not any("padding" in note for note in run.notes):
            assert repr(run.rows) == repr(wanted)


def test_stable_baselines_progress(tmp_path):
    text = "rollout/ep_rew_mean,time/iterations,time/time_elapsed,time/total_timesteps,train/loss,note\n"
    run = run_of(tmp_path, text + "20.5,1,2,2048,,\n22,2,4,4096,0.5,warm up\n")
    assert run.rows == {
        2048: {"rollout/ep_rew_mean": 20.5, "time/iterations": 1, "time/time_elapsed": 2},
        4096: {"rollout/ep_rew_mean": 22, "time/iterations": 2, "time/time_elapsed": 4, "train/loss": 0.5},
    }
    assert run.seconds == {2048: 0.0, 4096: 2.0}
    assert run.notes == ("values that are no numbers, left out: 1, first 'note' at line 3",)


def test_semicolons_a_byte_order_mark_quotes_and_truth_values(tmp_path):
    run = run_of(tmp_path, '\ufeff"Step";"a;b";ok\r\n1;"0.5";True\r\n2;inf;False\r\n\r\n')
    assert run.rows == {1: {"a;b": 0.5, "ok": 1.0}, 2: {"a;b": math.inf, "ok": 0.0}}


def test_exports_of_trackers(tmp_path):
    tensorboard = run_of(tmp_path, "Wall time,Step,Value\n100.0,1,0.5\n160.0,2,0.25\n", "run-PPO_1-tag-train_loss.csv")
    assert tensorboard.rows == {1: {"train_loss": 0.5}, 2: {"train_loss": 0.25}}
    assert tensorboard.seconds == {1: 0.0, 2: 60.0}

    header = '"Step","trim-run-3 - train/kl","trim-run-3 - train/kl__MIN","trim-run-3 - train/kl__MAX"\n'
    assert run_of(tmp_path, header + '"1","0.5","0.5","0.5"\n').rows == {1: {"train/kl": 0.5}}

    long = run_of(tmp_path, "run,key,value,step,timestamp\nr,loss,0.5,1,1\nr,loss,0.4,2,2\nr,kl,0.1,2,2\n")
    assert long.rows == {1: {"loss": 0.5}, 2: {"loss": 0.4, "kl": 0.1}}


@pytest.mark.parametrize("tail", ["3,0.", '3,"0.5', "3"])
def test_a_last_row_that_breaks_off(tmp_path, tail):
    run = run_of(tmp_path, f"step,a,b\n1,1,1\n2,2,2\n{tail}")
    assert run.rows == {1: {"a": 1.0, "b": 1.0}, 2: {"a": 2.0, "b": 2.0}}
    assert run.notes == ("the last row, at line 4, breaks off and was left out",)
