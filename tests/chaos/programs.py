"""Random programs: what a training script may do with its tracker and with ours, and what may befall it meanwhile."""

import math
import random
from dataclasses import dataclass, field
from typing import Any

TRACKERS = ("mlflow", "wandb", "tensorboard", "trackio")

ANSWERS = ("500", "503", "400", "401", "403", "404", "ingress", "lost", "cut", "late", "garbage")
"""What a server may do to requests of ours; `ingress` is a page of HTML under 404, `garbage` one under 200."""

KEYS = ("loss", "reward", "train/kl", "eval_score", "train/global_step")


@dataclass(frozen=True)
class Program:
    """What a process does, in order: a name of `play.Player` and its arguments each."""

    seed: int
    tracker: str
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    faults: tuple[str, ...]
    """The kinds of fault in it."""
    answers: tuple[str, ...] = field(default=())
    """What MLflow's server does to the first requests of ours, one after the other; then it is well."""
    stays_ill: bool = False
    """It continues with the last of these until the process has ended."""


def draw(seed: int, tracker: str) -> Program:
    """The program number `seed` for `tracker`."""
    rng = random.Random(f"{tracker} {seed}")
    steps = rng.choice(("rising", "rising", "none", "sparse", "any"))
    ours = rng.choice((0.0, 0.0, 0.15, 0.4))  # steps of which the user logs nothing
    calls: list[tuple[str, tuple[Any, ...]]] = []
    step = rng.choice((0, 0, 1, 100))
    for _ in range(rng.randint(3, 18)):
        if rng.random() < 0.8:
            calls.append(("observe", (rng.randrange(1 << 30),)))
        step += {"rising": 1, "none": 0, "sparse": rng.randint(0, 20), "any": rng.randint(-3, 5)}[steps]
        given = None if steps == "none" else step
        what = rng.random()
        if what >= 1 - ours:
            calls.append(("ours", ({"loss": rng.random()}, step)))
        elif what < 0.8 * (1 - ours):
            calls.append(("row", (rng.randrange(4), _data(rng), given, rng.choice((None, None, None, True, False)))))
        else:
            calls.append(("other", (rng.randrange(8), rng.randrange(100))))
    faults, answers, stays = _befall(rng, tracker, calls)
    return Program(seed, tracker, tuple(calls), faults, answers, stays)


def _data(rng: random.Random) -> dict[str, Any]:
    values = (rng.uniform(-5, 5), float(rng.randrange(9)), math.nan, math.inf, -math.inf, 1e-300, 1e30)
    return {
        key: rng.choice(values[:2] if rng.random() < 0.8 else values) for key in rng.sample(KEYS, rng.randint(1, 3))
    }


def _befall(
    rng: random.Random, tracker: str, calls: list[tuple[str, tuple[Any, ...]]]
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Put faults into `calls`; their kinds, what the server answers, and whether it stays so."""
    kinds = ["fork", "interrupt", "clock", "alarm", "thread", "rebaseline", "kill", "exit"]
    kinds += ["disk"] if tracker in ("mlflow", "wandb") else []
    kinds += ["server"] * 4 if tracker == "mlflow" else []
    faults = sorted({rng.choice(kinds) for _ in range(rng.choice((0, 1, 1, 2)))})
    answers: tuple[str, ...] = ()
    stays = False
    for kind in faults:
        if kind == "server":
            stays = rng.random() < 0.15
            answers = tuple(rng.choice(ANSWERS) for _ in range(rng.randint(1, 4)) for _ in range(rng.randint(1, 3)))
            continue
        given = {
            "interrupt": (rng.uniform(0, 0.004), rng.randrange(1 << 30)),
            "clock": (rng.choice((-86400.0, -5.0, 5.0, 86400.0)),),
            "thread": (rng.randrange(1 << 30),),
            "disk": (rng.randrange(20_000),),
        }.get(kind, ())
        calls.insert(rng.randint(0, len(calls)), (kind, given))
    return tuple(faults), answers, stays
