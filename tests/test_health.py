"""Training goes on, whatever happens inside the diagnostics: signals at any point, forks beside other threads."""

import gc
import os
import signal
import sys
import threading
from enum import Enum
from functools import partial
from pathlib import Path

import pytest

from tracker_diag import Monitor, wrap
from tracker_diag.errors import without_secrets
from tracker_diag.health import SOON, Health, _interpreter, whole
from tracker_diag.testing import CapturingBackend, example_batch
from tracker_diag.trackers import tracker as base
from tracker_diag.trackers.files.write import JsonlBackend
from tracker_diag.trackers.tracker import writing, writing_of_ours

BATCHES = [example_batch(step) for step in range(8)]


class Of(Exception):  # of the user's program
    """What a signal handler of the user's raises, as one that ends a job in time does."""


@pytest.fixture
def alarms():
    """Has a handler called in the midst of what follows, after ever other times.

    What is raised in a callback of the garbage collector Python drops, and Hypothesis has such a callback.
    """
    before, callbacks = signal.getsignal(signal.SIGUSR1), gc.callbacks[:]
    gc.callbacks.clear()
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)
    gc.callbacks[:] = callbacks


def interrupted(monitor, delay, raised):
    """A few steps, in each of which the alarm goes off after `delay`; how often one of `raised` has come through."""
    came = 0
    for step, batch in enumerate(BATCHES):
        alarm = threading.Timer(delay * (1 + 0.1 * step), os.kill, (os.getpid(), signal.SIGUSR1))
        try:
            alarm.start()
            monitor.observe(**batch)
            monitor.log({"loss": 1.0, "reward": 0.5}, step)
            alarm.join(60)
        except raised:
            came += 1
    return came


def is_dropped(frame):
    """Whether what is raised here is dropped: by Python in `__del__` and in what it calls when a weak reference dies.

    By W&B while it takes in what is printed, after it has been imported: `console_capture` logs it and goes on.
    """
    while frame is not None:
        name, file = frame.f_code.co_name, Path(frame.f_code.co_filename).name
        if name == "__del__" or ("weakref" in file and name in ("_remove", "remove")) or file == "console_capture.py":
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def interval():
    """Seconds after which threads give way, as the user has set it: to none of the values of ours or of Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.007)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.parametrize("raised", [KeyboardInterrupt, Of])
def test_an_interrupt_at_any_point_leaves_the_diagnostics_whole(raised, alarms, interval, rng):
    calls, came = [], 0

    def handler(number, frame):
        if not is_dropped(frame):
            calls.append(number)
            raise raised

    alarms(handler)
    for delay in rng.uniform(2e-5, 6e-3, 40):
        monitor = Monitor([CapturingBackend()])
        came += interrupted(monitor, delay, raised)
        monitor.observe(**BATCHES[0])
        monitor.log({"loss": 1.0}, 100)
        monitor.state_dict()
        monitor.close()
        assert {kind for kind, count in monitor.health.items() if count} <= {"late_steps"}, monitor.failures
        assert not writing_of_ours()
        assert sys.getswitchinterval() == interval
    assert came == len(calls) > 100


class Interrupted:
    """A context variable beside whose first `set` Ctrl-C is pressed: it is heard right after it."""

    def __init__(self, variable):
        self.get, self._variable, self._calls = variable.get, variable, 0

    def set(self, value):
        self._variable.set(value)
        self._calls += 1
        if self._calls == 1:
            raise KeyboardInterrupt


def test_an_interrupt_as_we_begin_to_write_does_not_make_us_deaf(monkeypatch):
    monkeypatch.setattr(base, "_ours", Interrupted(base._ours))
    with pytest.raises(KeyboardInterrupt), writing():
        pass
    assert not writing_of_ours()
    with writing():
        with writing():
            assert writing_of_ours()
        assert writing_of_ours()
    assert not writing_of_ours()


@pytest.mark.slow
def test_a_handler_that_logs_itself(alarms, rng):
    for delay in rng.uniform(2e-5, 6e-3, 40):
        monitor = Monitor([CapturingBackend()])
        alarms(lambda *_, monitor=monitor: monitor.log({"from": 1.0}, monitor.step))
        interrupted(monitor, delay, ())
        monitor.close()
        assert monitor.failures == []


def test_signals_wait_until_the_whole_is_done(alarms):
    order = []
    before = signal.getsignal(signal.SIGINT)
    alarms(lambda *_: order.append("handled"))
    with whole(), whole():
        signal.raise_signal(signal.SIGUSR1)
        order.append("done")
    assert order == ["done", "handled"]
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_handler_raises_is_not_ours_to_count(alarms):
    def handler(*_):
        raise Of

    alarms(handler)
    health = Health()
    with pytest.raises(Of), health.guard("internal_errors"):
        signal.raise_signal(signal.SIGUSR1)
    assert not health.counts


def test_other_threads_give_way_soon_while_a_step_is_taken_in_and_as_before_then(interval, alarms):
    seen = []

    class Watching(CapturingBackend):
        def log(self, step, records, at):
            seen.append(sys.getswitchinterval())

    monitor = Monitor([Watching()])

    def handler(*_):
        monitor.log({"loss": 1.0})

    alarms(handler)
    for step, batch in enumerate(BATCHES):
        monitor.observe(**batch)
        assert sys.getswitchinterval() == interval
        monitor.log({"loss": 1.0}, step)
        signal.raise_signal(signal.SIGUSR1)
        assert sys.getswitchinterval() == interval
    monitor.close()
    assert sys.getswitchinterval() == interval
    assert len(seen) >= len(BATCHES)
    assert max(seen) == pytest.approx(SOON)


def test_what_the_user_sets_meanwhile_and_what_is_shorter_already_stays(interval):
    health = Health()
    with health.guard("internal_errors"):
        sys.setswitchinterval(0.003)
    assert sys.getswitchinterval() == pytest.approx(0.003)
    sys.setswitchinterval(SOON / 2)
    with health.guard("internal_errors"):
        assert sys.getswitchinterval() == pytest.approx(SOON / 2)
    assert sys.getswitchinterval() == pytest.approx(SOON / 2)


def test_the_last_of_several_threads_puts_the_interval_back(interval):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with Health().guard("internal_errors"):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    with Health().guard("internal_errors"):
        pass
    assert sys.getswitchinterval() == pytest.approx(SOON)
    child = os.fork()  # there the other thread is gone
    if child == 0:
        os._exit(sys.getswitchinterval() != interval)
    assert os.waitpid(child, 0)[1] == 0
    leave.set()
    thread.join(60)
    assert sys.getswitchinterval() == interval


def raising_after(calls):
    """A profile function that raises `Of` where a handler would that is called after so many calls."""
    left = iter(range(calls))

    def profile(frame, event, arg):
        if event in ("call", "c_return") and next(left, None) is None:
            raise Of

    return profile


def test_after_an_interrupt_at_any_call_the_interval_is_put_back(interval):
    interrupted = 0
    for calls in range(100):
        before = sys.getprofile()
        try:
            sys.setprofile(raising_after(calls))
            with _interpreter.soon():
                pass
            break
        except Of:
            interrupted += 1
        finally:
            sys.setprofile(before)
        with _interpreter.soon():
            assert sys.getswitchinterval() == pytest.approx(SOON)
        assert sys.getswitchinterval() == interval
    assert 10 < interrupted < 100


@pytest.mark.slow
def test_a_fork_beside_a_thread_that_logs_does_not_wait(tmp_path):
    class Own:
        def log(self, data, step=None):
            pass

    own = Own()
    run = wrap(own, also=[JsonlBackend(tmp_path)])
    stop, begun = threading.Event(), threading.Event()

    def train():
        step = 0
        while not stop.is_set():
            run.diag.observe(**BATCHES[0])
            run.diag.log({"loss": 1.0}, step)
            step += 1
            begun.set()

    thread = threading.Thread(target=train)
    thread.start()
    begun.wait(60)
    ended = []
    for number in range(15):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # by then it hangs
            own.log({"loss": 2.0}, 10**6 + number)
            run.diag.observe(**BATCHES[1])
            run.diag.summary()
            run.diag.state_dict()
            run.diag.close()
            os._exit(0)
        ended.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join(60)
    assert ended == [0] * 15
    assert run.diag.close().last_step < 10**6
    assert run.diag.failures == []


def test_every_signal_is_heard_and_none_is_forgotten(alarms):
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda *_: heard.append("the second"))

    def first(*_):
        heard.append("the first")
        raise Of

    alarms(first)
    health = Health()

    def both():
        with health.guard("internal_errors"), whole():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)

    try:
        with pytest.raises(Of):
            both()
        assert heard == ["the first", "the second"]
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not health.counts


def test_an_error_of_ours_is_none_of_a_handler():
    """The system's own handlers are an enum, and so are reasons and more of ours."""

    class Kind(Enum):
        ONE = 1

    health = Health()
    health.strict = False
    with health.guard("internal_errors"):
        Kind("none of these")
    assert health.counts["internal_errors"] == 1


def test_a_handler_that_takes_itself_off_first(alarms):
    def once(*_):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Of

    alarms(partial(once))
    health = Health()
    with pytest.raises(Of), health.guard("internal_errors"), whole():
        signal.raise_signal(signal.SIGUSR1)


def test_secrets_of_the_environment_are_not_told(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "a key/with+signs")
    monkeypatch.setenv("TRACKER_DIAG_NOTIFY", "slack://first-of-two mail://second-of-two")
    monkeypatch.setenv("TOKENIZER_PATH", "/models/tokenizer")
    told = without_secrets(
        "no answer from slack://first-of-two, mail://second-of-two; http://me:word@host/?X-Amz-Signature=abc&y=1 of "
        "/models/tokenizer"
    )
    assert told == "no answer from ***, ***; http://***@host/?X-Amz-Signature=***&y=1 of /models/tokenizer"
