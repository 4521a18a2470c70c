import json
from dataclasses import replace

import pytest

from tracker_diag import diagnose, read_run
from tracker_diag.errors import UnknownName
from tracker_diag.monitor.context import Code, context_of
from tracker_diag.rules.loader import catalog
from tracker_diag.runs.postmortem.checklist import answers, items, page, to_json

LISTS = ("before", "during", "after")


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory):
    """A run whose KL ran away, with a context record next to it."""
    folder = tmp_path_factory.mktemp("run")
    rows = [
        {
            "step": step, "reward": 0.5 + 0.001 * step, "eval_score": 0.4, "clip_fraction": 0.1,
            "approx_kl": 0.01 * (1 if step < 100 else 1.1 ** (step - 100)), "config": {"target_kl": 0.1, "seed": 3},
        }
        for step in range(160)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = context_of({"evaluation_command": "evaluate <all>"}, {"torch": "2"}, Code("abcdef" * 6, dirty=False))
    (folder / "context.json").write_text(json.dumps(kept.to_json()))
    return diagnose(read_run(str(folder)))


def answer(diagnosis, when, beginning):
    (entry,) = [entry for entry in answers(when, diagnosis) if entry.ask.startswith(beginning)]
    return entry


@pytest.mark.parametrize("when", LISTS)
def test_each_question_names_rules_and_metrics_that_there_are(when):
    rules = {rule.id for rule in catalog()}
    assert len(items(when)) >= 10
    for item in items(when):
        assert set(item.rules) <= rules
        assert item.ask.endswith("?")
        answered = item.rules or item.settings or item.context or item.series
        assert item.person or (answered and item.log), item.ask


def test_a_rule_that_fired_is_a_no_with_its_evidence(diagnosis):
    entry = answer(diagnosis, "during", "Does KL stay")
    assert entry.verdict == "no"
    assert entry.evidence[0].startswith("POL010 KL spikes or runs away")


def test_a_rule_that_could_see_and_found_nothing_is_a_yes(diagnosis):
    entry = answer(diagnosis, "during", "Are few samples clipped")
    assert (entry.verdict, entry.evidence, entry.log) == ("yes", ("POL011 could see and found nothing",), "")


def test_a_rule_that_could_not_see_is_no_yes(diagnosis):
    entry = answer(diagnosis, "during", "Do tool calls work")
    assert entry.verdict == "unknown"
    assert entry.evidence[0] == "ENV001 could not see: no series tool_failure_rate"
    assert entry.log.startswith("the tool calls")


def test_settings_and_the_context_record_answer(diagnosis):
    assert answer(diagnosis, "before", "Is a limit set").evidence == ("target_kl=0.1",)
    assert answer(diagnosis, "before", "Is the evaluation fixed").evidence == ("evaluation_command=evaluate <all>",)
    entry = answer(diagnosis, "before", "Are seed, settings")
    assert (entry.verdict, entry.evidence) == (
        "yes", ("seed=3", "config: 3 recorded", "commit abcdefabcdef", "versions: 1 recorded")
    )  # fmt: skip


def test_code_with_changes_cannot_be_repeated(diagnosis):
    kept = context_of({}, {}, Code("abc", dirty=True)).to_json()
    dirty = replace(diagnosis, run=replace(diagnosis.run, context=json.dumps(kept)))
    entry = answer(dirty, "before", "Are seed, settings")
    assert (entry.verdict, entry.evidence[2]) == ("no", "commit abc with changes that are not committed")
    assert entry.log


def test_what_a_person_has_to_say_stays_a_question_with_what_is_known(diagnosis):
    entry = answer(diagnosis, "after", "Is the checkpoint with the best")
    assert entry.verdict == "person"
    assert "eval_score 0.4 recently, 0.4 at its best" in entry.evidence[0]
    assert answer(diagnosis, "during", "Was each incident").evidence[0].startswith("warn, firing since step")


@pytest.mark.parametrize("when", LISTS)
def test_the_page_is_a_list_of_tasks_and_the_json_says_the_same(diagnosis, when):
    given = answers(when, diagnosis)
    assert [answer.ask for answer in given] == [item.ask for item in items(when)]
    text = page(when, "run", given)
    assert text.startswith(f"## Checklist {when} training: run")
    assert text.count("\n- [x] **") == sum(answer.verdict == "yes" for answer in given)
    printed = json.loads(json.dumps(to_json(when, "run", given)))
    assert (printed["when"], len(printed["answers"])) == (when, len(given))
    assert {answer["verdict"] for answer in printed["answers"]} <= {"yes", "no", "unknown", "person"}


def test_texts_are_shown_as_they_are(diagnosis):
    text = page("before", "run", answers("before", diagnosis))
    assert "evaluate &lt;all\\>" in text
    assert "Cannot know.\n  - ENV004 could not see" in text


def test_an_unknown_list_is_reported():
    with pytest.raises(UnknownName, match="checklist: 'befor' given, expected one of before, during, after"):
        items("befor")
