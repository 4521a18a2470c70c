"""Training continues, whatever happens inside the diagnostics: signals at any point, forks next to other threads."""

import ctypes
import faulthandler
import gc
import os
import signal
import threading
from enum import Enum
from functools import partial
from pathlib import Path

import pytest

from tracker_diag import Monitor, wrap
from tracker_diag.health import Health
from tracker_diag.scrub import without_secrets
from tracker_diag.testing import CapturingTracker, example_batch
from tracker_diag.trackers import tracker as base
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.tracker import writing, writing_of_ours

BATCHES = [example_batch(step) for step in range(8)]


class Of(Exception):  # of the user's program
    """What a signal handler of the user's raises, as one that ends a job in time does."""


class Own:  # of the user's program
    """A logger that keeps nothing."""

    def log(self, data, step=None):
        pass


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

    By W&B while it takes in what is printed, after it has been imported: `console_capture` logs it and continues.
    """
    while frame is not None:
        name, file = frame.f_code.co_name, Path(frame.f_code.co_filename).name
        if name == "__del__" or ("weakref" in file and name in ("_remove", "remove")) or file == "console_capture.py":
            return True
        frame = frame.f_back
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("raised", [KeyboardInterrupt, Of])
def test_an_interrupt_at_any_point_costs_that_step_alone(raised, alarms, rng):
    calls, came, counted = [], 0, 0

    def handler(number, frame):
        if not is_dropped(frame):
            calls.append(number)
            raise raised

    alarms(handler)
    for delay in rng.uniform(2e-5, 6e-3, 40):
        monitor = Monitor([CapturingTracker()])
        came += interrupted(monitor, delay, raised)
        monitor.observe(**BATCHES[0])
        monitor.log({"loss": 1.0}, 100)
        assert monitor.step == 100
        monitor.state_dict()
        assert monitor.close().last_step == 100
        broken = {kind for kind, count in monitor.health.items() if count}
        assert broken <= {"late_steps", "interrupted_steps"}, monitor.failures
        assert not writing_of_ours()
        counted += monitor.health["interrupted_steps"]
    assert came == len(calls) > 100
    assert 20 < counted <= came  # others come before or after what is guarded


class Interrupted:
    """A context variable at whose first `set` Ctrl-C is pressed: it is heard right after it."""

    def __init__(self, variable):
        self.get, self._variable, self._calls = variable.get, variable, 0

    def set(self, value):
        self._variable.set(value)
        self._calls += 1
        if self._calls == 1:
            raise KeyboardInterrupt


def test_an_interrupt_as_we_begin_to_write_does_not_make_us_deaf(monkeypatch):
    monkeypatch.setattr(base, "_ours", Interrupted(base._ours))  # noqa: SLF001  # no test can time a Ctrl-C
    with pytest.raises(KeyboardInterrupt), writing():
        pass
    assert not writing_of_ours()
    with writing():
        with writing():
            assert writing_of_ours()
        assert writing_of_ours()
    assert not writing_of_ours()


@pytest.mark.nightly
def test_a_handler_that_logs_itself(alarms, rng):
    for delay in rng.uniform(2e-5, 6e-3, 40):
        monitor = Monitor([CapturingTracker()])
        alarms(lambda *_, monitor=monitor: monitor.log({"from": 1.0}, monitor.step))
        interrupted(monitor, delay, ())
        monitor.close()
        assert monitor.failures == []  # a call in the middle of a step is counted, and left out


def test_what_a_handler_raises_is_not_ours_to_count(alarms):
    def handler(*_):
        raise Of

    alarms(handler)
    health = Health()
    with pytest.raises(Of), health.guard("internal_errors"):
        signal.raise_signal(signal.SIGUSR1)
    assert health.counts == {"interrupted_steps": 1}


def actions(libc):
    """What the system knows of each signal: handler, mask and flags, which are where glibc has them."""
    held = {number: ctypes.create_string_buffer(256) for number in map(int, signal.valid_signals())}
    known = {number: place.raw for number, place in held.items() if libc.sigaction(number, None, place) == 0}
    return {number: (raw[:16], raw[136:140]) for number, raw in known.items()}


@pytest.mark.slow
def test_handlers_that_a_c_library_has_set_stay(alarms, tmp_path):
    """Python cannot see such a handler, so it must never set another in its place; nor see `siginterrupt`."""
    libc = ctypes.CDLL(None)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    heard = []
    handler = kind(heard.append)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGUSR1, handler)
    signal.siginterrupt(signal.SIGTERM, False)
    with (tmp_path / "traces").open("w") as traces:
        faulthandler.register(signal.SIGUSR2, file=traces, all_threads=False)
        set_before = actions(libc)
        monitor = wrap(Own(), also=[JsonlTracker(tmp_path)]).diag
        for step, batch in enumerate(BATCHES):
            monitor.observe(**batch)
            monitor.log({"loss": 1.0}, step)
        os.kill(os.getpid(), signal.SIGUSR1)
        monitor.close()
        assert heard == [signal.SIGUSR1]
        assert actions(libc) == set_before
        os.kill(os.getpid(), signal.SIGUSR2)
        faulthandler.unregister(signal.SIGUSR2)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert "test_handlers_that_a_c_library_has_set_stay" in (tmp_path / "traces").read_text()


@pytest.mark.nightly
def test_a_fork_next_to_a_thread_that_logs_does_not_wait(tmp_path):
    own = Own()
    run = wrap(own, also=[JsonlTracker(tmp_path)])
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
    with pytest.raises(Of), health.guard("internal_errors"):
        signal.raise_signal(signal.SIGUSR1)


def test_secrets_of_the_environment_are_not_reported(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "a key/with+signs")
    monkeypatch.setenv("TRACKER_DIAG_NOTIFY", "slack://first-of-two mail://second-of-two")
    monkeypatch.setenv("TOKENIZER_PATH", "/models/tokenizer")
    messages = without_secrets(
        "no answer from slack://first-of-two, mail://second-of-two; http://me:word@host/?X-Amz-Signature=abc&y=1 of "
        "/models/tokenizer"
    )
    assert messages == "no answer from ***, ***; http://***@host/?X-Amz-Signature=***&y=1 of /models/tokenizer"
