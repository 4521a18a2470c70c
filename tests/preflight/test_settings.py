"""Settings of frameworks: their names and defaults are the real ones, and a mistake in them is found."""

import ast
import inspect
from importlib.util import find_spec
from pathlib import Path

import pytest

import tracker_diag as td
from tracker_diag.errors import UnknownName
from tracker_diag.preflight import evaluation, lint
from tracker_diag.preflight.lint import config_checks
from tracker_diag.preflight.settings import frameworks, settings_of
from tracker_diag.rules.loader import catalog


def checks(config, framework=None):
    return {check.name: check for check in config_checks(config, framework)}


@pytest.mark.parametrize("framework", frameworks())
def test_defaults_alone_are_no_mistake(framework):
    assert "fail" not in {check.status for check in checks({}, framework).values()}


@pytest.mark.parametrize("framework", frameworks())
def test_a_framework_is_known_by_its_own_names(framework):
    names = frameworks()[framework].recognise
    assert settings_of(dict.fromkeys(names, 1)).framework.framework == framework
    assert settings_of({f"trainer.{name}": 1 for name in names}).framework.framework == framework
    assert settings_of(dict.fromkeys(names)) is None  # no value


def test_what_is_of_no_known_framework_is_not_checked():
    assert settings_of({}) is None
    assert settings_of({"learning_rate": 1e-6, "epsilon": 1e-8}) is None
    dpo = {"beta": 0.1, "loss_type": "sigmoid", "per_device_train_batch_size": 4, "max_completion_length": 512}
    assert settings_of(dpo) is None
    assert {check.status for check in config_checks({})} == {"not checked"}
    with pytest.raises(UnknownName, match="framework: 'trll' given, expected one of openrlhf, sb3, trl, verl; did you"):
        td.preflight(config={"epsilon": 0.2}, framework="trll")


def declared_by_trl():
    """Fields of TRL's GRPOConfig with their defaults, read off its source: to import it takes eight seconds."""
    file = Path(find_spec("trl").origin).parent / "trainer" / "grpo_config.py"
    (config,) = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef))
    fields = (node for node in config.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call))
    given = {node.target.id: {one.arg: one.value for one in node.value.keywords} for node in fields}
    return {name: ast.literal_eval(of["default"]) for name, of in given.items() if "default" in of}


def test_names_and_defaults_are_those_of_trl():
    real = declared_by_trl()
    of_transformers = {"per_device_train_batch_size", "gradient_accumulation_steps", "world_size", "num_processes"}
    compared = 0
    for name, setting in frameworks()["trl"].settings.items():
        for key in set(setting.keys) - of_transformers:
            assert key in real
            if setting.default is not None:
                assert real[key] == setting.default, name
                compared += 1
    assert compared >= 6
    assert set(frameworks()["trl"].recognise) <= set(real)


@pytest.mark.slow
def test_names_and_defaults_are_those_of_stable_baselines():
    from stable_baselines3 import PPO

    real = {name: one.default for name, one in inspect.signature(PPO).parameters.items()}
    for name, setting in frameworks()["sb3"].settings.items():
        for key in setting.keys:
            if key != "n_envs":
                assert real[key] == setting.default, name
    assert set(frameworks()["sb3"].recognise) <= set(real)


def test_openrlhf_takes_k1_where_nothing_is_said():
    base = {"rollout_batch_size": 128, "n_samples_per_prompt": 8, "advantage_estimator": "group_norm"}
    assert checks(base)["config_kl"].reason == "KL in the reward, coefficient 0.01"
    in_loss = checks(base | {"use_kl_loss": True})["config_kl"]
    assert in_loss.status == "fail"
    assert "k1 (the default)" in in_loss.reason
    assert checks(base | {"use_kl_loss": True, "kl_estimator": "k3"})["config_kl"].status == "pass"
    assert checks(base | {"n_samples_per_prompt": 1})["config_groups"].status == "fail"


TRL = {"num_generations": 8, "num_iterations": 2, "per_device_train_batch_size": 4}


def test_what_several_devices_would_make_right_is_not_called_wrong():
    check = checks(TRL)["config_groups"]
    assert check.status == "not checked"
    assert check.do == "give world_size in the configuration"
    assert checks(TRL | {"world_size": 2})["config_groups"].status == "pass"
    assert checks(TRL | {"world_size": 1})["config_groups"].status == "fail"


@pytest.mark.parametrize(
    ("settings", "check", "reason"),
    [
        ({"epsilon": 0.0}, "config_clip", "makes no range around 1"),
        ({"epsilon": 1.5}, "config_clip", "makes no range around 1"),
        ({"epsilon": 3e-4}, "config_clip", "numerics alone exceed on a token"),
        ({"epsilon": 3e-4, "importance_sampling_level": "sequence"}, "config_clip", None),
        ({"epsilon": "linear"}, "config_clip", None),
        ({"loss_type": "bnpo"}, "config_normalisation", None),
        ({"loss_type": "bnpo", "gradient_accumulation_steps": 8}, "config_normalisation", "each of 8 micro-batches"),
        ({"num_iterations": 1, "epsilon": 0.3}, "config_ratio", "so epsilon does nothing"),
        ({"num_iterations": 1, "steps_per_generation": 4, "epsilon": 0.3}, "config_ratio", None),
        ({"num_generations": 1}, "config_groups", "a group of 1 (num_generations): all of them are 0"),
    ],
)  # fmt: skip
def test_a_setting_of_trl_is_judged(settings, check, reason):
    found = checks(TRL | settings)[check]
    assert (found.status == "fail") is (reason is not None)
    assert reason is None or reason in found.reason


def test_settings_may_be_nested_or_dotted():
    nested = {"trainer": {"args": TRL | {"epsilon": 1.5}}}
    dotted = {f"trainer.args.{name}": value for name, value in (TRL | {"epsilon": 1.5}).items()}
    for config in (nested, dotted):
        report = td.preflight(config=config)
        assert "trainer.args.epsilon" in next(one.reason for one in report.checks if one.name == lint.CLIP)


EVALUATION = {"eval.temperature": 0, "eval.top_p": 1, "eval.max_tokens": 9, "eval.template": "a", "eval.pass_k": 4}
WHOLE = EVALUATION | {"eval.split": "dev"}


def evaluated(config, saved=None, *, tools=False):
    return {check.name: check for check in evaluation.evaluation_checks(config, saved, tool=tools)}


def test_a_protocol_is_complete_or_says_what_it_lacks():
    assert evaluated(WHOLE)["evaluation_complete"].status == "pass"
    assert evaluated(EVALUATION)["evaluation_complete"].reason == "the evaluation's settings lack split"
    assert (
        evaluated(WHOLE, tools=True)["evaluation_complete"].reason == "the evaluation's settings lack tools, time limit"
    )
    assert evaluated(WHOLE | {"eval.split": None})["evaluation_complete"].status == "fail"
    assert evaluated({})["evaluation_complete"].reason == "the configuration has no setting of an evaluation"


def test_a_protocol_is_saved_as_it_is_or_not_at_all():
    assert evaluated(WHOLE, WHOLE)["evaluation_saved"].status == "pass"
    strings = {name: str(value) for name, value in WHOLE.items()}  # as MLflow keeps them
    assert evaluated(WHOLE, strings)["evaluation_saved"].status == "pass"
    assert "does not have eval.split" in evaluated(WHOLE, EVALUATION)["evaluation_saved"].reason
    other = evaluated(WHOLE, WHOLE | {"eval.temperature": 1})["evaluation_saved"]
    assert other.reason == "eval.temperature is 0 here and 1 in the tracker"
    assert evaluated(WHOLE)["evaluation_saved"].do == "give run=..., what td.wrap returned"
    assert evaluated({}, {})["evaluation_saved"].status == "not checked"


def test_all_settings_that_a_rule_watches_are_asked_for():
    watched = next(rule for rule in catalog() if rule.id == "EVA001").signals["setting_changed"].keys
    asked = {name for one in evaluation.protocol().values() for name in one["names"]}
    assert {key for key in watched if key not in asked} == {"*val_kwargs.*"}  # all of verl's together
