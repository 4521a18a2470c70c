"""Trainings of the agent at the desk whose steps are long, by the clock: a tool that lets it wait, and two sound twins.

    python tests/samples/waiting.py slow tests/samples/waiting/slow.jsonl

takes a quarter of an hour, most of which it waits. In `slow` the tools stand, from step 10 on, behind a process that
answers at most fifty times a second; in `quick` behind the same process without a limit. In `busy` there is no such
process, and the batch is so large that a step takes as long. waiting/schema.json says what is measured, and how. Needs
Linux.
"""

import json
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

desk = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("desk_training.py"))))


@dataclass(frozen=True)
class Run:
    """One training."""

    groups: int
    """Of 8 episodes each, in a batch."""
    steps: int
    pause: float | None
    """Seconds that the process of the tools needs for a call; None where there is no such process."""


RUNS = {"slow": Run(64, 64, 0.02), "quick": Run(64, 64, 0.0), "busy": Run(4800, 52, None)}
LOGGED = ("loss", "grad_norm", "approx_kl", "entropy", "episode_length")


class Tools:
    """A process that answers each call, one after the other; and how long was waited for it."""

    def __init__(self, pause: float) -> None:
        command = [sys.executable, __file__, "serve", str(pause)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.waited = 0.0

    def ask(self, key: int) -> None:
        """Call, and wait for the answer."""
        began = time.perf_counter()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{key}\n")
        if not self._process.stdout.readline():
            raise RuntimeError("the process of the tools has ended")
        self.waited += time.perf_counter() - began

    def close(self) -> None:
        self._process.communicate()


class Clock:
    """Seconds since it was made, and which share of them the processor worked for this process.

    Seconds in which it stood in line for a processor that worked for others count as neither: a busy machine does not
    look idle.
    """

    def __init__(self) -> None:
        self._began, self._stood = time.perf_counter(), scheduled()

    def read(self) -> tuple[float, float]:
        seconds = time.perf_counter() - self._began
        worked, in_line = (now - before for now, before in zip(scheduled(), self._stood, strict=True))
        return seconds, worked / (worked + max(0.0, seconds - worked - in_line))


def scheduled() -> tuple[float, float]:
    """Seconds in which this thread had a processor, and in which it stood in line for one; as Linux counts them."""
    worked, in_line, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(worked) / 1e9, int(in_line) / 1e9


def serve(pause: float) -> None:
    """Answer each line after a pause."""
    for line in sys.stdin:
        time.sleep(pause)
        sys.stdout.write(line)
        sys.stdout.flush()


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """What is logged at each step."""
    tools = None if run.pause is None else Tools(run.pause)
    world = desk.World() if tools is None else replace(desk.World(), onset=10, asks=tools.ask)
    training = desk.train(desk.Training(desk.warm_policy(), evaluated=False, groups=run.groups), world)
    for step in range(run.steps):
        clock, waited = Clock(), 0.0 if tools is None else tools.waited
        done = next(training)
        seconds, utilisation = clock.read()
        samples, n = done.samples, len(done.samples["calls"])
        measured = {
            "reward": float(samples["reward"].mean()), "success_rate": sum(samples["success"]) / n,
            **{name: done.metrics[name] for name in LOGGED}, "tool_calls": sum(map(len, samples["calls"])) / n,
            "tool_wait_seconds": 0.0 if tools is None else tools.waited - waited,
            "step_seconds": seconds, "utilisation": utilisation,
        }  # fmt: skip
        yield {"step": step, **{name: float(f"{value:.4g}") for name, value in measured.items()}}
    if tools is not None:
        tools.close()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(float(sys.argv[2]))
    else:
        with Path(sys.argv[2]).open("w", encoding="utf-8") as file:
            for row in rows(RUNS[sys.argv[1]]):
                file.write(json.dumps(row) + "\n")
                file.flush()
