import json
from dataclasses import replace

import pytest

from tracker_diag.rules.alerts import TITLE, Alerts
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Origin, Rule

RULES = {rule.id: rule for rule in catalog()}


def finding(rule="POL001", slice="post_tool", state="firing", onset=5, fired=10, **more):
    return Finding(
        RULES[rule], "policy", slice, state, onset, fired, more.pop("resolved", None), "p95 is 0.4", (), **more
    )


def notices(alerts, step, *changed, others=()):
    """What is told where `changed` is new at `step`, and `others` are known."""
    return alerts.notices(step, changed, [*changed, *others])


def test_what_fires_is_told_once_with_remedy_and_where_to_read_on():
    alerts = Alerts()
    (notice,) = notices(alerts, 10, finding())
    assert (notice.level, notice.title) == ("warn", "POL001 post_tool: Weight tail grows after tool calls")
    assert "onset at step 5, fired at 10" in notice.text
    assert "First: Read ten of the tool results" in notice.text
    assert "More: tracker-diag rules show POL001" in notice.text
    assert notices(alerts, 11, finding()) == []


def bare(file=None):
    """A rule that says no more than it must."""
    given = {
        "id": "ACM001",
        "title": "Reward is low",
        "signals": {"bad": {"kind": "non_finite"}},
        "condition": "bad",
        "summary": "x",
    }
    return Rule.model_validate(given, context=Origin(file))


def test_what_a_rule_does_not_say_is_left_out_and_where_to_read_on_is_true_of_own_rules(tmp_path):
    (notice,) = notices(Alerts(), 10, replace(finding(), rule=bare(tmp_path / "my rules" / "ACM001.yaml")))
    assert notice.text.splitlines() == [
        "p95 is 0.4.",
        "reward-is-low (policy_update), onset at step 5, fired at 10.",
        f"More: tracker-diag rules show ACM001 --rules '{tmp_path}/my rules/ACM001.yaml'",
    ]
    (notice,) = notices(Alerts(), 10, replace(finding(), rule=bare()))
    assert "More: " not in notice.text  # no command shows what was made in Python


def test_incidents_that_begin_at_one_step_are_one_notice_headed_by_the_severest():
    (notice,) = notices(Alerts(), 10, finding(), finding("NUM004", "all", onset=9), finding("REW003", "all", onset=1))
    assert notice.level == "error"
    assert notice.title.startswith("NUM004 all")
    assert "Also: REW003 all" in notice.text
    assert notice.text.index("REW003") < notice.text.index("POL001")


def test_symptoms_stand_in_the_notice_of_their_cause_and_have_none_of_their_own():
    alerts, cause = Alerts(), finding()
    (notice,) = notices(alerts, 12, cause, finding("POL004", onset=8, fired=12))
    assert notice.title.startswith("POL001 post_tool")
    assert "With it: POL004 post_tool: " in notice.text
    late = finding("NUM001", "all", onset=28, fired=30)
    assert notices(alerts, 30, late, others=[cause]) == []
    (own,) = notices(alerts, 30, finding("REW003", "all", onset=28, fired=30), others=[cause])  # no symptom of it
    assert own.title.startswith("REW003 all")


def test_it_is_told_again_when_what_lies_behind_it_is_found():
    alerts, part = Alerts(), finding("POL002", onset=5, fired=10)
    notices(alerts, 10, part)
    whole = finding("POL001", onset=7, fired=20)
    (notice,) = notices(alerts, 20, whole, others=[replace(part, inhibited_by="POL001")])
    assert notice.title.startswith("POL001 post_tool")
    assert notice.text.startswith("This is what lies behind POL002.")
    assert notices(alerts, 21, whole, others=[replace(part, inhibited_by="POL001")]) == []


def test_an_incident_is_told_again_when_it_harms_the_outcome_and_once_more_when_all_of_it_is_over():
    alerts, cause = Alerts(), finding()
    notices(alerts, 10, cause)
    damage = finding("OUT001", "all", onset=30, fired=40)
    (worse,) = notices(alerts, 40, damage, others=[cause])
    assert (worse.level, worse.title) == ("error", "POL001 post_tool: Weight tail grows after tool calls")
    assert worse.text.startswith("This was told before, and has become worse.")
    assert "Damage, since step 30: p95 is 0.4." in worse.text
    assert notices(alerts, 41, finding("POL004", onset=38, fired=41), others=[cause, damage]) == []
    over = finding(state="resolved", resolved=50)
    rest = [damage, finding("POL004", state="resolved", onset=38, fired=41, resolved=49)]
    assert notices(alerts, 50, over, others=rest) == []  # the damage lasts
    (end,) = notices(alerts, 60, replace(damage, state="resolved", resolved=60), others=[over, rest[1]])
    assert (end.level, end.title) == ("info", "POL001 post_tool: resolved")
    assert end.text.splitlines()[0].endswith("from step 5 to 50.")
    assert len(end.text.splitlines()) == 3


@pytest.mark.parametrize(
    "quiet", [{"state": "pending", "fired": None}, {"inhibited_by": "POL003"}, {"state": "resolved", "resolved": 12}]
)
def test_what_is_pending_explained_or_was_never_told_is_not_told(quiet):
    assert notices(Alerts(), 10, finding(**quiet)) == []


def test_info_is_for_the_table_alone():
    info = next(rule for rule in RULES.values() if rule.severity == "info")
    assert notices(Alerts(), 10, replace(finding(), rule=info)) == []


def test_the_end_is_told_if_the_beginning_was():
    alerts = Alerts()
    notices(alerts, 10, finding())
    (notice,) = notices(alerts, 40, finding(state="resolved", resolved=40))
    assert (notice.level, notice.title) == ("info", "POL001 post_tool: resolved")
    assert "from step 5 to 40" in notice.text
    assert notices(alerts, 41, finding(state="resolved", resolved=40)) == []


def test_what_comes_and_goes_is_told_again_only_after_its_cooldown():
    alerts, rest = Alerts(), RULES["POL001"].cooldown_steps
    notices(alerts, 10, finding())
    notices(alerts, 20, finding(state="resolved", resolved=20))
    assert notices(alerts, 30, finding(onset=25, fired=30)) == []
    assert notices(alerts, 35, finding(onset=25, fired=30, state="resolved", resolved=35)) == []
    assert len(notices(alerts, 30, finding(slice="text_only", onset=25, fired=30))) == 1
    assert len(notices(alerts, 10 + rest, finding(onset=9 + rest, fired=10 + rest))) == 1


def test_a_resumed_run_tells_nothing_twice():
    first, second = Alerts(), Alerts()
    notices(first, 10, finding())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert notices(second, 11, finding()) == []
    assert len(notices(second, 12, finding(state="resolved", resolved=12))) == 1


@pytest.mark.parametrize("rule", RULES)
def test_every_title_is_short_enough_for_wandb(rule):
    long = replace(finding(slice="tool:" + "a" * 80), rule=replace_severity(RULES[rule]))
    (notice,) = notices(Alerts(), 10, long)
    assert len(notice.title) <= TITLE


def replace_severity(rule):
    return rule.model_copy(update={"severity": "warn"})
