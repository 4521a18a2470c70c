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


def test_what_fires_is_told_once_with_remedy_and_where_to_read_on():
    alerts = Alerts()
    (notice,) = alerts.notices(10, [finding()])
    assert (notice.level, notice.title) == ("warn", "POL001 post_tool: Weight tail grows after tool calls")
    assert "onset at step 5, fired at 10" in notice.text
    assert "First: Read ten of the tool results" in notice.text
    assert "More: tracker-diag rules show POL001" in notice.text
    assert alerts.notices(11, [finding()]) == []


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
    (notice,) = Alerts().notices(10, [replace(finding(), rule=bare(tmp_path / "my rules" / "ACM001.yaml"))])
    assert notice.text.splitlines() == [
        "p95 is 0.4.",
        "reward-is-low (policy_update), onset at step 5, fired at 10.",
        f"More: tracker-diag rules show ACM001 --rules '{tmp_path}/my rules/ACM001.yaml'",
    ]
    (notice,) = Alerts().notices(10, [replace(finding(), rule=bare())])
    assert "More: " not in notice.text  # no command shows what was made in Python


def test_what_fires_at_one_step_is_one_notice_headed_by_the_severest():
    (notice,) = Alerts().notices(10, [finding(), finding("NUM004", "all", onset=9), finding("POL002", onset=1)])
    assert notice.level == "error"
    assert notice.title.startswith("NUM004 all")
    assert "Also: POL002 post_tool" in notice.text
    assert notice.text.index("POL002") < notice.text.index("POL001")


@pytest.mark.parametrize(
    "quiet", [{"state": "pending", "fired": None}, {"inhibited_by": "POL003"}, {"state": "resolved", "resolved": 12}]
)
def test_what_is_pending_explained_or_was_never_told_is_not_told(quiet):
    assert Alerts().notices(10, [finding(**quiet)]) == []


def test_info_is_for_the_table_alone():
    info = next(rule for rule in RULES.values() if rule.severity == "info")
    assert Alerts().notices(10, [replace(finding(), rule=info)]) == []


def test_the_end_is_told_if_the_beginning_was():
    alerts = Alerts()
    alerts.notices(10, [finding()])
    (notice,) = alerts.notices(40, [finding(state="resolved", resolved=40)])
    assert (notice.level, notice.title) == ("info", "POL001 post_tool: resolved")
    assert "from step 5 to 40" in notice.text
    assert alerts.notices(41, [finding(state="resolved", resolved=40)]) == []


def test_what_comes_and_goes_is_told_again_only_after_its_cooldown():
    alerts, rest = Alerts(), RULES["POL001"].cooldown_steps
    alerts.notices(10, [finding()])
    alerts.notices(20, [finding(state="resolved", resolved=20)])
    assert alerts.notices(30, [finding(onset=25, fired=30)]) == []
    assert alerts.notices(35, [finding(onset=25, fired=30, state="resolved", resolved=35)]) == []
    assert len(alerts.notices(30, [finding(slice="text_only", onset=25, fired=30)])) == 1
    assert len(alerts.notices(10 + rest, [finding(onset=9 + rest, fired=10 + rest)])) == 1


def test_a_resumed_run_tells_nothing_twice():
    first, second = Alerts(), Alerts()
    first.notices(10, [finding()])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.notices(11, [finding()]) == []
    assert len(second.notices(12, [finding(state="resolved", resolved=12)])) == 1


@pytest.mark.parametrize("rule", RULES)
def test_every_title_is_short_enough_for_wandb(rule):
    long = replace(finding(slice="tool:" + "a" * 80), rule=replace_severity(RULES[rule]))
    (notice,) = Alerts().notices(10, [long])
    assert len(notice.title) <= TITLE


def replace_severity(rule):
    return rule.model_copy(update={"severity": "warn"})
