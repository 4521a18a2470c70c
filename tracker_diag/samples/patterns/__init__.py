"""Phrases of a refusal and of a claim of success: data, and each file says what it cannot see."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile

HERE = Path(__file__).parent


def _read(name: str) -> Any:
    return YamlFile.load(HERE / f"{name}.yaml", DiagError).data


def _all(languages: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(phrase for phrases in languages.values() for phrase in phrases)


REFUSALS = _all(_read("refusal"))
_claimed_success = _read("claimed_success")
CLAIMS, TAKEN_BACK = _all(_claimed_success["claims"]), _all(_claimed_success["takes_back"])


def having(texts: Sequence[str], phrases: Iterable[str]) -> npt.NDArray[np.bool_]:
    """(n,) whether each of `texts`, in the form of the phrases, holds one of `phrases`."""
    holds = np.zeros(len(texts), dtype=bool)
    joined = "\0".join(texts)  # one search through all is several times as fast as one through each
    ends = list(accumulate(len(text) + 1 for text in texts))
    for phrase in phrases:
        at = joined.find(phrase)
        while at >= 0:
            row = bisect_right(ends, at)
            holds[row] = True
            at = joined.find(phrase, ends[row])
    return holds


def claims_success(ends: Sequence[str]) -> npt.NDArray[np.bool_]:
    """(n,) whether the end of each response claims success, and does not take it back."""
    holds = having(ends, CLAIMS)
    rows = np.flatnonzero(holds)
    holds[rows] = ~having([ends[row] for row in rows.tolist()], TAKEN_BACK)
    return holds
