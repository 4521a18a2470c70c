"""Ways in which a process ends: `python scenes.py FOLDER` plays each in forks, with the diagnostics and without.

Prints JSON: of each scene the two exit statuses as `os.waitpid` gives them.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import tracker_diag as td

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
        self.finish()  # as W&B's run does

    def finish(self):
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
def fork_raises(begin):
    run = begin()
    train(run)
    child = os.fork()
    if child == 0:
        raise ValueError("of a fork")
    say(os.waitpid(child, 0)[1])
    run.diag.close()


@scene
def loss_is_nan(begin):
    run = begin()
    train(run, 2)
    run.log({"loss": float("nan")}, step=2)
    run.diag.close()


def status_of(name: str, folder: Path, *, watched: bool) -> int:
    """Play a scene in a fork; its exit status."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    place = folder / name / ("with" if watched else "without")
    place.mkdir(parents=True)
    os.environ["TRACKER_DIAG_DIR"] = str(place)
    for number, file in ((1, "out"), (2, "err")):
        os.dup2(os.open(place / file, os.O_CREAT | os.O_WRONLY), number)
    SCENES[name](lambda: td.wrap(Logger()) if watched else Bare())
    sys.exit(0)


if __name__ == "__main__":
    os.environ["TRACKER_DIAG_EXIT_TIMEOUT"] = "60"  # a busy machine is given the time that it needs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and inherit that
    folder = Path(sys.argv[1])
    os.environ["TRACKER_DIAG_DIR"] = str(folder / "warm")
    SCENES["loss_is_nan"](lambda: td.wrap(Logger()))  # what a fork needs is imported once
    ways = {"with": True, "without": False}
    say(
        json.dumps(
            {name: {way: status_of(name, folder, watched=watched) for way, watched in ways.items()} for name in SCENES}
        )
    )
