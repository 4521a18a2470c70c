import logging

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.rules.alerts import Notice
from tracker_diag.runs.logbook import Logbook
from tracker_diag.runs.telling import AGAIN, Log, Message, Teller, Url
from tracker_diag.trackers.tracker import Refused


@pytest.fixture
def logbook(tmp_path):
    made = Logbook(tmp_path / "state", "runs", project=True)
    yield made
    made.close()


class Person:
    """Hears what it is told, unless something is in the way."""

    def __init__(self, id="person"):
        self.id, self.heard, self.fails = id, [], None

    def tell(self, message):
        if self.fails:
            raise self.fails
        self.heard.append(message.notice.text)


def messages(*texts):
    return [Message.of(Notice(7, "warn", "a title", text), "source", "run") for text in texts]


def test_an_id_is_that_of_the_notice_and_of_nothing_else():
    (one,), (same,) = messages("a"), messages("a")
    assert one == same == Message.of_state(one.state_dict())
    others = [
        Message.of(Notice(7, "warn", "a title", "a"), "other source", "run"),
        Message.of(Notice(8, "warn", "a title", "a"), "source", "run"),
        Message.of(Notice(7, "error", "a title", "a"), "source", "run"),
        *messages("b"),
    ]
    assert len({one.notice.id, *(other.notice.id for other in others)}) == 5
    renamed = Message.of(Notice(7, "warn", "a title", "a"), "source", "renamed run")
    assert renamed.notice.id == one.notice.id


def test_each_is_told_once_and_in_order(logbook):
    person = Person()
    assert Teller(logbook, [person]).tell(messages("a", "b")) == []
    assert Teller(logbook, [person]).tell(messages("a", "b", "c")) == []
    assert person.heard == ["a", "b", "c"]


def test_one_who_is_away_holds_up_nobody_else_and_keeps_the_order(logbook, caplog):
    here, away = Person("here"), Person("away")
    away.fails = OSError("http://there: Connection refused")
    teller = Teller(logbook, [away, here])
    waiting = teller.tell(messages("a", "b"))
    assert (here.heard, away.heard, len(waiting)) == (["a", "b"], [], 2)
    away.fails = None
    assert len(teller.tell(waiting)) == 2, "not tried again before the next look"
    teller.again()
    assert teller.tell(waiting) == []
    assert (here.heard, away.heard) == (["a", "b"], ["a", "b"])
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == [
        "alerts wait for a receiver that is away",
        "the receiver is back, and has got an alert that waited",
    ]


@pytest.mark.parametrize(
    ("said", "unsure"), [("x: HTTP 503", False), ("x: Connection refused", False), ("x: TimeoutError", True)]
)
def test_what_may_have_arrived_says_so_when_it_is_sent_again(said, unsure, logbook):
    person = Person()
    teller = Teller(logbook, [person])
    person.fails = OSError(said)
    waiting = teller.tell(messages("a"))
    person.fails = None
    teller.again()
    assert teller.tell(waiting) == []
    assert person.heard == [f"{AGAIN}\na" if unsure else "a"]


def test_what_was_refused_is_told_no_more(logbook, caplog):
    person = Person()
    person.fails = Refused("x: HTTP 404")
    assert Teller(logbook, [person]).tell(messages("a")) == []
    person.fails = None
    assert Teller(logbook, [person]).tell(messages("a", "b")) == []
    assert person.heard == ["b"]
    assert "HTTP 404" in caplog.text


def test_nothing_is_told_that_cannot_be_written_down(logbook):
    person = Person()
    teller = Teller(logbook, [person])
    logbook.close()
    with pytest.raises(OSError, match=r"."):
        teller.tell(messages("a"))
    assert person.heard == []


def test_the_log_names_the_run(caplog):
    with caplog.at_level(logging.INFO, "tracker_diag"):
        Log().tell(Message("a run\nof " + 50 * "x", Notice(7, "warn", "a title", "one\ntwo", "id")))
        Log().tell(Message("run", Notice(7, "info", "over", "", "id")))
    first, second = caplog.records
    assert first.getMessage().startswith("a run of xxx")
    assert first.getMessage().endswith("…: a title\n  one\n  two")
    assert (first.levelno, second.levelno) == (logging.WARNING, logging.INFO)


def test_a_url_gets_the_run_and_the_id(receive):
    there = receive()
    channel = Url(there.url)
    assert there.url not in repr(channel.id)
    channel.tell(Message("mine", Notice(7, "warn", "a title", "a text", "an id")))
    assert there.got == [
        {"title": "a title", "text": "a text", "level": "warn", "step": 7, "run": "mine", "id": "an id"}
    ]
    assert Url(there.url).id == channel.id


def test_a_url_that_cannot_be_used_is_refused_at_once():
    with pytest.raises(DiagError, match="the URL is not shown"):
        Url("nonsense")


def test_a_receiver_that_answers_with_an_error_is_tried_again_and_one_that_refuses_is_not(receive):
    there = receive([503, 404])
    (message,) = messages("a")
    with pytest.raises(OSError, match="HTTP 503"):
        Url(there.url).tell(message)
    with pytest.raises(Refused, match="HTTP 404"):
        Url(there.url).tell(message)
    Url(there.url).tell(message)
    assert len(there.got) == 1
