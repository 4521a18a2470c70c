"""A finished run, whatever it was logged with: one plain value that all readers give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tracker_diag.errors import SourceError

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
    framework: str | None = None
    """Whose names the metrics have, where the kind of source says it."""
    quantum: float = 0.0
    """By how much two values differ at least, if they differ: 0.001 where the source rounds to three decimals."""
    findings: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """What the diagnostics found while the run was underway, as `Finding.to_json` writes it, if they left it there."""
    context: str | None = field(default=None, repr=False)
    """The context record that the diagnostics left there, as JSON."""
    ended: str | None = None
    """How the run ended, as its tracker has it: `finished`, `failed`, `killed`, ...; None where it does not say."""
    began: float | None = None
    """When the first row was logged, in seconds since 1970, where the source tells it."""
    caveats: tuple[str, ...] = ()
    """What is wrong with the log itself, a sentence each: steps that begin again, repeated or lost rows, gaps."""


@dataclass(frozen=True)
class Listed:
    """The state of a run, as its tracker or its file system says without reading it."""

    source: str
    """What `read_run` takes."""
    name: str
    """What people call it."""
    mark: str
    """Another one as soon as anything more was logged."""
    over: str | None = None
    """How it ended, `finished` or `failed` for example; empty while it continues, None where nobody says."""
    updated: float | None = None
    """When something was last logged, in seconds since 1970."""
    last: int | None = None
    """The last step that was logged, where the run is then read metric by metric: of later ones some may be missing."""
    cut: bool = False
    """Whether the last line has no end yet: more of it may come."""
    state: str = ""
    """What the diagnostics that watch it from inside say: ok, info, warn or error; empty where they say nothing."""
    first_break: str = ""
    """What they say broke first."""


class Gone(SourceError):
    """The run that was asked for is not there, or not any more."""


def one_line(error: object) -> str:
    """What a library said, as one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__
