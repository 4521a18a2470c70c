"""The form of the catalogue: no condition is repeated, none is deep, and a kind of signal is one class in one file."""

import ast
import collections
import itertools
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

import tracker_diag.rules.signals as kinds
from tests.rules.texts import data
from tracker_diag.rules.conditions import named
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import SCHEMA, schema
from tracker_diag.rules.shared import FILE, shared
from tracker_diag.rules.signals import AnySignal
from tracker_diag.rules.signals.base import KINDS

TEXTS = {file.stem: data(file) for file in sorted(FILE.parent.glob("*.yaml"))}
DATA = TypeAdapter(AnySignal)


def twice(pairs):
    """What two files say, by what they say."""
    files = collections.defaultdict(set)
    for text, file in pairs:
        files[text].add(file)
    return {text: where for text, where in files.items() if len(where) > 1}


def test_no_signal_is_defined_in_two_files():
    given = ((DATA.dump_json(DATA.validate_python(signal)), file) for file, text in TEXTS.items()
             for signal in text.get("signals", {}).values())  # fmt: skip
    assert twice(given) == {}


def ways(text):
    yield from itertools.chain(text.get("when", []), text.get("harmless", []), *text.get("predicates", {}).values())


def groups(text):
    """Each part of a condition that is more than a name."""
    for way in ways(text):
        if isinstance(way, dict):
            if len(way.get("all", [])) + len(way.get("unless", [])) > 1:
                yield str(sorted((key, sorted(map(str, value))) for key, value in way.items()))
            yield from (str(sorted(part["any"])) for part in way.get("all", []) if isinstance(part, dict))


def test_no_condition_is_written_in_two_files():
    assert twice((group, file) for file, text in TEXTS.items() for group in groups(text)) == {}


def depth(text):
    """Levels of ways, all and any."""
    if isinstance(text, dict):
        return max((depth(value) for key, value in text.items() if key in ("all", "unless")), default=0) or 1 + max(
            (depth(value) for value in text.values()), default=0
        )
    return 1 + max(map(depth, text), default=0) if isinstance(text, list) else 0


def test_no_condition_is_deeper_than_three():
    depths = {name: max((depth([way]) for way in ways(text)), default=0) for name, text in TEXTS.items()}
    assert [name for name, deep in depths.items() if deep > 3 + 1] == []  # the innermost list holds the names


def test_a_name_means_the_same_in_the_whole_catalogue():
    common = {*shared().signals, *shared().predicates}
    assert len(common) == len(shared().signals) + len(shared().predicates)
    for name, text in TEXTS.items():
        if name != FILE.stem:
            assert common.isdisjoint({*text.get("signals", {}), *text.get("predicates", {})}), name


def test_what_is_shared_is_used_by_two_rules_or_more():
    uses = collections.Counter(name for rule in catalog() for name in {*rule.signals, *rule.predicates})
    parts = {name for ways in shared().predicates.values() for name in named(ways)}
    assert [name for name in (*shared().signals, *shared().predicates) if uses[name] < 2 and name not in parts] == []


def test_no_rule_asks_whether_a_metric_is_absent():
    assert "absent" not in KINDS
    assert "else_no" not in FILE.read_text()


FILES = [file for file in Path(kinds.__path__[0]).glob("*.py") if file.stem not in ("__init__", "base", "over_the_run")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kind_is_one_class_in_one_file_of_its_name(file):
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes] == [KINDS[file.stem].__name__]
    methods = {node.name for node in classes[0].body if isinstance(node, ast.FunctionDef)}
    assert "begin" in methods, "its evaluation is in the class that has its fields"


def test_every_kind_has_its_file():
    assert {file.stem for file in FILES} == set(KINDS)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("reward below 0.1", {"kind": "threshold", "series": {"metric": "reward"}, "below": 0.1}),
        ("text_only/p95 above 1", {"kind": "threshold", "series": {"stat": "p95", "slice": "text_only"}, "above": 1}),
        ("kl over_baseline 1.5", {"kind": "baseline_ratio", "series": {"metric": "kl"}, "above": 1.5}),
        ("kl grows", {"kind": "growth", "series": {"metric": "kl"}}),
        ("kl shrinks 2x", {"kind": "growth", "series": {"metric": "kl"}, "direction": "falling", "factor": 2}),
        (
            "eval_score / reward falls 1.5x in 16",
            {"kind": "trend", "series": {"metric": "eval_score"}, "relative_to": {"metric": "reward"}, "factor": 1.5,
             "steps": 16, "direction": "falling"},
        ),
        ("reward rises 0.1 in 80", {"kind": "trend", "series": {"metric": "reward"}, "change": 0.1, "steps": 80}),
        ("reward jumps 3x", {"kind": "spike", "series": {"metric": "reward"}, "factor": 3}),
        ("reward stays_within 0 in 10", {"kind": "stuck", "series": {"metric": "reward"}, "within": 0, "steps": 10}),
        ("reward collapses", {"kind": "collapse", "series": {"metric": "reward"}}),
        ("reward never_rises", {"kind": "gain", "series": {"metric": "reward"}, "never": True}),
        (
            "policy/gradient_share below 0.05",
            {"kind": "threshold", "series": {"stat": "gradient_share", "pair": "policy"}, "below": 0.05},
        ),
    ],
)  # fmt: skip
def test_a_signal_in_short_is_the_same_as_in_full(short, long):
    assert DATA.validate_python(short) == DATA.validate_python(long)


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ("reward", "'reward' given, expected a series, a verb and a number"),
        ("reward belo 1", "verb: 'belo' given, expected one of"),
        ("reward belo 1", "did you mean below"),
        ("rewrd below 1", "metric: 'rewrd' given, expected one of"),
        ("reward below", "'reward below': expected a number after `below`"),
        ("reward below 2x", "'reward below 2x': expected a number after `below`"),
        ("reward thrives 2", "'reward thrives 2': expected no number after `thrives`"),
        ("kl grows 2", "'kl grows 2': expected a factor such as 1.5x after `grows`"),
        ("reward rises 0.1", "steps\n  Field required"),
        ("reward below x1", "below"),
        ("reward below 1 in 10", "Unexpected keyword argument"),
    ],
)
def test_what_is_wrong_with_a_short_signal(short, message):
    with pytest.raises(ValidationError) as error:
        DATA.validate_python(short)
    assert message in str(error.value)


def test_every_file_of_the_catalogue_names_the_schema_that_is_there():
    for file in FILE.parent.glob("[A-Z]*.yaml"):
        assert file.read_text().startswith(f"# yaml-language-server: $schema=../{SCHEMA}\n")
    assert (FILE.parents[1] / SCHEMA).read_text() == schema(), "run `make docs`"
