"""Against a real receiver on loopback: what it got, when it was away, and that nobody saw the secrets."""

import logging
import time

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.delivery.journal import Journal
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.notify import NOTIFY, Notifier
from tracker_diag.trackers.tracker import Address, End, Refused


def ended(outbox):
    outbox.write(0, [End(NOTHING, ())], 0.0)
    outbox.close()


NOTHING = Summary("test", 0, None, None, (), {}, ())


def notice(step, level="warn"):
    return Notice(step, level, f"title {step}", f"text {step}")


def until(holds):
    """Until `holds()`, within a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def send(notifier, *steps):
    """Through the outbox, as a run does; what went wrong on the way."""
    outbox = Outbox(notifier)
    for step in steps:
        outbox.write(step, [notice(step)], 0.0)
    ended(outbox)
    return list(outbox.tally.taken()[1])


@pytest.mark.slow
def test_each_notice_arrives_once_and_in_order(receive):
    there = receive()
    assert send(Notifier(there.url, run="mine"), *range(20)) == []
    assert there.got == [
        {"title": f"title {i}", "text": f"text {i}", "level": "warn", "step": i, "run": "mine"} for i in range(20)
    ]
    assert there.headers[0]["Content-Type"] == "application/json"


def test_a_receiver_that_is_away_gets_them_when_it_is_back(receive):
    outbox = Outbox(Notifier(receive.state.url))
    for step in (1, 2, 3):
        outbox.write(step, [notice(step)], 0.0)
    errors = []
    until(lambda: errors.extend(outbox.tally.taken()[1]) or errors)
    receive()
    ended(outbox)
    errors += outbox.tally.taken()[1]
    assert [body["step"] for body in receive.state.got] == [1, 2, 3]
    assert all(str(error) == f"{receive.state.url}: Connection refused" for error in errors)


@pytest.mark.by_day("429")
@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_failed_for_now_is_tried_again(receive, status):
    there = receive(status=[status, status])
    errors = send(Notifier(there.url), 1, 2)
    assert [body["step"] for body in there.got] == [1, 2]
    assert [str(error) for error in errors] == [f"{there.url}: HTTP {status}"] * 2


@pytest.mark.slow
def test_one_that_stays_ill_is_asked_a_few_times_at_the_end_and_the_notices_wait_for_flush(
    receive, journals, monkeypatch
):
    """It got 60 requests, and the process ended half a minute later."""
    monkeypatch.delenv("TRACKER_DIAG_EXIT_TIMEOUT")
    there = receive(status=[503] * 100)
    messages = str(send(Notifier(there.url, run="mine"), 1, 2)[-1])
    assert there.got == []
    assert 3 <= len(there.paths) <= 8
    (journal,) = journals.glob("*.journal")
    assert f"what is in {journal} waits for tracker-diag flush" in messages
    there.status.clear()
    assert Outbox(Notifier(there.url), Journal.taken(journal)).drain(60)
    assert [body["step"] for body in there.got] == [1, 2]


@pytest.mark.parametrize("status", [404, 401, 302])
def test_what_will_never_go_well_is_given_up_and_the_next_is_reported(receive, status):
    there = receive(status=[status])
    (error,) = send(Notifier(there.url + "/hook"), 1, 2)
    assert [body["step"] for body in there.got] == [2]
    assert isinstance(error, Refused)
    assert str(error) == f"{there.url}: HTTP {status}"
    assert there.paths == ["/hook", "/hook"]  # a redirect is not followed


def test_one_receiver_that_is_away_holds_up_no_other(receive):
    there = receive()
    notifier = Notifier([there.url + "/one", there.url + "/two"])
    there.status = [503]
    notifier.write(1, [notice(1)], 0.0)
    with pytest.raises(OSError, match="HTTP 503"):
        notifier.flush()
    assert there.paths == ["/one", "/two"]
    assert notifier.flush()
    assert len(there.got) == 2


# Secrets.

WEB = "http://us%40er:pass%2Fword@{place}/services/T0KEN/seg.ment?key=h1dden&chat=r00m"
APPRISE = "json://us%40er:pass%2Fword@{place}/services/T0KEN/seg.ment?key=h1dden&chat=r00m"
SECRETS = ("us%40er", "us@er", "pass%2Fword", "pass/word", "T0KEN", "seg.ment", "h1dden", "r00m", "services")


@pytest.fixture
def everything_logged(caplog):
    caplog.set_level(1)
    for name in ("apprise", "urllib3.connectionpool"):
        caplog.set_level(1, logger=name)
    return caplog


def seen(caplog, *values):
    return "\n".join([*map(str, values), *map(repr, values), *(logging.Formatter().format(r) for r in caplog.records)])


@pytest.mark.parametrize("url", [WEB, APPRISE])
@pytest.mark.parametrize("status", [[], [500], [404]])
def test_secrets_are_used_and_shown_nowhere(receive, everything_logged, journals, url, status):
    there = receive(status)
    notifier = Notifier(url.format(place=there.url[7:]), run="mine")
    outbox = Outbox(notifier)
    outbox.write(1, [notice(1)], 0.0)
    until(lambda: there.paths)
    written = "".join(file.read_text() for file in journals.iterdir())
    assert '"run": "mine"' in written
    ended(outbox)
    errors = list(outbox.tally.taken()[1])
    assert len(errors) == len(status)
    causes = [c for error in errors for c in (error.__cause__, error.__context__, error.args) if c]

    assert all(path.startswith("/services/T0KEN/seg.ment") for path in there.paths)
    assert all(headers["Authorization"] == "Basic dXNAZXI6cGFzcy93b3Jk" for headers in there.headers)
    shown = seen(everything_logged, notifier, notifier.address, *errors, *causes) + written
    assert [secret for secret in SECRETS if secret in shown] == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("T0KEN", "expected scheme://..."),
        ("http:///T0KEN", "it cannot be read"),
        ("http://host:T0KEN/x", "it cannot be read"),
        ("http://[T0KEN/x", "it cannot be read"),
        ("http://host/T0KEN-é", "it cannot be read"),
        ("http://host/T0KEN x", "it cannot be read"),
        ("nosuchscheme://host/T0KEN", "apprise cannot use it"),
        ("slack://T0KEN", "apprise cannot use it"),
    ],
)
def test_a_url_that_cannot_be_used_is_reported_at_once_and_not_shown(everything_logged, url, problem):
    with pytest.raises(DiagError) as error:
        Notifier(["http://127.0.0.1:1", url])
    assert str(error.value) == f"urls[1]: {problem}; the URL is not shown, since it may hold secrets"
    assert "T0KEN" not in seen(everything_logged, error.value.__cause__, error.value.__context__)


def test_a_host_that_cannot_be_looked_up_is_given_up_without_being_shown(everything_logged):
    (error,) = send(Notifier("http://a..b/T0KEN"), 1)
    assert isinstance(error, Refused)
    assert "T0KEN" not in seen(everything_logged, error, error.__cause__, error.__context__)


def test_no_url_is_reported(monkeypatch):
    monkeypatch.delenv(NOTIFY, raising=False)
    with pytest.raises(DiagError, match="urls: none given, expected some here or in TRACKER_DIAG_NOTIFY"):
        Notifier()


def test_urls_of_the_environment_and_what_a_dead_process_left(receive, monkeypatch, journals):
    monkeypatch.setenv(NOTIFY, f"  {receive.state.url}/one\n{receive.state.url}/two ")
    outbox = Outbox(Notifier(run="left"))
    outbox.write(7, [notice(7)], 0.0)
    outbox.drain(0.2)  # nobody is there
    there = receive()
    notifier = Notifier.find(Address({"run": "left"}))
    assert notifier is not None
    (left,) = journals.glob("notify-left*.journal")
    assert Outbox(notifier, Journal.taken(left)).drain(60)
    assert sorted(there.paths) == ["/one", "/two"]
    assert [body["step"] for body in there.got] == [7, 7]


# apprise.


@pytest.mark.slow
@pytest.mark.parametrize(("level", "kind"), [("warn", "warning"), ("error", "failure"), ("info", "success")])
def test_through_apprise(receive, level, kind):
    there = receive()
    notifier = Notifier(there.url.replace("http", "json"), run="mine")
    notifier.write(3, [notice(3, level)], 0.0)
    assert notifier.flush()
    (body,) = there.got
    assert (body["title"], body["message"], body["type"]) == ("title 3", "text 3\n\nStep 3 of mine", kind)


@pytest.mark.slow
def test_apprise_is_tried_again(receive):
    there = receive(status=[500])
    (error,) = send(Notifier(there.url.replace("http", "json")), 1, 2)
    assert str(error) == "json://***: apprise could not deliver"
    assert [body["title"] for body in there.got] == ["title 1", "title 2"]
