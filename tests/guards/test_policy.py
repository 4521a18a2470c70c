"""Guards as data: what is wrong is reported with its field, and in a file with its line."""

import pytest
from bandit import of_metric
from pydantic import ValidationError

from tracker_diag import Guard, Monitor, wrap
from tracker_diag.errors import RuleError, UnknownName
from tracker_diag.guards.policy import BOUNDS, guards_of

FILE = """\
guards:
  - do: rollback
    on: {rules: [POL001], slices: [post_tool, "tool:*"], severity: error}
    act: true
    most: 2
    cooldown: 20
  - do: kl_cap
    bounds: [0.01, 0.2]
    target: 0.05
"""


def test_a_file_is_what_it_says(tmp_path):
    (tmp_path / "guards.yaml").write_text(FILE)
    rollback, kl_cap = guards_of(tmp_path / "guards.yaml", ["POL001"])
    assert rollback == Guard(
        do="rollback", on={"rules": ["POL001"], "slices": ["post_tool", "tool:*"], "severity": "error"}, act=True,
        most=2, cooldown=20,
    )  # fmt: skip
    assert (kl_cap.act, kl_cap.on.severity, kl_cap.within, kl_cap.hold) == (False, "warn", (0.01, 0.2), 50)
    run = wrap(lambda metrics, step: None, guards=str(tmp_path / "guards.yaml"))
    assert [item.do for item in run.diag.guards.guards] == ["rollback", "kl_cap"]
    run.diag.close()


@pytest.mark.parametrize(("text", "message"), [
    ("guards:\n  - do: stop_trainng\n", r"guards.yaml:2: guards.0.do: Input should be 'save_state', .*'reevaluate'"),
    ("guards:\n  - do: rollback\n    acts: true\n", r"guards.yaml:3: guards.0.acts: no such field; did you mean act\?"),
    ("guards:\n  - do: rollback\n    on: {rule: [POL001]}\n", r"yaml:3: .*rule: no such field; did you mean rules"),
    ("guards:\n  - act: true\n", r"guards.yaml:2: guards.0.do: Field required"),
    ("guards:\n  - do: rollback\n    on: {severity: fatal}\n", r"yaml:3: .*severity: Input should be 'info'"),
    ("guards: []\n", r"guards.yaml:1: expected `guards:` and a list below it"),
    ("- do: rollback\n", r"guards.yaml:1: expected `guards:` and a list below it"),
    ("", r"guards.yaml:1: expected `guards:` and a list below it"),
    ("guards: 3\n", r"guards.yaml:1: guards: Input should be a valid tuple"),
    ("guards: [3]\n", r"guards.yaml:1: guards.0: Input should be a valid dictionary"),
    ("guards: [\n", r"guards.yaml:\d: "),
])  # fmt: skip
def test_a_file_that_cannot_be_used_is_reported_with_line_and_field(tmp_path, text, message):
    (tmp_path / "guards.yaml").write_text(text)
    with pytest.raises(RuleError, match=message):
        Monitor(guards=tmp_path / "guards.yaml")


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(RuleError, match=r"nowhere.yaml: cannot be read"):
        Monitor(guards=tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(("settings", "message"), [
    ({"do": "explode"}, "do\n  Input should be 'save_state', 'skip_batch'"),
    ({"do": "rollback", "most": 0}, "most\n  Input should be greater than or equal to 1"),
    ({"do": "rollback", "bounds": (0.1, 1)}, "bounds: given for rollback, expected none; they go with kl_cap"),
    ({"do": "rollback", "target": 1.0}, "target: 1.0 given for rollback, expected none; it goes with kl_cap"),
    ({"do": "kl_cap", "bounds": (0.1, 1)}, "target: None given for kl_cap, expected the nats of KL to aim at"),
    ({"do": "kl_cap", "target": 1.0}, "bounds: nothing given for kl_cap, expected the lowest and the highest"),
    ({"do": "kl_cap", "target": float("nan"), "bounds": (0.1, 1)}, "target\n  Input should be a finite number"),
    ({"do": "kl_cap", "target": 1.0, "bounds": (0.1, float("inf"))}, "bounds: 0.1, inf given for kl_cap, expected 0 <"),
    ({"do": "scale_lr", "bounds": (0.5, 1.5)}, "bounds: 0.5, 1.5 given for scale_lr, expected 0 < lowest ≤"),
    ({"do": "scale_lr", "bounds": (0.0, 1.0)}, "bounds: 0, 1 given for scale_lr"),
    ({"do": "scale_lr", "bounds": (float("nan"), 1.0)}, "bounds: nan, 1 given for scale_lr"),
    ({"do": "cap_tool_share", "bounds": (0.9, 0.1)}, "bounds: 0.9, 0.1 given for cap_tool_share"),
    ({"do": "rollback", "on": {"slices": ["post_tol"]}}, "slice: 'post_tol' given, expected one of .*post_tool"),
    ({"do": "rollback", "on": {"links": ["policy"]}}, "on.links.0\n  Input should be 'environment'"),
])  # fmt: skip
def test_what_is_wrong_in_python_names_the_field_and_what_is_expected(settings, message):
    with pytest.raises(ValidationError, match=message):
        Guard(**settings)


def test_a_rule_that_there_is_not_is_reported_at_once():
    guard = Guard(do="rollback", on={"rules": ("POL01",)})
    with pytest.raises(UnknownName, match=r"guards: on.rules: 'POL01' given, expected one of .*did you mean POL0"):
        Monitor(guards=[guard])
    own = Guard(do="rollback", on={"rules": ("ACM004",)})
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], guards=[own])
    assert len(monitor.guards.guards) == 1


def test_what_is_no_guard_is_reported():
    with pytest.raises(RuleError, match=r"guards: dict given, expected Guard\(do=...\), or a YAML file"):
        Monitor(guards=[{"do": "rollback"}])


def test_every_action_that_sets_a_number_has_bounds():
    for do, bounds in BOUNDS.items():
        given = {"target": 1.0, "bounds": (0.1, 1.0)} if bounds is None else {}
        assert Guard(do=do, **given).within == (0.1, 1.0)
    assert Guard(do="rollback").within == (1.0, 1.0)
