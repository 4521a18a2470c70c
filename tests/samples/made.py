"""Made samples of a small agent, and one fault for each rule that reads them and has no real training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N, GROUP = 64, 8
TOOLS = ("search", "read", "python")
SYLLABLES = ("ta", "ri", "mo", "len", "ka", "su", "pe", "dor", "vi", "nash", "o", "ge", "lu", "xi", "bra", "cho")
DRAWN = np.random.default_rng(0).choice(SYLLABLES, (64, 60, 3))
SAID = [" ".join("".join(word) for word in text) for text in DRAWN]


def text(rng: np.random.Generator, ending: str = "So the value is 4.") -> str:
    return f"{SAID[int(rng.integers(64))]} {ending}"


def call(name: str, i: int, status: str = "ok", seconds: float = 0.5, arguments: object = None) -> dict[str, Any]:
    return {
        "name": name,
        "arguments": {"q": i} if arguments is None else arguments,
        "status": status,
        "seconds": seconds,
    }


def healthy(rng: np.random.Generator) -> dict[str, Any]:
    """A step of a run in which nothing moves: half of the tasks are solved, by three tools that mostly work."""
    success = (rng.random(N) < 0.5).astype(float)
    style = rng.random(N)
    tools, arguments, fails = rng.integers(0, 3, (N, 2)), rng.integers(0, 50, (N, 2)), rng.random((N, 2)) < 0.02
    return {
        "reward": success * 0.8 + 0.1 * style,
        "components": {"format": 0.1 * style, "solved": 0.8 * success},
        "group": [i // GROUP for i in range(N)],
        "advantage": rng.normal(0, 1, N) + success,
        "success": success,
        "verifier": success,
        "judge": 0.5 * success + 0.3 * rng.random(N),
        "length": rng.integers(80, 160, N),
        "truncated": rng.random(N) < 0.02,
        "turns": rng.integers(2, 5, N),
        "logprob": rng.normal(-0.8, 0.05, N),
        "policy_version": [7] * N,
        "text": [text(rng, "The task is complete." if done else "So the value is 4.") for done in success],
        "calls": [[call(TOOLS[tool], int(i), "error" if bad else "ok") for tool, i, bad in zip(*part, strict=True)]
                  for part in zip(tools, arguments, fails, strict=True)],
    }  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a step's columns; `at` runs from 0 to 1 from a third of the run on."""

    rule: str
    plant: Callable[[dict[str, Any], float, np.random.Generator], None]
    slice: str = "all"


def some(rng: np.random.Generator, share: float) -> Any:
    return rng.random(N) < share


def zero(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["reward"] = np.where(some(rng, at), 0.0, c["reward"])


def flat_groups(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    flat = np.repeat(rng.random(N // GROUP) < at, GROUP)
    c["reward"] = np.where(flat, 0.3, c["reward"])


def failing(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    for call in (call for row in c["calls"] for call in row if call["name"] == "search"):
        call["status"] = "error" if rng.random() < 0.6 * at else call["status"]


def neglected(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    for call in (call for row in c["calls"] for call in row if call["name"] == "search"):
        call["name"] = "read" if rng.random() < at else "search"


def malformed(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    for row in c["calls"]:
        row[0]["arguments"] = '{"q": ' if rng.random() < 0.5 * at else row[0]["arguments"]


def given_up(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["calls"] = [[] if rng.random() < at else row for row in c["calls"]]


def repeating(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["text"] = ["go on " * 300 if rng.random() < 0.5 * at else text for text in c["text"]]


def dead_part(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    if at:
        c["components"]["format"] = np.full(N, 0.1)


def dominant(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["components"]["format"] = c["components"]["format"] * (0.2 if at else 5)


def unversioned(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["policy_version"] = [None if rng.random() < 0.3 * at else 7 for _ in range(N)]


def spanning(c: dict[str, Any], at: float, rng: np.random.Generator) -> None:
    c["policy_version"] = [(7 - int(8 * at), 7)] * N


FAULTS = (
    Fault("REW001", zero), Fault("ADV001", flat_groups), Fault("ENV001", failing, "tool:search"),
    Fault("ENV002", neglected, "tool:search"), Fault("ENV003", malformed), Fault("ENV009", given_up),
    Fault("ENV009", neglected, "tool:search"), Fault("REW012", repeating), Fault("REW018", dominant),
    Fault("REW020", dead_part), Fault("FRE003", unversioned), Fault("FRE004", spanning),
)  # fmt: skip
