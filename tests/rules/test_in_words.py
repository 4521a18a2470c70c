"""The conditions of rules in words."""

import pytest

from tests.rules.test_engine import rule
from tracker_diag.rules.in_words import PHRASES, fires, parts, places, shown, signal_in_words, spared, ways
from tracker_diag.rules.loader import catalog

KINDS = {signal.kind for each in catalog() for signal in each.signals.values()}
RULES = {each.id: each for each in catalog()}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("reward below 0.1", "`reward < 0.1`"),
        ("eval_score / reward above 2", "`eval_score ÷ reward > 2`"),
        ({"kind": "threshold", "series": {"metric": "kl"}, "above": {"ppo": 1, "other": 2}}, "`kl > 2 (ppo: 1)`"),
        ("kl over_baseline 1.5", "`kl` > 1.5× its baseline"),
        ("kl grows", "`kl` grows"),
        ("kl shrinks 2x", "`kl` shrinks 2×"),
        ("reward rises 0.1 in 80", "`reward` rises by 0.1 in 80 values"),
        ("kl jumps 5x in 20", "`kl` jumps 5× from the last 20 values, by 6 robust deviations"),
        ("kl stays_within 0.1 in 9", "`kl` stays within 0.1 for 9 values"),
        ("reward collapses", "`reward` has lost 50 % of its gain"),
        ("reward thrives", "`reward` has risen over the run"),
        ("reward never_rises", "`reward` has never risen"),
        (
            {"kind": "often", "signal": "kl above 1", "count": 3, "steps": 40, "anew": True},
            "(`kl > 1`, 3 separate times in the last 40 values)",
        ),
        ({"kind": "fired", "rules": ["POL010"], "count": 1, "steps": 9}, "POL010 fired in the last 9 steps"),
        ({"kind": "config_is", "keys": ["a"], "values": [0, "0.0", "none"]}, "`a` is 0 or none"),
    ],
)
def test_a_signal(written, words):
    assert signal_in_words(rule(signals={"low": written}, summary="x"), "low") == words


def test_a_rule():
    signals = {"low": "reward below 0.1", "high": "kl above 1", "also": "loss grows"}
    way = {"all": ["low", {"any": ["high", "bad_part"]}], "needs": ["kl"], "unless": ["high"]}
    given = rule(
        signals=signals,
        predicates={"bad_part": ["high"]},
        when=["low", way],
        harmless=["high"],
        support=["also"],
        summary="x",
    )
    assert fires(given) == [
        "`reward < 0.1`",
        "`reward < 0.1` and (`kl > 1` or *bad part*), but not if `kl > 1`; only if `kl` is logged",
    ]
    assert dict(parts(given)) == {"*bad part*": "`kl > 1`"}
    assert (spared(given), shown(given), places(given)) == ("if `kl > 1`", ["`loss` grows"], "")


def test_every_kind_has_its_words():
    assert PHRASES.keys() >= KINDS
    assert spared(RULES["NUM004"]).startswith("unless one of these")
    each = "the tokens after each tool and the tokens of each environment, each separately"
    assert places(RULES["POL019"]) == f"It checks the pairs `policy` and `mismatch`, on {each}."
    assert places(RULES["ENV001"]) == "It checks the whole run and each tool separately."


def test_what_a_condition_reads_in_any_case_is_not_asked_for_again():
    signals = {"low": "reward below 0.1", "high": "kl above 1"}
    way = {"all": ["low"], "needs": ["reward", "kl"], "unless": ["high"]}
    assert ways(rule(signals=signals, when=[way], summary="x"))[0].asked == ["`kl` is logged"]


def test_a_predicate_that_makes_the_rule_fire_by_itself_is_spelt_out():
    assert ways(RULES["EVA002"])[0].holds == ["`eval_score` stays behind `reward`"]
