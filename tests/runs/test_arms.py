"""Which settings of two arms differ; scores that do not compare come first."""

import pytest

from tracker_diag.runs.arms import concerns_evaluation, differing
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun


def a_run(config, name="a run"):
    return diagnose(FinishedRun(name, {step: {"reward": 0.5} for step in range(3)}, config, {}, ()))


@pytest.mark.slow
def test_settings_that_differ_are_reported_with_those_of_the_evaluation_first():
    before = [a_run({"lr": 1e-4, "beta": 0.1, "eval.temperature": 0.0, "seed": 0, "model_name": "m"})]
    after = [a_run({"lr": "0.0001", "beta": 0.2, "eval.temperature": 1.0, "seed": 1, "model_name": "m", "new": True})]
    result = differing(before, after)
    assert [(item.name, item.reference, item.other, item.evaluation) for item in result] == [
        ("eval.temperature", ("0",), ("1",), True),
        ("beta", ("0.1",), ("0.2",), False),
        ("new", (), ("True",), False),
    ]


def test_a_number_is_the_same_in_every_spelling():
    assert not differing([a_run({"a": 1, "b": "1e-5", "c": 2.0})], [a_run({"a": 1.0, "b": 0.00001, "c": "2"})])


def test_nothing_is_said_of_settings_that_one_side_does_not_tell():
    assert not differing([a_run({})], [a_run({"lr": 1})])


@pytest.mark.slow
def test_a_model_or_a_data_set_is_a_setting_and_a_folder_is_none():
    before, after = (
        a_run({"model_name_or_path": name, "dataset_name": name, "output_dir": name, "run_name": name})
        for name in ("one", "two")
    )
    assert [item.name for item in differing([before], [after])] == ["dataset_name", "model_name_or_path"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb.api_key", "hf_token", "db_password", "client_secret"])
def test_secrets_are_neither_shown_nor_compared(name):
    (item, *_) = differing([a_run({"lr": 1, name: "sk-1"})], [a_run({"lr": 2, name: "sk-2"})])
    assert item.name == "lr"
    (only,) = differing([a_run({"lr": 1})], [a_run({"lr": 1, name: "sk-2"})])
    assert (only.reference, only.other) == ((), ("***",))


@pytest.mark.slow
def test_a_limit_of_tokens_is_no_secret_and_one_of_the_evaluation():
    (item,) = differing([a_run({"eval.max_new_tokens": 1})], [a_run({"eval.max_new_tokens": 2})])
    assert (item.reference, item.other, item.evaluation) == (("1",), ("2",), True)
    assert not concerns_evaluation("learning_rate")
