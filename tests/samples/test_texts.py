"""What texts tell, in several languages, at any length, and what they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.samples.patterns import CLAIMS, REFUSALS, TAKEN_BACK
from tracker_diag.samples.texts import text_features, token_features


def features_of(text):
    return {name: values[0] for name, values in text_features([text]).items()}


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that request.",
        "I\u2019m sorry, but I can\u2019t assist with this.",
        "<think>Is this allowed? I could do it.</think>\n\nI cannot provide that.",
        "Es tut mir leid, aber ich kann dazu nichts sagen.",
        "Je ne peux pas vous aider avec cela.",
        "Lo siento, pero no puedo hacer eso.",
        "Desculpe, mas não posso ajudar.",
        "Mi dispiace, ma non posso farlo.",
        "很抱歉，我无法回答这个问题。",
        "申し訳ありませんが、その質問にはお答えできません。",
        "Извините, но я не могу это сделать.",
        b"I cannot comply with that.",
    ],
)
def test_refusals_are_reported_in_nine_languages(text):
    assert features_of(text)["refuses"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "The function cannot return None, so we add a check. I can help with the rest.",
        "Sorry for the delay, here is the table.",
        "<think>I cannot help with that? Yes I can.</think> The answer is 4.",
        "A long answer. " * 30 + "The model then said: I cannot help with that.",
        "",
    ],
)
def test_answers_that_speak_of_refusals_are_none(text):
    assert features_of(text)["refuses"] == 0


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("All steps ran. The task is complete.", 1),
        ("I've successfully booked the flight.", 1),
        ("Die Aufgabe wurde erfolgreich gelöst.", 1),
        ("La tâche est terminée.", 1),
        ("La tarea se ha completado.", 1),
        ("A tarefa foi concluída com sucesso.", 1),
        ("Il lavoro è completato con successo.", 1),
        ("任务完成。", 1),
        ("処理が完了しました。", 1),
        ("Задача выполнена.", 1),
        ("The task is complete, but I could not verify it.", 0),
        ("The booking was not successfully made.", 0),
        ("Die Buchung wurde nicht erfolgreich abgeschlossen.", 0),
        ("任务未完成。", 0),
        ("42", 0),
        ("The task is complete." + " More text follows here." * 40, 0),
    ],
)
def test_a_claim_of_success_is_reported_where_it_is_not_taken_back(text, claims):
    assert features_of(text)["claims"] == claims


def test_phrases_are_in_the_form_in_which_texts_are_searched():
    for phrase in (*REFUSALS, *CLAIMS, *TAKEN_BACK):
        assert phrase == phrase.lower().strip()
        assert "\u2019" not in phrase
        assert len(phrase) > 1
    assert all(len(set(part)) == len(part) for part in (REFUSALS, CLAIMS, TAKEN_BACK))


@pytest.mark.parametrize("period", [1, 10, 60, 120])
def test_a_text_that_goes_round_at_its_end_repeats_itself(period, prose):
    assert features_of(prose(900) + prose(period) * (1200 // period))["repeats"] == 1


def test_prose_tables_and_short_texts_do_not(prose):
    table = "\n".join(f"| {i} | {i * 7919 % 100} | ok |" for i in range(80))
    for text in (prose(3000), table, "yes " * 20, " ".join(map(str, range(600)))):
        assert features_of(text)["repeats"] == 0


@pytest.fixture
def prose():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("aeiounrtslmdcp"), rng.integers(2, 9))) for _ in range(800)]
    return lambda length: " ".join(rng.choice(words, length))[:length]


def test_ids_that_go_round_repeat_themselves(prose):
    rng = np.random.default_rng(0)
    varied, loop = rng.integers(0, 5000, 900), np.tile(rng.integers(0, 5000, 40), 20)
    result = token_features([varied.tolist(), [*varied, *loop], [7] * 30, None, []], None)
    assert result["repeats"].tolist()[:3] == [0, 1, 0]
    assert np.isnan(result["repeats"][3])
    assert result["repeats"][4] == 0


def test_padding_behind_a_sequence_is_no_repetition():
    ids = np.zeros((1, 600), dtype=np.int64)
    ids[0, :100] = np.random.default_rng(0).integers(1, 5000, 100)
    assert token_features(ids, np.array([100.0]))["repeats"].tolist() == [0]


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.text(), st.binary()), max_size=8))
def test_any_text_is_taken_as_it_comes(texts):
    result = text_features(texts)
    for i, text in enumerate(texts):
        assert np.isnan(result["refuses"][i]) == (text is None)
        alone = text_features([text])
        assert all(np.array_equal(values[i], alone[name][0], equal_nan=True) for name, values in result.items())


def test_a_megabyte_lone_surrogates_and_binary_are_read():
    for text in ("x y " * 300_000, "\ud800 hello " * 50, bytes(range(256)) * 4000, "\0" * 2000):
        assert all(np.isfinite(value) for value in features_of(text).values())
