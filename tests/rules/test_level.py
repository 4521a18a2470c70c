"""A finding lasts until its level is back, and not only as long as the series changes."""

import json

import pytest

from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed

RISES = Rule.model_validate(
    {
        "id": "LEV001",
        "title": "It rises",
        "signals": {"rises": "loss rises 0.5 in 40", "rewarded": "reward above 0.9"},
        "when": [{"all": ["rises"], "unless": ["rewarded"]}],
        "summary": "x",
        "for_steps": 3,
        "keep_firing_steps": 5,
    }
)
UP = [1.0] * 40 + [1.0 + 0.05 * step for step in range(40)] + [3.0] * 200


def states(losses, *, engine=None, start=0, reward=lambda _: 0.0):
    engine, seen = engine or Engine([RISES]), []
    for step, loss in enumerate(losses, start):
        values = {"loss": loss, "reward": reward(step)}
        engine.evaluate(Observed(step, {name: Scalar(name, value) for name, value in values.items()}))
        seen.append(engine.states()["LEV001"])
    return seen, engine


def test_what_has_become_usual_is_still_off():
    seen, engine = states(UP)
    assert seen[-1] == "firing"
    assert engine.findings[0].resolved is None


@pytest.mark.parametrize(("level", "ends"), [(2.9, False), (2.0, False), (1.1, True)])
def test_it_ends_when_the_level_is_most_of_the_way_back(level, ends):
    seen, _ = states([*UP, *[level] * 60])
    assert (seen[-1] == "healthy") == ends


def test_what_excuses_it_ends_it():
    seen, _ = states(UP, reward=lambda step: 1.0 if step > 150 else 0.0)
    assert (seen[140], seen[-1]) == ("firing", "healthy")


def test_a_restart_changes_nothing():
    losses = [*UP, *[1.1] * 60]
    whole, _ = states(losses)
    first, engine = states(losses[:150])
    again = Engine([RISES])
    again.load_state_dict(json.loads(json.dumps(engine.state_dict())))
    rest, _ = states(losses[150:], engine=again, start=150)
    assert [*first, *rest] == whole
