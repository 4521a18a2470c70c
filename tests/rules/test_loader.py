import pytest

from tracker_diag.errors import RuleError, UnknownName
from tracker_diag.rules.compiled import CATALOG
from tracker_diag.rules.loader import catalog, chosen, in_force, load_rule, load_rules

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
when: [low]
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("severity: warn", "severity: warning", "rule.yaml:6: severity: Input should be 'info', 'warn' or 'error'"),
        ("severity: warn", "severity: warn\nseverity: info", "rule.yaml:7: key 'severity' is there twice"),
        ("below: 0.1}", "bellow: 0.1}", "rule.yaml:10: signals.low.bellow: no such field; did you mean below?"),
        (
            "metric: reward}",
            "metric: rewrd}",
            "rule.yaml:10: signals.low.series: metric: 'rewrd' given, expected one of",
        ),
        ("metric: reward}", "metric: rewrd}", "; did you mean reward?"),
        ("metric: reward}", "metrik: reward}", "rule.yaml:10: signals.low.series.metrik: no such field; did you mean "),
        (
            "threshold",
            "thresold",
            "rule.yaml:10: signals.low: kind: 'thresold' given, expected one of baseline_ratio, co",
        ),
        ("threshold", "thresold", "trend; did you mean threshold?"),
        ("id: ZZZ001", "id: ZZZ001\nformat: 1", "rule.yaml:2: format: 1 given, expected 2; the rule was written for"),
        (
            "{kind: threshold, series: {metric: reward}, below: 0.1}",
            "reward belo 0.1",
            "rule.yaml:10: signals.low: verb: 'b",
        ),
        ("kind: threshold, ", "", "rule.yaml:10: signals.low: kind: nothing given"),
        ("title: A title", "titel: A title", "rule.yaml:3: titel: no such field; did you mean title?"),
        (
            "title: A title",
            "title: A title\nxyz: 1",
            "rule.yaml:4: xyz: no such field, expected one of id, name, title",
        ),
        ("when: [low]", "when: [{al: [low]}]", "rule.yaml:11: when.0.al: no such field; did you mean all?"),
        ("when: [low]", "when: [{all: [low], any: [low]}]", "rule.yaml:11: when.0.any: no such field"),
        (
            "when: [low]",
            "when: [{all: [low, {al: [low]}]}]",
            "rule.yaml:11: when.0.all.1: expected the name of a signal or",
        ),
        ("when: [low]", "condition: low", "rule.yaml:11: condition: a rule of form 1 given, expected `when` of form 2"),
        (
            "when: [low]",
            "when: [lo]",
            "rule.yaml:11: when: unknown signals or predicates ['lo']; defined and not used ['low']",
        ),
        ("low.value", "low.valu", "rule.yaml:12: summary: {low.valu}: expected a signal of this rule and one of"),
        ("{low.value:.2f}", "low }", "rule.yaml:12: summary: Single '}' encountered in format string"),
        ("below: 0.1", "below: {}", "rule.yaml:10: signals.low: expected a limit for `other`"),
        ("status: stable\nseverity: warn", "severity: error", "rule.yaml:5: severity: error given, expected at most"),
        ("calibration: None.", "calibration: 0b_", "rule.yaml:1: "),
        ("calibration: None.", "? [a]\n: b", "rule.yaml:15: a key is a list or a map"),
        ("calibration: None.", "calibration: \a", "rule.yaml:1: cannot be read: unacceptable character #x0007"),
        ("calibration: None.", "calibration: " + "[" * 2000, "rule.yaml:1: maximum recursion depth exceeded"),
        ("remedy: [Look.]", "remedy: [Look.", "rule.yaml:14: "),
        ("title: A title\n", "", "rule.yaml:1: title: Field required"),
        (
            GOOD,
            "- a list\n",
            "rule.yaml:1: a list given, expected a rule with id, title, signals, when and summary",
        ),
        (GOOD, "", "rule.yaml:1: nothing given, expected a rule"),
        ("rationale: It is bad.", "rationale: !!python/object/apply:os.getcwd []", "rule.yaml:8: "),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(tmp_path, old, new, message):
    with pytest.raises(RuleError) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert message in str(error.value)


def test_a_date_is_text(tmp_path):
    assert load(tmp_path, GOOD.replace("calibration: None.", "calibration: 2024-13-45")).calibration == "2024-13-45"


@pytest.fixture
def own(tmp_path):
    """A folder with one rule of one's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "ZZZ001.yaml").write_text(GOOD)
    return folder


def ids(rules):
    return [rule.id for rule in rules]


def test_a_missing_and_an_empty_folder_are_reported(tmp_path):
    with pytest.raises(RuleError, match="nope: no such folder or file, expected one with rules"):
        load_rules(tmp_path / "nope")
    with pytest.raises(RuleError, match=":1: no YAML file, expected one rule a file; docs/own-rules"):
        load_rules(tmp_path)


def test_own_rules_stand_next_to_the_catalogue(own):
    assert ids(in_force()) == ids(catalog())
    assert ids(in_force(str(own))) == [*ids(catalog()), "ZZZ001"]
    assert in_force(own / "ZZZ001.yaml") == in_force(own) == in_force(load_rules(own))
    assert ids(in_force(own, with_catalog=False)) == ["ZZZ001"]
    assert in_force(with_catalog=False) == ()


def test_the_environment_names_rules_for_every_run(own, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(own))
    assert ids(in_force()) == [*ids(catalog()), "ZZZ001"]
    assert ids(in_force(own)) == ids(in_force())  # the same folder may be given both ways
    assert in_force(with_catalog=False) == ()
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(tmp_path / "nope"))
    with pytest.raises(RuleError, match="nope: no such folder or file"):
        in_force()


def test_a_clash_of_ids_names_both_files(own):
    (own / "other.yaml").write_text("# Another one.\n" + GOOD)
    with pytest.raises(RuleError) as error:
        load_rules(own)
    assert str(error.value) == (
        f"{own}/other.yaml:2: id: ZZZ001 is also in {own}/ZZZ001.yaml:1; give one of them another id"
    )
    (own / "other.yaml").write_text(GOOD.replace("ZZZ001", "POL001"))
    with pytest.raises(RuleError, match=f"other.yaml:1: id: POL001 is also in {CATALOG}/POL001.yaml:2; give"):
        in_force(own)


def test_a_rule_of_the_catalogue_is_there_already():
    with pytest.raises(RuleError, match=r"POL001 is given twice; `rules` join .*; with catalog=False"):
        in_force([next(rule for rule in catalog() if rule.id == "POL001")])


def test_folders_add_and_ids_and_prefixes_select(own):
    assert chosen(None) == catalog()
    assert ids(chosen(f"{own}/")) == [*ids(catalog()), "ZZZ001"]
    assert ids(chosen("NUM004, CRI001")) == ["CRI001", "NUM004"]
    assert ids(chosen(f"NUM004,{own},ZZZ")) == ["NUM004", "ZZZ001"]
    with pytest.raises(UnknownName, match="--rules: 'ZZZ' given, expected one of ADV001"):
        chosen("ZZZ")
    with pytest.raises(RuleError, match="my_rulez: no such folder or file"):
        chosen("my_rulez")
