"""A new rule is sound, does what its cases say, and says where its schema is."""

import pytest
import yaml

from tracker_diag.errors import RuleError
from tracker_diag.rules.cases import check_rule, load_cases
from tracker_diag.rules.compiled import CATALOG
from tracker_diag.rules.loader import load_rules
from tracker_diag.rules.new import SCHEMA, schema, write_new


def test_it_is_sound_and_does_what_its_cases_say(tmp_path):
    files = write_new("ACM002", tmp_path / "deep" / "rules")
    folder = tmp_path / "deep" / "rules"
    assert files == [folder / "ACM002.yaml", folder / "tests" / "ACM002.yaml", folder / SCHEMA]
    (rule,) = load_rules(folder)
    assert (rule.id, rule.name, rule.file) == ("ACM002", "reward-is-low", files[0])
    cases = load_cases(files[1], rule)
    assert [check_rule(rule, case) for case in cases] == [[], [], []]
    assert files[2].read_text() == schema()


def test_what_it_says_of_optional_fields_is_what_holds_without_them(tmp_path):
    file, *_ = write_new("ACM001", tmp_path)
    (rule,) = load_rules(tmp_path)
    optional = file.read_text().partition("All else may be left out")[2].splitlines()[1:]
    for line in optional[:4]:
        ((field, value),) = yaml.safe_load(line.removeprefix("# ")).items()
        assert getattr(rule, field) == value
    named = {line.removeprefix("# ").partition(":")[0] for line in optional}
    assert named <= type(rule).model_fields.keys()


@pytest.mark.parametrize(
    ("rule_id", "message"),
    [
        ("my-rule", "id: 'my-rule' given, expected two to four capitals and three digits, as in ACM001"),
        ("../A001", "id: '../A001' given, expected"),
        ("POL001", f"id: POL001 is already in {CATALOG}/POL001.yaml:2; take another one"),
        ("ACM001", "ACM001.yaml:2; take another one"),
        ("ACM003", "tests/ACM003.yaml:1: is there already; take another id, or remove it"),
    ],
)
def test_an_id_that_is_none_or_taken_writes_nothing(tmp_path, rule_id, message):
    write_new("ACM001", tmp_path)
    (tmp_path / "tests" / "ACM003.yaml").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuleError) as error:
        write_new(rule_id, tmp_path)
    assert message in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuleError, match="file:1: cannot be written to: "):
        write_new("ACM001", tmp_path / "file")


def test_every_file_of_the_catalogue_names_the_schema_that_lies_there():
    for file in CATALOG.glob("[A-Z]*.yaml"):
        first = file.read_text().splitlines()[0]
        assert first == f"# yaml-language-server: $schema=../{SCHEMA}"
    assert (CATALOG.parent / SCHEMA).read_text() == schema(), "run `make docs`"
