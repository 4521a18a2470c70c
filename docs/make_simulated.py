"""Runs the whole catalogue on simulated runs and writes simulated.json: part of `make evidence`.

About twenty minutes on two cores; it continues where it was stopped, as long as no rule, no detector and no simulation
was changed. The runs are those of tests/rules/simulated.py and failures.py. The rules were tuned on seeds below 10,000,
which are not reported. If you change a rule after a report, raise `FIRST_SEED`.
"""

import hashlib
import json
import os
import runpy
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

DOCS = Path(__file__).parent
SIMULATION = DOCS.parent / "tests" / "rules" / "failures.py"
DONE = DOCS.parent / "build" / "simulated"
"""Folder of the runs that are done, a file for each state of the code that they rest on."""
RESTS_ON = ("tracker_diag/rules", "tracker_diag/detect", "tracker_diag/metrics", "tests/rules")
FIRST_SEED, HEALTHY, FAILED = 170_000, 1000, 100
CHUNK = 20
Outcome = dict[str, Any]


@cache
def simulation() -> Any:
    """What tests/rules/failures.py defines; loaded once a process."""
    return SimpleNamespace(**runpy.run_path(str(SIMULATION)))


def healthy(algorithm: str, seed: int) -> Outcome:
    """The rules that fired on one healthy run, at warn and above."""
    simulated = simulation().simulated
    run = simulated.healthy(algorithm, np.random.default_rng([seed, *algorithm.encode()]))
    fired, _ = simulated.diagnose(run)
    severities = {finding.rule.id: finding.severity for finding in fired if finding.severity != "info"}
    return {"algorithm": algorithm, "seed": seed, "rows": len(run), "every": int(run.steps[1]), "found": severities}


def failed(name: str, seed: int) -> Outcome:
    """The rules that fired on one run of failure `name`, the first break, and the rows until it was named.

    `harmless` are those that fired and say themselves that no harm is seen, so that they are notes.
    """
    tests = simulation()
    run, onset = tests.failed(name, seed)
    fired, first = tests.simulated.diagnose(run)
    named = [finding.fired - onset for finding in fired if finding.rule.id in tests.FAILURES[name].named]
    return {
        "name": name,
        "seed": seed,
        "found": sorted(tests.simulated.loud(fired)),
        "harmless": sorted({finding.rule.id for finding in fired if finding.spared}),
        "first": first.rule.id if first else None,
        "delay": min(named, default=None),
    }


def of_algorithm(algorithm: str, runs: list[Outcome]) -> Outcome:
    """Healthy runs of one algorithm, added up, with each that was not quiet."""
    mine = [run for run in runs if run["algorithm"] == algorithm]
    return {
        "algorithm": algorithm,
        "runs": len(mine),
        "short": sum(run["rows"] < 150 for run in mine),
        "every_ten": sum(run["every"] == 10 for run in mine),
        "warned": sum(bool(run["found"]) for run in mine),
        "errors": sum("error" in run["found"].values() for run in mine),
        "alarms": [{"seed": run["seed"], "found": sorted(run["found"])} for run in mine if run["found"]],
    }


def of_failure(name: str, runs: list[Outcome]) -> Outcome:
    """Runs of one failure, added up, with each that was not named, or whose first break is another."""
    failure = simulation().FAILURES[name]
    mine = [run for run in runs if run["name"] == name]
    loud = [run for run in mine if failure.named & {*run["found"]}]
    noted = [run for run in mine if run not in loud and failure.named & {*run["harmless"]}]
    named = [*loud, *noted]
    # Of a failure that does no harm there is no first break, and there must be no other.
    first = [run for run in mine if run["first"] in failure.first or (run in noted and run["first"] is None)]
    return {
        "name": name,
        "link": failure.link,
        "runs": len(mine),
        "named": len(named),
        "noted": len(noted),
        "first": len(first),
        "delay": median(run["delay"] for run in named) if named else None,
        "names": sorted(failure.named),
        "first_names": sorted(failure.first),
        "misses": [
            {"seed": run["seed"], "found": run["found"], "first": run["first"]}
            for run in mine
            if run not in named or run not in first
        ],
    }


def main() -> None:
    """Run everything, write simulated.json, and the page from all results."""
    tests = simulation()
    sane = [(algorithm, seed) for algorithm in tests.simulated.ALGORITHMS for seed in _seeds(HEALTHY)]
    ill = [(name, seed) for name in tests.FAILURES for seed in _seeds(FAILED)]
    DONE.mkdir(parents=True, exist_ok=True)
    file = DONE / f"{FIRST_SEED}-{digest()}.jsonl"
    with ProcessPoolExecutor(2, initializer=os.nice, initargs=(10,)) as pool:
        quiet = all_of(healthy, sane, file, pool)
        loud = all_of(failed, ill, file, pool)
    results = {
        "first_seed": FIRST_SEED,
        "healthy": [of_algorithm(algorithm, quiet) for algorithm in tests.simulated.ALGORITHMS],
        "failures": [of_failure(name, loud) for name in tests.FAILURES],
    }
    write(results)


def digest() -> str:
    """Of all that the outcomes rest on."""
    files = sorted(
        file for folder in RESTS_ON for end in ("*.py", "*.yaml") for file in (DOCS.parent / folder).rglob(end)
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def all_of(
    make: Callable[[str, int], Outcome], runs: Sequence[tuple[str, int]], file: Path, pool: ProcessPoolExecutor
) -> list[Outcome]:
    """The outcomes of `runs`, those that stand in `file` from there; the others are added to it as they come."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kind, done = make.__name__, dict[tuple[str, int], Outcome]()
    for made, name, seed, outcome in map(json.loads, filter(_whole, lines)):
        if made == kind:
            done[name, seed] = outcome
    todo = [run for run in runs if run not in done]
    coming = pool.map(make, *zip(*todo, strict=True), chunksize=CHUNK) if todo else ()
    with file.open("a", encoding="utf-8") as out:
        for run, outcome in zip(todo, coming, strict=True):
            done[run] = outcome
            out.write(json.dumps([kind, *run, outcome]) + "\n")
            out.flush()
    return [done[run] for run in runs]


def _whole(line: str) -> bool:
    """Whether a line was written to its end."""
    return line.endswith("]") and line.count("[") == line.count("]")


def _seeds(count: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + count)


def write(results: Outcome) -> None:
    """simulated.json, one line a row of the tables, and the page."""
    lines = [f'"first_seed": {results["first_seed"]}']
    for part in ("healthy", "failures"):
        rows = ",\n".join(json.dumps(row) for row in results[part])
        lines.append(f'"{part}": [\n{rows}\n]')
    (DOCS / "simulated.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    runpy.run_path(str(DOCS / "make_evidence.py"))["write_page"]()


if __name__ == "__main__":
    main()
