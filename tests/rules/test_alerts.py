import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.rules.alerts import TITLE, Alerts, is_loud, recent
from tracker_diag.rules.findings import Finding, identity
from tracker_diag.rules.incidents import connected
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Origin, Rule

RULES = {rule.id: rule for rule in catalog()}

OVER = "Over: Token probabilities shift after tool … (POL001 post_tool)"


def finding(rule="POL001", slice="post_tool", state="firing", onset=5, fired=10, **more):
    return Finding(
        RULES[rule], "policy", slice, state, onset, fired, more.pop("resolved", None), "p95 is 0.4", (), **more
    )


def notices(alerts, step, *changed, others=(), best=()):
    """What is reported where `changed` is new at `step`, and `others` are known."""
    findings = [*changed, *others]
    run = SimpleNamespace(findings=findings, incidents=connected(recent(findings)), best=best, checkpoints=())
    return alerts.notices(step, changed, run)


def test_what_fires_is_reported_once_with_remedy_and_where_to_read_on():
    alerts = Alerts()
    (notice,) = notices(alerts, 10, finding())
    assert (notice.level, notice.title) == ("warn", "Token probabilities shift after tool results (POL001 post_tool)")
    assert "Since step 5, detected at 10: p95 is 0.4." in notice.text
    assert notice.decision == "Watch: if reward falls, resume from step 2"
    assert "First: Find the tokens" in notice.text
    assert "More: tracker-diag rules show POL001" in notice.text
    assert notices(alerts, 11, finding()) == []


def bare(file=None):
    """A rule that says no more than it must."""
    given = {
        "id": "ACM001",
        "title": "Reward is low",
        "signals": {"bad": {"kind": "non_finite"}},
        "when": ["bad"],
        "summary": "x",
    }
    return Rule.model_validate(given, context=Origin(file))


def test_what_a_rule_does_not_say_is_left_out_and_where_to_read_on_is_true_of_own_rules(tmp_path):
    (notice,) = notices(Alerts(), 10, replace(finding(), rule=bare(tmp_path / "my rules" / "ACM001.yaml")))
    assert notice.text.splitlines() == [
        (
            "Continue? Watch. Reward is low since step 5, until it ends; no reward and no evaluation could "
            "be judged, so harm would not be seen; if reward falls, resume from step 2."
        ),
        "Since step 5, detected at 10: p95 is 0.4.",
        "reward-is-low (policy_update).",
        f"More: tracker-diag rules show ACM001 --rules '{tmp_path}/my rules/ACM001.yaml'",
    ]
    (notice,) = notices(Alerts(), 10, replace(finding(), rule=bare()))
    assert "More: " not in notice.text  # no command shows what was made in Python


def test_incidents_that_begin_at_one_step_are_one_notice_headed_by_the_severest():
    (notice,) = notices(Alerts(), 10, finding(), finding("NUM004", "all", onset=9), finding("REW003", "all", onset=1))
    assert notice.level == "error"
    assert notice.title.endswith("(NUM004)")
    assert "(REW003)" in notice.text
    assert notice.text.index("REW003") < notice.text.index("POL001")


def test_symptoms_stand_in_the_notice_of_their_cause_and_have_none_of_their_own():
    alerts, cause = Alerts(), finding()
    (notice,) = notices(alerts, 12, cause, finding("POL004", onset=8, fired=12))
    assert notice.title.endswith("(POL001 post_tool)")
    assert "(POL004 post_tool). " in notice.text
    late = finding("NUM001", "all", onset=28, fired=30)
    assert notices(alerts, 30, late, others=[cause]) == []
    (own,) = notices(alerts, 30, finding("REW003", "all", onset=28, fired=30), others=[cause])  # no symptom of it
    assert own.title.endswith("(REW003)")


def test_it_is_reported_again_when_what_is_behind_it_is_found():
    alerts, part = Alerts(), finding("POL002", onset=5, fired=10)
    notices(alerts, 10, part)
    whole = finding("POL001", onset=7, fired=20)
    (notice,) = notices(alerts, 20, whole, others=[replace(part, inhibited_by="POL001")])
    assert notice.title.endswith("(POL001 post_tool)")
    assert notice.text.splitlines()[2].startswith("This is the cause of POL002, reported before.")
    assert notices(alerts, 21, whole, others=[replace(part, inhibited_by="POL001")]) == []


def test_an_incident_is_reported_again_when_it_harms_the_outcome_and_once_more_when_all_of_it_is_over():
    alerts, cause = Alerts(), finding()
    notices(alerts, 10, cause)
    damage = finding("OUT001", "all", onset=30, fired=40)
    (worse,) = notices(alerts, 40, damage, others=[cause])
    assert (worse.level, worse.title) == ("error", "Now also: Reward has lost what it had gained (POL001 post_tool)")
    assert worse.text.splitlines()[2:6] == [
        (
            "Reported at step 10 as a warning (POL001). Now an error: "
            "Reward has lost what it had gained (OUT001), since step 30."
        ),
        "Damage, since step 30: p95 is 0.4.",
        "Since step 5, detected at 10: p95 is 0.4.",
        "tool-conditioned-variance-amplification (policy_update).",
    ]
    assert worse.decision == "Stop: fix it, resume from step 2"
    assert worse.headline == (
        "Stop. Token probabilities shift after tool results, since step 5. Now also: "
        "Reward has lost what it had gained, since step 30. Fix it, resume from step 2 (POL001 post_tool)"
    )
    assert "resume from step 2 or earlier (so far before POL001 began)" in worse.text
    assert notices(alerts, 41, finding("POL004", onset=38, fired=41), others=[cause, damage]) == []
    over = finding(state="resolved", resolved=50)
    rest = [damage, finding("POL004", state="resolved", onset=38, fired=41, resolved=49)]
    assert notices(alerts, 50, over, others=rest) == []  # the damage lasts
    (end,) = notices(alerts, 60, replace(damage, state="resolved", resolved=60), others=[over, rest[1]])
    assert (end.level, end.title, end.decision) == ("info", OVER, "")
    assert end.text.splitlines()[0].endswith("from step 5 to 50.")
    assert len(end.text.splitlines()) == 3


def test_a_symptom_that_makes_it_worse_is_named_by_the_title():
    alerts, cause = Alerts(), finding()
    notices(alerts, 10, cause)
    late = finding("NUM001", "all", onset=28, fired=30)
    severe = replace(late, rule=late.rule.model_copy(update={"severity": "error"}))
    (worse,) = notices(alerts, 30, severe, others=[cause])
    assert worse.title == f"Now also: {late.rule.title} (POL001 post_tool)"
    assert worse.text.splitlines()[2].startswith(
        f"Reported at step 10 as a warning (POL001). Now an error: {late.rule.title} (NUM001)"
    )


def test_a_fall_that_was_reported_alone_is_worse_once_its_cause_is_known_and_the_title_names_the_cause():
    alerts, damage = Alerts(), finding("OUT001", "all", onset=30, fired=40)
    notices(alerts, 40, damage)
    (worse,) = notices(alerts, 60, finding("ENV001", "all", onset=35, fired=60), others=[damage])
    assert (worse.level, worse.title[:13], worse.title[-8:]) == ("error", "Now an error:", "(ENV001)")
    assert worse.text.splitlines()[2].startswith(
        f"Reported at step 40 as a warning (OUT001). Now an error: {RULES['ENV001'].title} (ENV001)"
    )


def test_the_place_of_what_got_worse_is_in_the_title_however_long_it_is():
    alerts, cause = Alerts(), finding(slice="tool:" + "a" * 80)
    notices(alerts, 10, cause)
    (worse,) = notices(alerts, 40, finding("OUT001", "all", onset=30, fired=40), others=[cause])
    assert worse.title.startswith("Now also: Reward has lost")
    assert "(POL001 tool:" in worse.title
    assert len(worse.title) <= TITLE


@pytest.mark.parametrize(
    "quiet", [{"state": "pending", "fired": None}, {"inhibited_by": "POL003"}, {"state": "resolved", "resolved": 12}]
)
def test_what_is_pending_explained_or_was_never_reported_is_not_reported(quiet):
    assert notices(Alerts(), 10, finding(**quiet)) == []


def test_info_is_for_the_table_alone():
    info = next(rule for rule in RULES.values() if rule.severity == "info")
    assert notices(Alerts(), 10, replace(finding(), rule=info)) == []


def test_the_end_is_reported_if_the_beginning_was():
    alerts = Alerts()
    notices(alerts, 10, finding())
    (notice,) = notices(alerts, 40, finding(state="resolved", resolved=40))
    assert (notice.level, notice.title) == ("info", OVER)
    assert "from step 5 to 40" in notice.text
    assert notices(alerts, 41, finding(state="resolved", resolved=40)) == []


def test_what_comes_and_goes_is_reported_again_only_after_its_cooldown():
    alerts, rest = Alerts(), RULES["POL001"].cooldown_steps
    notices(alerts, 10, finding())
    notices(alerts, 20, finding(state="resolved", resolved=20))
    assert notices(alerts, 30, finding(onset=25, fired=30)) == []
    assert notices(alerts, 35, finding(onset=25, fired=30, state="resolved", resolved=35)) == []
    assert len(notices(alerts, 30, finding(slice="text_only", onset=25, fired=30))) == 1
    assert len(notices(alerts, 10 + rest, finding(onset=9 + rest, fired=10 + rest))) == 1


def test_what_came_back_within_its_cooldown_and_stays_is_reported_when_that_is_over():
    alerts, rest = Alerts(), RULES["POL001"].cooldown_steps
    notices(alerts, 10, finding())
    notices(alerts, 20, finding(state="resolved", resolved=20))
    back = finding(onset=55, fired=60)
    assert notices(alerts, 60, back) == []
    again = Alerts()
    again.load_state_dict(json.loads(json.dumps(alerts.state_dict())))
    assert [len(notices(again, step, others=[back])) for step in (9 + rest, 10 + rest, 11 + rest)] == [0, 1, 0]


def test_what_came_and_went_is_not_kept_for_ever():
    alerts, lasting = Alerts(), finding("REW003", "all")
    notices(alerts, 10, lasting)
    for start in range(100, 3100, 10):
        flap = finding("ADV004", "all", onset=start, fired=start + 1)
        notices(alerts, start + 1, flap, others=[lasting])
        notices(alerts, start + 5, replace(flap, state="resolved", resolved=start + 5), others=[lasting])
    assert len(alerts.state_dict()["open"]) <= 2


def test_what_joined_in_silence_has_no_cooldown_of_its_own():
    alerts, late = Alerts(), finding("POL004", onset=58, fired=60)
    notices(alerts, 10, finding())
    assert notices(alerts, 60, late, others=[finding()]) == []
    over = [finding(state="resolved", resolved=90), replace(late, state="resolved", resolved=90)]
    assert [notice.level for notice in notices(alerts, 90, *over)] == ["info"]
    assert len(notices(alerts, 130, finding("POL004", onset=128, fired=130), others=over)) == 1


def test_what_is_explained_is_not_over_and_what_is_behind_it_is_reported_once():
    alerts, part = Alerts(), finding("POL002")
    notices(alerts, 10, part)
    whole = finding("POL001", onset=50, fired=60)  # too late to be the cause of it
    news = notices(alerts, 60, whole, others=[replace(part, inhibited_by="POL001")])
    assert [notice.title[-18:] for notice in news] == ["(POL001 post_tool)"]
    whole = replace(whole, state="resolved", resolved=200)
    assert [notice.title for notice in notices(alerts, 200, whole, others=[part])] == [OVER]
    other = finding("RES006", "all", onset=300, fired=310)
    assert [notices(alerts, step, other, others=[whole, part]) for step in (310, 320)] == [[], []]


def test_damage_stays_with_the_cause_that_it_was_reported_of():
    alerts = Alerts()
    early, late = finding("ENV001", "all", onset=40, fired=50), finding("REW003", "all", onset=100, fired=110)
    damage = finding("OUT001", "all", onset=120, fired=130)
    notices(alerts, 50, early)
    notices(alerts, 110, late, others=[early])
    notices(alerts, 130, damage, others=[early, late])
    over = [replace(late, state="resolved", resolved=140), replace(damage, state="resolved", resolved=160)]
    assert [notice.level for notice in notices(alerts, 160, *over, others=[early])] == ["info"]
    news = notices(alerts, 195, finding("EVA001", "all", onset=190, fired=195), others=[early, *over])
    assert [(notice.level, notice.title[-8:]) for notice in news] == [("warn", "(EVA001)")]


def test_a_cause_that_is_found_after_the_damage_is_reported():
    alerts, slow = Alerts(), finding("REW003", "all")
    damage = finding("OUT001", "all", onset=30, fired=40)
    notices(alerts, 10, slow)
    notices(alerts, 40, damage, others=[slow])
    (notice,) = notices(alerts, 60, finding("ENV001", "all", onset=35, fired=60), others=[slow, damage])
    assert (notice.level, notice.title[-8:]) == ("error", "(ENV001)")
    assert notice.text.splitlines()[2].startswith("This is the cause of OUT001, reported before.")


def test_what_comes_back_is_headed_by_how_it_is_now():
    alerts, first = Alerts(), finding(onset=100, fired=110)
    notices(alerts, 110, first)
    first = replace(first, state="resolved", resolved=500)
    notices(alerts, 500, first)
    (notice,) = notices(alerts, 800, finding(onset=795, fired=800), others=[first])
    assert "Since step 795, detected at 800: " in notice.text


def test_a_resumed_run_tells_nothing_twice():
    first, second = Alerts(), Alerts()
    notices(first, 10, finding())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert notices(second, 11, finding()) == []
    assert len(notices(second, 12, finding(state="resolved", resolved=12))) == 1


SOME = ("POL001", "POL002", "POL003", "POL004", "ADV001", "REW002", "REW003", "ENV001", "OUT001", "OUT002", "OUT005")
COURSES = st.dictionaries(
    st.sampled_from(SOME),
    st.tuples(st.integers(0, 200), st.integers(0, 20), st.integers(10, 150) | st.none()),  # onset, until fired, lasts
)


@pytest.mark.nightly
@given(COURSES)
def test_nothing_that_fires_is_left_unreported_and_nothing_ends_that_still_fires(courses):
    alerts, before = Alerts(), {}
    for step in range(400):
        findings = []
        for rule, (onset, wait, lasts) in courses.items():
            fired = onset + wait
            if step >= fired:
                over = lasts is not None and step >= fired + lasts
                resolved = {"state": "resolved", "resolved": fired + lasts} if over else {}
                findings.append(finding(rule, onset=onset, fired=fired, **resolved))
        findings.sort(key=lambda finding: finding.onset)
        firing = [finding for finding in findings if finding.state == "firing"]
        cover = {
            finding.rule.id: next((f.rule.id for f in firing if finding.rule.id in f.rule.inhibits), None)
            for finding in firing
        }
        findings = [replace(finding, inhibited_by=cover.get(finding.rule.id)) for finding in findings]
        changed = [finding for finding in findings if before.get(finding.rule.id) != finding]
        before = {finding.rule.id: finding for finding in findings}
        news = alerts.notices(
            step,
            changed,
            SimpleNamespace(findings=findings, incidents=connected(recent(findings)), best=(), checkpoints=()),
        )
        alerts.load_state_dict(state := json.loads(json.dumps(alerts.state_dict())))
        still_open = {tuple(place) for *place, _ in state["open"]}
        reported = {tuple(place): at for *place, at in state["reported"]}
        assert all(notice.text for notice in news)
        for incident in connected(findings):
            known = any(identity(finding) in still_open for finding in incident.findings)
            loud = [finding for finding in incident.findings if is_loud(finding)]
            rested = (reported[identity(finding)[:3]] + finding.rule.cooldown_steps <= step for finding in loud)
            assert known or not any(rested)
            fires = any(finding.state == "firing" and finding.rule.severity != "info" for finding in incident.findings)
            assert fires or not known


def test_every_title_is_short_enough_for_wandb():
    for rule in RULES.values():
        long = replace(finding(slice="tool:" + "a" * 80), rule=replace_severity(rule))
        (notice,) = notices(Alerts(), 10, long)
        assert len(notice.title) <= TITLE, rule.id


def replace_severity(rule):
    return rule.model_copy(update={"severity": "warn"})
