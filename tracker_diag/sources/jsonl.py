"""The metrics file: JSON Lines, one object a step, sparse keys allowed."""

import json
import math
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.metrics.registry import PREFIX

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How the metrics file writes what JSON cannot."""


def read_metrics(file: Path) -> dict[int, dict[str, object]]:
    """Metrics by step, in rising order, without the diagnostics' own keys; a step's lines are merged.

    Raises:
        SourceError: "file:line: what is wrong".
    """
    found: dict[int, dict[str, object]] = {}
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise SourceError(f"{file}:{number}: no JSON object: {error}") from error
                if not isinstance(row, dict) or type(row.get("step")) is not int:
                    raise SourceError(f"{file}:{number}: expected an object with an integer step")
                own = {
                    key: NON_FINITE.get(value, value) if isinstance(value, str) else value
                    for key, value in row.items()
                    if key != "step" and not key.startswith(PREFIX)
                }
                found.setdefault(row["step"], {}).update(own)
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: {error}") from error
    return dict(sorted(found.items()))
