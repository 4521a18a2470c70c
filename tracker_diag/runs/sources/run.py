"""A finished run, whatever it was logged with: one plain value that all readers give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[float], None]
"""Called now and then with the share that has been read, from 0 to 1."""


@dataclass(frozen=True)
class FinishedRun:
    """What a finished run logged."""

    source: str
    """Where it was read from, as given; a password in it is left out."""
    rows: dict[int, dict[str, float]] = field(repr=False)
    """Metrics by step, in rising order, under the run's own names. Sparse; NaN and infinity are kept as floats."""
    config: dict[str, object] = field(repr=False)
    """The run's settings as far as the source tells them: flat, with dots between the levels."""
    seconds: dict[int, float] = field(repr=False)
    """Wall time in seconds since the first row, for the steps whose time is known."""
    notes: tuple[str, ...]
    """What was odd about the source, a sentence each."""
    quantum: float = 0.0
    """By how much two values differ at least, if they differ: 0.001 where the source rounds to three decimals."""
    findings: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """What the diagnostics found while the run was underway, as `Finding.to_json` writes it, if they left it there."""


def one_line(error: object) -> str:
    """What a library said, as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
