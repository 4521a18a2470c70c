"""Hold `diagnose` against training logs in public repositories that nobody of this project wrote.

    git clone https://github.com/OWNER/NAME CLONES/OWNER+NAME      # each of those in public_logs.txt
    python tests/faults/public_logs.py CLONES

Writes docs/public_logs.json, counts alone; docs/faults.md has them from there.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tracker_diag.runs.diagnose import diagnose
from tracker_diag.runs.sources.open import read_run

LIST = Path(__file__).with_suffix(".txt")
KEPT = Path(__file__).parents[2] / "docs" / "public_logs.json"


def severity(clones: Path, repository: str, commit: str, path: str) -> str:
    """The highest severity of an incident in one log; info where there is none."""
    clone = clones / repository.replace("/", "+")
    held = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(path).name
        file.write_bytes(held.stdout)
        found = diagnose(read_run(str(file))).summary.incidents
    return max((one.severity for one in found), key=("info", "warn", "error").index, default="info")


def main() -> None:
    counts: dict[str, Counter[str]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            *log, label = line.split()
            counts.setdefault(label, Counter())[severity(Path(sys.argv[1]), *log)] += 1
    found = {label: {"logs": of.total(), "warn": of["warn"], "error": of["error"]} for label, of in counts.items()}
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(KEPT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
