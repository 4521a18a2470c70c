"""Ways in which a process ends: `python scenes.py FOLDER` plays each in forks, with the diagnostics and without.

Prints JSON: of each scene the two exit statuses as `os.waitpid` gives them, and what was printed.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import tracker_diag as td

AT_ONCE = 4
SCENES = {}
say = print


def scene(play):
    SCENES[play.__name__] = play
    return play


class Logger:
    def log(self, data, step=None):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Bare(Logger):
    """A run without the diagnostics."""

    diag = MagicMock()


def train(run, steps=3, **metrics):
    for step in range(steps):
        run.log({"reward": 0.5} | metrics, step=step)


def end_by(number):
    os.kill(os.getpid(), number)
    time.sleep(120)


@scene
def closed(begin):
    run = begin()
    train(run)
    run.diag.close()


@scene
def not_closed(begin):
    train(begin())


@scene
def exception(begin):
    train(begin())
    raise ValueError("cannot go on")


@scene
def exception_out_of_the_block(begin):
    try:
        with begin() as run:
            train(run)
            raise RuntimeError("out of memory")  # noqa: TRY301
    except RuntimeError:
        say("another run follows")


@scene
def exception_that_was_handled(begin):
    run = begin()
    try:
        raise KeyError("no such batch")  # noqa: TRY301
    except KeyError:
        train(run)
    run.diag.close()


@scene
def exit_code(begin):
    with begin() as run:
        train(run)
        sys.exit(3)


@scene
def own_excepthook(begin):
    def hook(kind, error, at):
        say("mine:", kind.__name__, error)

    sys.excepthook = hook
    train(begin())
    say(sys.excepthook is hook)
    raise ValueError("told by a hook")


@scene
def ctrl_c(begin):
    train(begin())
    end_by(signal.SIGINT)


@scene
def terminated(begin):
    train(begin())
    end_by(signal.SIGTERM)


@scene
def terminated_twice(begin):
    train(begin())
    os.kill(os.getpid(), signal.SIGTERM)
    end_by(signal.SIGTERM)


@scene
def terminated_while_the_main_thread_never_comes_back(begin):
    train(begin())
    lock = ctypes.create_string_buffer(256)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)


@scene
def terminated_while_the_diagnostics_are_at_work(begin):
    os.environ["TRACKER_DIAG_EXIT_TIMEOUT"] = "6"
    run = begin()
    train(run)

    def work():
        with run.diag.guard("internal_errors"):
            time.sleep(120)

    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
    end_by(signal.SIGTERM)


@scene
def terminated_and_the_program_ends_by_itself(begin):
    train(begin())
    os.kill(os.getpid(), signal.SIGTERM)


@scene
def own_handler_before(begin):
    def handler(number, frame):
        say("mine:", number)
        sys.exit(7)

    signal.signal(signal.SIGTERM, handler)
    train(begin())
    say(signal.getsignal(signal.SIGTERM) is handler)
    end_by(signal.SIGTERM)


@scene
def own_handler_after_that_hands_on(begin):
    train(begin())
    before = signal.getsignal(signal.SIGTERM)

    def handler(number, frame):
        say("mine:", number)
        if before not in (None, signal.SIG_DFL):
            say("there was another")
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, handler)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)
    say("goes on")
    sys.exit(5)


@scene
def ignored(begin):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    train(begin())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    say(signal.getsignal(signal.SIGTERM))


@scene
def event_loop(begin):
    async def serve():
        train(begin())
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(done.wait(), 30)
        say("heard")

    asyncio.run(serve())


@scene
def fork_is_terminated(begin):
    run = begin()
    train(run)
    child = os.fork()
    if child == 0:
        lock = ctypes.create_string_buffer(256)
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_lock(lock)
        libc.pthread_mutex_lock(lock)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    say(os.waitpid(child, 0)[1])
    run.diag.close()


@scene
def fork_raises(begin):
    run = begin()
    train(run)
    child = os.fork()
    if child == 0:
        raise ValueError("of a fork")
    say(os.waitpid(child, 0)[1])
    run.diag.close()


@scene
def closed_and_then_terminated(begin):
    run = begin()
    train(run)
    run.diag.close()
    end_by(signal.SIGTERM)


@scene
def thread_that_trains_raises(begin):
    threading.excepthook = lambda given: say("mine:", given.exc_value)
    hook = threading.excepthook
    run = begin()

    def work():
        train(run)
        raise ValueError("in a thread")

    thread = threading.Thread(target=work, name="trainer")
    thread.start()
    thread.join()
    run.diag.close()
    say(threading.excepthook is hook)


@scene
def thread_beside_raises(begin):
    threading.excepthook = lambda given: say("mine:", given.exc_value)
    run = begin()
    train(run, 2)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    train(run, 5)
    run.diag.close()


@scene
def loss_is_nan(begin):
    run = begin()
    train(run, 2)
    run.log({"loss": float("nan")}, step=2)
    run.diag.close()


def play(name: str, folder: Path, *, watched: bool) -> int:
    """Begin a scene in a fork; its number."""
    pid = os.fork()
    if pid:
        return pid
    place = folder / name / ("with" if watched else "without")
    place.mkdir(parents=True)
    os.environ["TRACKER_DIAG_DIR"] = str(place)
    for number, file in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / file, os.O_CREAT | os.O_WRONLY), number)
    SCENES[name](lambda: td.wrap(Logger()) if watched else Bare())
    sys.exit(0)


def main(folder: Path) -> None:
    os.environ["TRACKER_DIAG_EXIT_TIMEOUT"] = "60"  # a busy machine is given the time that it needs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and inherit that
    waiting = [(name, watched) for name in SCENES for watched in (True, False)]
    begun: dict[int, tuple[str, bool]] = {}
    found: dict[str, dict[str, int]] = {}
    while begun or waiting:
        while waiting and len(begun) < AT_ONCE:
            name, watched = waiting.pop()
            begun[play(name, folder, watched=watched)] = name, watched
        pid, status = os.wait()
        name, watched = begun.pop(pid)
        found.setdefault(name, {})["with" if watched else "without"] = status
    say(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
