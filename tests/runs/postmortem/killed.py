"""Ends training processes at random moments and reads what they leave: `python tests/postmortem/killed.py --runs 50`.

Each run is a fork of this process, so that it has to import nothing; it wraps a logger of its own and trains until
SIGTERM comes, or until it raises. Prints one JSON object: how many of each kind were readable, and the longest end.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import jinja2  # noqa: F401  # as a process that trains has it loaded or not, the time to load it is the machine's
import numpy as np

import tracker_diag as td

STEPS = 100_000
LATEST = 0.4
"""Seconds after its first step in which a run is ended."""
SECRET = "hf_thisIsNotForAnyone"  # noqa: S105


class Logger:
    def log(self, data, step=None):
        pass


def small_batch(rng):
    mask = np.ones((16, 16), bool)
    mask[:8, 6:9] = False
    old = rng.uniform(-3, -0.1, mask.shape)
    new = old + 0.02 * rng.normal(size=mask.shape)
    return {"logprobs": new, "old_logprobs": old, "response_mask": np.ones_like(mask), "model_mask": mask}


def train(ready: int, raises_after: float | None) -> None:
    rng, begun = np.random.default_rng(0), time.monotonic()
    run = td.wrap(Logger(), config={"seed": 0, "hub.token": SECRET})
    for step in range(STEPS):
        run.diag.observe(**small_batch(rng))
        run.log({"reward": 0.5}, step=step)
        if step == 0:
            os.write(ready, b"1")
            begun = time.monotonic()
        if raises_after is not None and time.monotonic() - begun > raises_after:
            raise ValueError(f"cannot go on with {SECRET}")


def readable(folder: Path, what: str) -> str:
    """What is wrong with the postmortem in `folder`; empty if nothing is."""
    places = [*folder.glob("postmortem/*")]
    if len(places) != 1 or places[0].name.startswith("."):
        return f"{len(places)} folders: {places}"
    files = {file.name: file.read_text() for file in places[0].iterdir()}
    said = json.loads(files["postmortem.json"])
    for text in files.values():
        if SECRET in text:
            return "a secret"
    if not said["ended"][0]["what"].startswith(what) or what not in files["README.md"]:
        return f"ended: {said['ended']}"
    if not said["diagnosis"] or said["diagnosis"]["run"]["steps"] < 1:
        return f"no diagnosis, {said['failures']}"
    if said["context"]["seed"] != {"seed": 0} or "</html>" not in files["report.html"]:
        return "no context or report"
    return "" if "train" in files["traceback.txt"] else f"no traceback but {files['traceback.txt'][-500:]!r}"


def end_one(kind: str, rng: random.Random, folder: Path) -> tuple[str, float]:
    """End one run; what is wrong with what it left, and how long its end took in seconds."""
    read, write = os.pipe()
    after = rng.uniform(0, LATEST)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.environ["TRACKER_DIAG_DIR"] = str(folder)
        os.dup2(os.open(folder.with_suffix(".err"), os.O_CREAT | os.O_WRONLY), 2)
        train(write, after if kind == "exception" else None)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    if kind == "signal":
        time.sleep(after)
        os.kill(pid, signal.SIGTERM)
    begun = time.monotonic()
    _, status = os.waitpid(pid, 0)
    took = time.monotonic() - begun
    if kind == "signal":
        as_without = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        wrong = readable(folder, "SIGTERM")
    else:
        as_without = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
        wrong = readable(folder, "ValueError: cannot go on with ***")
    return (wrong if as_without else f"status {status}, {wrong}"), took


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--runs", type=int, default=50, help="of each kind")
    given.add_argument("--seed", type=int, default=0)
    asked = given.parse_args()
    runs, rng, found = asked.runs, random.Random(asked.seed), {}
    with tempfile.TemporaryDirectory() as place:
        for kind in ("signal", "exception"):
            ends = [end_one(kind, rng, Path(place, f"{kind}-{number}")) for number in range(runs)]
            wrong = [said for said, _ in ends if said]
            longest = max(took for _, took in ends) if kind == "signal" else None
            found[kind] = {"runs": runs, "readable": runs - len(wrong), "wrong": wrong, "longest_end": longest}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
