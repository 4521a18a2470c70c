"""What guards do to training: `make guards-study` writes docs/guards.json, and its part of docs/guards-study.md.

Runs that build/guards.jsonl has are not made again. On one core the rest takes half an hour. None is picked.
"""

import argparse
import json
import math
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from types import SimpleNamespace
from typing import Any

DOCS = Path(__file__).parent
BEGIN, END = "<!-- made by make guards-study -->", "<!-- end of what it made -->"
SEEDS = range(8)
STUDENT = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""By how many values a mean is of: the 97.5 % quantile of Student's t, with one degree of freedom less."""

CONTROL, NARROW = "collapse", "collapse, constrained tool"
WITH_KL, REFRESHED = "KL in the loss", "KL in the loss, refreshed"
MEASURES = {
    "reward": ("reward", False),
    "text": ("text alone", False),
    "narrow": ("narrow tool", False),
    "wide": ("wide tool", False),
    "logged": ("reward as logged", False),
    "p95": ("tail", True),
    "ess": ("ESS", False),
    "reference p95": ("distance to the reference", True),
    "drift": ("distance to the start", True),
}
"""By figure of a run: its name, and whether it is compared as a ratio."""

OF_TRL = ("reward", "logged", "p95", "ess", "reference p95")
OF_DEMO = ("reward", "text", "narrow", "logged", "p95", "ess", "drift")

Run = dict[str, Any]


def study(kept: Path, only: str) -> list[Run]:
    """All runs; those that `kept` has, a line of JSON each, are not made again, and new ones go there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()
    done: list[Run] = [json.loads(line) for line in kept.read_text().splitlines()]
    there = {(run["case"], run["guard"], run["seed"]): run for run in done}
    runs: list[Run] = []
    with kept.open("a") as out:
        for maker, case, guards in cases():
            for seed in SEEDS if case.startswith(only) else ():
                missing = [guard for guard in guards if (case, guard, seed) not in there]
                for guard, figures in maker.runs(case, missing, seed) if missing else ():
                    there[case, guard, seed] = {"case": case, "guard": guard, "seed": seed, **figures}
                    print(json.dumps(there[case, guard, seed]), file=out, flush=True)
                runs += [there[case, guard, seed] for guard in guards]
    return runs


def cases() -> Iterator[tuple[Any, str, tuple[str, ...]]]:
    """Who makes its runs, name and guards of each case."""
    demo, trl = (SimpleNamespace(**runpy.run_path(str(DOCS / f"guards_{agent}.py"))) for agent in ("demo", "trl"))
    for name, case in demo.CASES.items():
        yield demo, name, tuple(case.guards)
    for name, (_, guards) in trl.CASES.items():
        yield trl, name, guards


def part(runs: Sequence[Run]) -> str:
    """The tables of docs/guards-study.md."""
    demo, trl, healthy = _of(runs, CONTROL), _of(runs, "TRL, learning rate"), _of(runs, "TRL, healthy")
    narrow = _of(runs, NARROW, "no guard, and a tool whose output stays narrow")
    refreshed = _of(runs, REFRESHED, "no guard, and a new reference every 20 steps")
    acted = sum(bool(run["acted"]) for run in healthy)
    return "\n".join(
        [
            BEGIN,
            "",
            "The demo's agent:",
            "",
            *_table(demo + narrow, OF_DEMO),
            "",
            "The demo's agent, with a KL to a reference in its loss:",
            "",
            *_table(_of(runs, WITH_KL) + refreshed, (*OF_DEMO, "reference p95")),
            "",
            "GRPO of TRL:",
            "",
            *_table(trl, OF_TRL),
            "",
            "The same with a launcher, which divides the learning rate by ten:",
            "",
            *_table(_of(runs, "TRL, with a launcher"), OF_TRL),
            "",
            f"In {len(healthy)} healthy runs of TRL with all these guards at once, guards acted in {acted or 'none'}.",
            "",
            END,
        ]
    )


def _of(runs: Sequence[Run], case: str, name: str = "") -> list[Run]:
    """The runs of one case; as those of a guard called `name`, if one is given."""
    return [run | {"guard": name or run["guard"]} for run in runs if run["case"] == case]


def _table(runs: Sequence[Run], measures: Sequence[str]) -> list[str]:
    by_guard: dict[str, list[Run]] = {}
    for run in runs:
        by_guard.setdefault(run["guard"], []).append(run)
    none = by_guard.pop("none")
    levels = [_level([run[name] for run in none]) for name in measures]
    lines = [
        "| | seeds | acted | " + " | ".join(MEASURES[name][0] for name in measures) + " |",
        "|---|" + "---|" * (len(measures) + 2),
        f"| *no guard* | {len(none)} | | {' | '.join(levels)} |",
    ]
    for guard, mine in by_guard.items():
        cells = [compared(none, mine, name) for name in measures]
        lines.append(f"| {guard} | {len(mine)} | {_acted(mine)} | {' | '.join(cells)} |")
    return lines


def _acted(runs: Sequence[Run]) -> str:
    first = [min(step for step, _ in run["acted"]) for run in runs if run["acted"]]
    return f"{len(first)} of {len(runs)}, first at step {median(first):g}" if first else "–"


def _level(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3g} ({min(known):.3g} to {max(known):.3g})"


def compared(none: Sequence[Run], mine: Sequence[Run], name: str) -> str:
    """Mean of the differences between runs of one seed, or of ratios, with its 95 % interval; bold if that is clear."""
    as_ratio = MEASURES[name][1]
    without = {run["seed"]: run[name] for run in none}
    pairs = [(without[run["seed"]], run[name]) for run in mine]
    if any(None in pair for pair in pairs):
        return "no signal"
    low, middle, high = interval([math.log(b / a) if as_ratio else b - a for a, b in pairs])
    figures = [f"{math.exp(change):.2g}" if as_ratio else f"{change:+.2f}" for change in (middle, low, high)]
    text = f"{'×' if as_ratio else ''}{figures[0]} ({figures[1]} to {figures[2]})"
    return f"**{text}**" if low > 0 or high < 0 else text


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The 95 % interval of the mean of `differences` by Student's t, with the mean in its middle."""
    n = len(differences)
    middle, half = fmean(differences), STUDENT[n] * stdev(differences) / math.sqrt(n)
    return middle - half, middle, middle + half


def page() -> str:
    """docs/guards-study.md, with the tables of docs/guards.json."""
    text = (DOCS / "guards-study.md").read_text()
    return text.split(BEGIN)[0] + part(json.loads((DOCS / "guards.json").read_text())) + text.split(END)[1]


PAGES = {"guards-study.md": page}


def main() -> None:
    """Make the runs that are missing, and write what came of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept", type=Path, default=DOCS.parent / "build" / "guards.jsonl", help="the runs so far")
    parser.add_argument("--only", default="", help="the cases whose names begin so; nothing is written then")
    arguments = parser.parse_args()
    runs = study(arguments.kept, arguments.only)
    for run in runs:
        print(f"{run['case']}, {run['guard']}, seed {run['seed']}: reward {run['reward']}")
    if not arguments.only:
        lines = ",\n".join(json.dumps(run) for run in runs)
        (DOCS / "guards.json").write_text(f"[\n{lines}\n]\n")
        (DOCS / "guards-study.md").write_text(page())


if __name__ == "__main__":
    main()
