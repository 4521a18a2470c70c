"""Runs the whole catalogue on simulated runs and writes simulated.json: part of `make evidence`.

About twenty minutes on two cores. The runs are those of tests/rules/simulated.py and failures.py. The rules were
tuned on seeds below 10,000, which are not reported; whoever mends a rule after a report moves `FIRST_SEED` on.
"""

import json
import os
import runpy
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

DOCS = Path(__file__).parent
SIMULATION = DOCS.parent / "tests" / "rules" / "failures.py"
FIRST_SEED, HEALTHY, FAILED = 50_000, 1000, 100
Outcome = dict[str, Any]


@cache
def simulation() -> Any:
    """What tests/rules/failures.py defines; loaded once a process."""
    return SimpleNamespace(**runpy.run_path(str(SIMULATION)))


def healthy(algorithm: str, seed: int) -> Outcome:
    """The rules that fired on one healthy run, at warn and above."""
    of = simulation().simulated
    run = of.healthy(algorithm, np.random.default_rng([seed, *algorithm.encode()]))
    fired, _ = of.diagnose(run)
    found = {finding.rule.id: finding.rule.severity for finding in fired if finding.rule.severity != "info"}
    return {"algorithm": algorithm, "seed": seed, "rows": len(run), "every": int(run.steps[1]), "found": found}


def failed(name: str, seed: int) -> Outcome:
    """The rules that fired on one run of failure `name`, the first break, and the rows until it was named."""
    of = simulation()
    run, onset = of.failed(name, seed)
    fired, first = of.simulated.diagnose(run)
    named = [finding.fired - onset for finding in fired if finding.rule.id in of.FAILURES[name].named]
    return {
        "name": name,
        "seed": seed,
        "found": sorted(of.simulated.loud(fired)),
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
    named = [run for run in mine if failure.named & {*run["found"]}]
    first = [run for run in mine if run["first"] in failure.first]
    return {
        "name": name,
        "link": failure.link,
        "runs": len(mine),
        "named": len(named),
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
    of = simulation()
    sane = [(algorithm, seed) for algorithm in of.simulated.ALGORITHMS for seed in _seeds(HEALTHY)]
    ill = [(name, seed) for name in of.FAILURES for seed in _seeds(FAILED)]
    with ProcessPoolExecutor(2, initializer=os.nice, initargs=(10,)) as pool:
        quiet = list(pool.map(healthy, *zip(*sane, strict=True), chunksize=20))
        loud = list(pool.map(failed, *zip(*ill, strict=True), chunksize=20))
    results = {
        "first_seed": FIRST_SEED,
        "healthy": [of_algorithm(algorithm, quiet) for algorithm in of.simulated.ALGORITHMS],
        "failures": [of_failure(name, loud) for name in of.FAILURES],
    }
    write(results)


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
