"""A series within the range of two others."""

import json

import pytest

from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.signals.in_range import RECENT

NEAR = {
    "kind": "in_range",
    "series": {"metric": "reward"},
    "lowest": {"metric": "reward_min"},
    "highest": {"metric": "reward_max"},
    "above": 0.9,
}
ENDS = {"reward_min": 10.0, "reward_max": 11.0}


def engine():
    rule = {"id": "ZZZ001", "title": "x", "signals": {"near": NEAR}, "when": ["near"], "summary": "{near.value:.2f}"}
    return Engine([Rule.model_validate({**rule, "keep_firing_steps": 0})])


def after(rows, judged=None):
    judged = judged or engine()
    for step, row in enumerate(rows, 1000 if judged.findings else 0):
        judged.evaluate(Observed(step, {name: Scalar(name, value) for name, value in row.items()}))
    return judged


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([ENDS | {"reward": 10.95}], "firing"),
        ([ENDS | {"reward": 10.85}], "healthy"),
        ([ENDS | {"reward": 10.2}] * 9 + [{"reward": 10.4, "reward_min": 10.4, "reward_max": 10.4}] * 9, "healthy"),
        ([{"reward": -0.05, "reward_min": -1.0, "reward_max": 0.0}], "firing"),
        ([ENDS | {"reward": 10.97}, *[{"loss": 1.0}] * 50], "firing"),
        ([ENDS | {"reward": 10.97}] * RECENT + [ENDS | {"reward": 10.8}], "firing"),
        ([{"reward": 0.1, "reward_min": 0.1, "reward_max": 0.1}], "unknown"),
        ([{"reward": 0.5, "reward_max": 0.5}], "unknown"),
    ],
)
def test_it_is_held_against_the_range_so_far(rows, state):
    assert after(rows).states() == {"ZZZ001": state}


def test_a_new_baseline_does_not_change_the_range():
    judged = after([ENDS | {"reward": 10.2}] * 3)
    judged.rebaseline(3)
    low = {"reward": 10.4, "reward_min": 10.4, "reward_max": 10.4}
    assert after([low] * RECENT, judged).states() == {"ZZZ001": "healthy"}


def test_the_reason_names_what_is_missing():
    (finding,) = after([ENDS | {"reward": 10.95}]).findings
    assert finding.summary == "0.95"
    same = after([{"reward": 0.1, "reward_min": 0.1, "reward_max": 0.1}])
    assert [str(why) for why in same.blind()["ZZZ001"]] == ["reward_min and reward_max have not differed yet"]
    alone = after([{"reward": 0.1, "reward_max": 0.1}])
    assert [str(why) for why in alone.blind()["ZZZ001"]] == ["no series reward_min"]


def test_the_range_is_saved():
    before, restored = after([ENDS | {"reward": 10.2}] * RECENT), engine()
    restored.load_state_dict(json.loads(json.dumps(before.state_dict())))
    low = {"reward": 10.4, "reward_min": 10.4, "reward_max": 10.4}
    assert after([low] * RECENT, restored).states() == {"ZZZ001": "healthy"}
