"""Tiers follow from the record, and the record from the rule as it was when the runs were judged."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.rules import record
from tracker_diag.rules.judge import Judge, StepInputs
from tracker_diag.rules.loader import catalog, load_rule, rule_called
from tracker_diag.rules.record import Record, hash_of, records, tier_of, why
from tracker_diag.runs.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
GOOD = Record(hash="", hits=5, faulty=9, places=2, false_alarms=2, healthy=200)


@pytest.fixture
def given(monkeypatch):
    """Give the rule POL010 a record."""

    def give(**changes):
        rule = rule_called("POL010")
        kept = replace(GOOD, hash=hash_of(rule), **changes) if "hash" not in changes else replace(GOOD, **changes)
        monkeypatch.setattr(record, "records", lambda: records().model_copy(update={"rules": {"POL010": kept}}))
        return rule

    return give


@pytest.mark.parametrize(
    "worse", [{"hits": 4}, {"places": 1}, {"false_alarms": 3}, {"healthy": 199}, {"hash": "0" * 16}]
)
def test_a_rule_is_measured_if_its_record_reaches_every_number(given, worse):
    assert tier_of(given()) == "measured"
    assert tier_of(given(**worse)) == "candidate"


def test_a_rule_that_is_demoted_is_a_candidate(given, monkeypatch):
    rule = given()
    kept = record.records()
    monkeypatch.setattr(record, "records", lambda: kept.model_copy(update={"demoted": ("POL010",)}))
    counts = "alarmed in 2 of 200 healthy runs; found 5 of 9"
    assert why(rule) == f"candidate: {counts}; with it, all rules together alarm too often"


def test_the_weakest_record_is_demoted_first():
    from record import Judged, demoted

    healthy = [Judged("x", (), frozenset(loud), frozenset()) for loud in ({"A"}, {"A", "B"}, {"B"}, *[set()] * 197)]
    records = {"A": replace(GOOD, hits=9, healthy=300), "B": GOOD, "C": replace(GOOD, false_alarms=0)}
    assert demoted({"x": healthy}, records) == ("B",)
    assert demoted({"x": healthy[2:]}, records) == ()
    corpora = {"x": healthy, "y": [Judged("y", (), frozenset(), frozenset())] * 5000}
    assert demoted(corpora, records) == ("B",), "a large quiet corpus excuses no alarm in a small one"


def test_a_rule_that_is_counted_later_must_fit_to_those_that_are_loud():
    from record import Judged, demoted

    healthy = [Judged("x", (), frozenset(loud), frozenset()) for loud in ({"A"}, {"B"}, {"B"}, *[set()] * 197)]
    assert demoted({"x": healthy}, {"A": GOOD}) == ()
    assert demoted({"x": healthy}, {"A": GOOD}, {"B"}) == ("A",)
    assert demoted({"x": healthy[1:] + healthy[1:3]}, {"A": GOOD}, {"B"}) == (), "others stay loud"


def test_a_page_says_what_a_rule_has_earned_or_lacks(given):
    assert why(given()) == "measured: alarmed in 2 of 200 healthy runs; found 5 of 9"
    assert why(given(hits=1, places=1, healthy=150)) == (
        "candidate: alarmed in 2 of 150 healthy runs; found 1 of 9; it needs 4 more true findings, "
        "2 tasks or frameworks, 50 more healthy runs, alarms in at most 1% of healthy runs"
    )
    assert why(given(hash="0" * 16)) == "candidate: the rule has changed since its record"
    assert why(rule_called("POL011")) == "candidate: no run of the record has its inputs"


def test_the_hash_is_that_of_what_decides():
    rule = rule_called("POL001")
    assert hash_of(rule.model_copy(update={"title": "Another", "remedy": ()})) == hash_of(rule)
    assert hash_of(rule.model_copy(update={"for_steps": rule.for_steps + 1})) != hash_of(rule)
    assert hash_of(rule_called("POL002")) != hash_of(rule)


def test_a_rule_of_ones_own_has_no_record(tmp_path):
    file = tmp_path / "ZZZ001.yaml"
    file.write_text("id: ZZZ001\ntitle: A title\nsignals: {low: reward below 0.1}\nwhen: [low]\nsummary: It is low\n")
    assert tier_of(load_rule(file)) == "own"


def test_the_committed_record_is_of_rules_that_there_are_and_of_possible_counts():
    assert set(records().rules) <= {rule.id for rule in catalog()}
    for counts in records().rules.values():
        assert counts.places <= counts.hits <= counts.faulty
        assert counts.false_alarms <= counts.healthy
    assert {tier_of(rule) for rule in catalog()} == {"fact", "measured", "candidate"}


def test_runs_are_counted_where_the_rule_had_its_inputs():
    from record import Judged, counted  # tests/faults/record.py

    def run(place, right, loud, blind=()):
        return Judged(place, tuple(right), frozenset(loud), frozenset(blind))

    runs = [
        run("PPO", ["POL010"], ["POL010"]),
        run("A2C", ["POL010"], []),
        run("DQN", ["POL010"], [], ["POL010"]),
        run("PPO", [], ["POL010"]),
        run("PPO", [], []),
        run("DQN", [], [], ["POL010"]),
    ]
    counts = counted(runs)["POL010"]
    assert (counts.hits, counts.faulty, counts.places, counts.false_alarms, counts.healthy) == (1, 2, 1, 1, 2)


def test_what_a_candidate_finds_is_a_note_until_a_rule_with_a_record_is_part_of_the_incident():
    """The gradient grows (NUM001, a candidate) and ends in NaN (NUM004, a fact)."""
    assert (tier_of(rule_called("NUM001")), tier_of(rule_called("NUM004"))) == ("candidate", "fact")
    judge, noise = Judge(catalog(), GrowthSettings()), np.random.default_rng(0)
    verdicts = {}
    for step in range(130):
        grad = math.nan if step == 125 else (2000.0 if step > 110 else 1.0) * noise.lognormal(0, 0.1)
        verdicts[step] = judge.step(step, StepInputs({"grad_norm": grad, "reward": noise.normal(step / 100, 0.1)}))
    before = [finding for step in range(125) for finding in verdicts[step].changed]
    assert {finding.severity for finding in before if finding.rule.id == "NUM001"} == {"info"}
    assert not any(verdicts[step].notices for step in range(125))
    assert {finding.rule.id: finding.severity for finding in verdicts[125].changed} == {
        "NUM001": "warn",
        "NUM004": "error",
    }
    assert [notice.level for notice in verdicts[125].notices] == ["error"]
    assert {finding.rule.id: finding.severity for finding in judge.findings} == {"NUM001": "warn", "NUM004": "error"}


def test_a_rule_of_another_algorithm_has_not_seen_a_run():
    from record import verdict

    rows = [{"step": step, "loss": 0.7 - 0.005 * step, "rewards/margins": 0.01 * step} for step in range(60)]
    seen = {rule.id for rule in catalog()} - verdict(diagnose(rows, algorithm="dpo").summary, "x", ()).blind
    assert "SFT001" in seen
    assert not seen & {"EXP002", "CRI005"}
