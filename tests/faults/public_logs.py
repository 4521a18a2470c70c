"""Hold `diagnose` against training logs in public repositories that nobody of this project wrote.

    git clone https://github.com/OWNER/NAME CLONES/OWNER+NAME      # each that a list names
    python tests/faults/public_logs.py CLONES

Writes docs/public_logs.json, counts alone; docs/faults.md has them from there. Prints what contradicts itself.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contradictions import of_run
from labels import by_curve

from tracker_diag.errors import SourceError
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.open import read_run

HERE = Path(__file__).parent
LISTS = ("public_logs", "further_logs", "language_model_logs")
KEPT = HERE.parents[1] / "docs" / "public_logs.json"


def listed(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Repository, commit, path and label of each log of a list."""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            repository, commit, path, label = line.split()
            yield repository, commit, path, label


@contextmanager
def log_of(clones: Path, repository: str, commit: str, path: str) -> Iterator[Path]:
    """The log as a file, while the context lasts."""
    clone = clones / repository.replace("/", "+")
    kept = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(path).name
        file.write_bytes(kept.stdout)
        yield file


def judged(file: Path) -> tuple[str, tuple[float, ...]]:
    """The highest severity of an incident in one log, info where there is none; and its rewards.

    A log of which no metric is known is refused, and alarms nobody.
    """
    try:
        result = diagnose(read_run(str(file)))
    except SourceError as error:
        print(f"refused: {error}")
        return "info", ()
    severity = max(
        (incident.severity for incident in result.summary.incidents),
        key=("info", "warn", "error").index,
        default="info",
    )
    return severity, tuple(result.series.get("reward", {}).values())


def counted(clones: Path, name: str) -> dict[str, dict[str, int]]:
    """Logs of one list by label: how many, and of how many an incident is at warn and at error."""
    counts: dict[str, Counter[str]] = {}
    runs: dict[tuple[str, ...], str] = {}
    for repository, commit, path, label in listed(name):
        with log_of(clones, repository, commit, path) as file:
            severity, rewards = judged(file)
            print(*of_run(f"{repository} {path}", read_run(str(file)).rows), sep="\n")
        # The first list was labelled by those who made it.
        if name != "public_logs" and (curve := by_curve(rewards)) != label:
            print(f"{repository} {path}: {curve}, listed as {label}")
        same = runs.setdefault(tuple(f"{reward:.4g}" for reward in rewards), path)
        if rewards and same != path:
            print(f"{repository} {path}: the same run as {same}")
        counts.setdefault(label, Counter())[severity] += 1
    return {
        label: {"logs": part.total(), "warn": part["warn"], "error": part["error"]} for label, part in counts.items()
    }


def main() -> None:
    result = {name: counted(Path(sys.argv[1]), name) for name in LISTS}
    KEPT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(KEPT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
