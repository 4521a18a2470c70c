import pytest

from tracker_diag import RuleError
from tracker_diag.rules.loader import load_rule

GOOD = """\
id: ZZZ001
name: a-name
title: A title
link: reward
status: stable
severity: warn
description: Detects something.
rationale: It is bad.
signals:
  low: {kind: threshold, series: {metric: reward}, below: 0.1}
condition: low
summary: "reward is {low.value:.2f}"
remedy: [Look.]
false_positives: [None is known.]
calibration: None.
"""


def load(tmp_path, text):
    file = tmp_path / "rule.yaml"
    file.write_text(text)
    return load_rule(file)


def test_a_rule_is_read(tmp_path):
    rule = load(tmp_path, GOOD)
    assert rule.id == "ZZZ001"
    assert rule.signals["low"].kind == "threshold"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("severity: warn", "severity: warning", "rule.yaml:6: severity: Input should be 'info', 'warn' or 'error'"),
        ("severity: warn", "severity: warn\nseverity: info", "rule.yaml:7: key 'severity' stands twice"),
        ("below: 0.1}", "bellow: 0.1}", "rule.yaml:10: signals.low.threshold.bellow: Extra inputs are not permitted"),
        (
            "metric: reward}",
            "metric: rewrd}",
            "rule.yaml:10: signals.low.threshold.series: Value error, metric: ",
        ),
        ("remedy: [Look.]", "remedy: [Look.", "rule.yaml:14: "),
        ("title: A title\n", "", "rule.yaml:1: title: Field required"),
        (GOOD, "- a list\n", "rule.yaml:1: list given, expected a rule"),
        (GOOD, "", "rule.yaml:1: NoneType given, expected a rule"),
        ("rationale: It is bad.", "rationale: !!python/object/apply:os.getcwd []", "rule.yaml:8: "),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path, old, new, message):
    with pytest.raises(RuleError) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert message in str(error.value)
