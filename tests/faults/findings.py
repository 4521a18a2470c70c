"""Write what the rules find on every planted and simulated run, to compare two checkouts.

    python tests/faults/findings.py OUT.jsonl [--every N] [--simulated N]
    python tests/faults/findings.py --compare BEFORE.jsonl AFTER.jsonl

One line a run: its findings in full, the incidents, and the rules that are blind or healthy. Of the untouched half only
fingerprints are written. Runs that only one of two files has are counted, and not compared.
"""

import argparse
import hashlib
import json
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from dataset import Run, read_runs

import tracker_diag as td

HERE = Path(__file__).parent
FIRST_SEED = 700_000
KEPT = ("rule", "pair", "slice", "severity", "state", "onset", "fired", "resolved", "inhibited_by")


@cache
def failures() -> Any:
    return SimpleNamespace(**runpy.run_path(str(HERE.parent / "rules" / "failures.py")))


def planted(run: Run) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.jsonl"
        file.write_text("\n".join(json.dumps(row) for row in run.rows()) + "\n", encoding="utf-8")
        result = td.diagnose(str(file)).to_json()
    line = {
        "findings": [{key: item[key] for key in KEPT} for item in result["findings"] if item["fired"] is not None],
        "incidents": [
            {key: item[key] for key in ("id", "severity", "onset", "state")} | {"cause": item["cause"]["rule"]}
            for item in result["incidents"]
        ],
        "blind": sorted(item["rule"] for item in result["blind"]),
        "healthy": sorted(result["healthy"]),
    }
    if run.half == "untouched":
        line = {key: sealed(value) for key, value in line.items()}
    return {"run": run.name, "half": run.half, **line}


def sealed(value: object) -> str:
    """A fingerprint by which it can be compared without being read."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def simulated(case: tuple[str, str, int]) -> dict[str, Any]:
    kind, name, seed = case
    part = failures()
    if kind == "healthy":
        run = part.simulated.healthy(name, np.random.default_rng([seed, *name.encode()]))
    else:
        run, _ = part.failed(name, seed)
    fired, first = part.simulated.diagnose(run)
    result = [
        {"rule": getattr(item.rule, "id", item.rule), "severity": item.severity, "state": item.state,
         "onset": item.onset, "fired": item.fired, "resolved": item.resolved}
        for item in fired
    ]  # fmt: skip
    return {
        "run": f"simulated {kind} {name} {seed}",
        "findings": result,
        "first": first and getattr(first.rule, "id", first.rule),
    }


def cases(number: int) -> Iterator[tuple[str, str, int]]:
    part = failures()
    for seed in range(FIRST_SEED, FIRST_SEED + number):
        yield from (("healthy", name, seed) for name in part.simulated.ALGORITHMS)
        yield from (("failed", name, seed) for name in part.FAILURES)


def lines(file: str) -> dict[str, dict[str, Any]]:
    return {item["run"]: item for item in map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())}


def compare(before: str, after: str) -> int:
    """Print each difference; the number of runs that differ."""
    was, now = lines(before), lines(after)
    common = was.keys() & now.keys()
    differing: Counter[str] = Counter()
    for name in sorted(common):
        for key in was[name].keys() | now[name].keys():
            old, new = was[name].get(key), now[name].get(key)
            if old == new:
                continue
            differing[key] += 1
            print(f"{name}: {key}")
            if isinstance(old, list) and isinstance(new, list):
                print(*(f"  - {value}" for value in old if value not in new), sep="\n")
                print(*(f"  + {value}" for value in new if value not in old), sep="\n")
            else:
                print(f"  - {old}\n  + {new}")
    print(f"{len(common)} runs compared, {len(was.keys() ^ now.keys())} only in one; differing: {dict(differing)}")
    return differing.total()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?")
    parser.add_argument("--every", type=int, default=1, help="only every so many planted runs")
    parser.add_argument("--simulated", type=int, default=6, help="seeds of each simulated kind")
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    args = parser.parse_args()
    if args.compare:
        sys.exit(1 if compare(*args.compare) else 0)
    with ProcessPoolExecutor() as pool, Path(args.out).open("w", encoding="utf-8") as out:
        for judge, runs in ((planted, list(read_runs())[:: args.every]), (simulated, list(cases(args.simulated)))):
            out.writelines(json.dumps(line) + "\n" for line in pool.map(judge, runs, chunksize=4))


if __name__ == "__main__":
    main()
