import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tracker_diag.monitor.context import Code, Context, context_of, versions_here

SECRET = "hf_thisIsNotForAnyone"  # noqa: S105


def test_seed_data_and_evaluation_are_found_among_the_settings_of_any_framework():
    config = {
        "trainer.seed": 7, "data.train_files": ["a.parquet"], "evaluation_command": "python evaluate.py", "lr": 1e-6,
        "max_tokens": 512, "eval_batch_size": 8,
    }  # fmt: skip
    result = context_of(config, {"torch": "2"}, Code("abc", dirty=False))
    assert (result.seed, result.data) == ({"trainer.seed": 7}, {"data.train_files": ["a.parquet"]})
    assert result.evaluation == {"evaluation_command": "python evaluate.py"}
    assert result.config == config
    assert result.missing == ()


def test_what_is_missing_is_said_with_what_to_do():
    assert context_of({"lr": 1e-6, "seed": None}).missing == (
        "the seed (setting `seed`)",
        "the data splits (`data_splits`)",
        "the evaluation command (`evaluation_command`)",
        "the code's revision (no git commit found)",
        "versions",
    )
    assert context_of({}).missing[0] == "settings"
    assert context_of({"seed": 0}).seed == {"seed": 0}  # which is one


def test_no_secret_of_the_settings_or_the_environment_is_in_it(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_ofTheEnvironment")
    config = {
        "hf_token": SECRET, "wandb.api_key": "k", "evaluation_command": f"run --token {SECRET} hf_ofTheEnvironment",
        "store": "https://user:pass@host/x", "hub": {"access_token": SECRET, "name": "m"}, "eos_token": "</s>",
    }  # fmt: skip
    result = context_of(config)
    assert SECRET not in json.dumps(result.to_json())
    assert result.config == {
        "hf_token": "***", "wandb.api_key": "***", "evaluation_command": "run --token *** ***",
        "store": "https://***@host/x", "hub": {"access_token": "***", "name": "m"}, "eos_token": "</s>",
    }  # fmt: skip


def test_settings_that_are_no_json_are_kept_as_text():
    result = context_of({"a": float("nan"), "b": {1}, "c": (1, None), "d": "x" * 5000, "e": float("inf")})
    assert result.config == {"a": "nan", "b": "{1}", "c": [1, None], "d": "x" * 2000, "e": "inf"}
    json.dumps(result.to_json(), allow_nan=False)


def test_it_is_read_back_as_it_was():
    result = context_of({"seed": 1, "splits": "train/test"}, {"numpy": "2"}, Code("abc", dirty=True))
    assert Context.of_json(json.dumps(result.to_json())) == result


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3}', '{"config": {}, "code": 3}', "null"])
def test_another_programs_file_is_none(text):
    with pytest.raises(ValueError):  # noqa: PT011  # JSON's own, or ours
        Context.of_json(text)


def test_the_versions_are_those_that_are_installed():
    result = versions_here()
    assert result["numpy"] == np.__version__
    assert result["python"] == sys.version.split()[0]
    assert "verl" not in result


PROGRAM = "from tracker_diag.monitor.context import code_here; print(code_here())"


def code_of(folder, path=None):
    """What the program finds that is in `folder`."""
    (folder / "train.py").write_text(PROGRAM)
    known = os.environ | ({"PATH": path} if path is not None else {})
    output = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=known, capture_output=True, text=True, check=True
    )
    return output.stdout.strip()


@pytest.mark.slow
def test_the_code_is_that_of_the_program_and_its_changes_are_reported(tmp_path):
    def git(*args):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *author, *args], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert code_of(tmp_path) == "None"
    git("init", "-q")
    assert code_of(tmp_path) == "None"  # no commit yet
    git("add", "train.py")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert code_of(tmp_path) == f"Code(commit='{commit}', dirty=False)"
    git("rm", "-q", "--cached", "train.py")
    assert code_of(tmp_path) == f"Code(commit='{commit}', dirty=True)"
    assert code_of(tmp_path, path="") == "None"  # no git
