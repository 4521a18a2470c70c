"""The one protocol of a tracker: find it, watch it, read it, list it, listen to it, write to it, flush it, close it."""

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

from tracker_diag.errors import DiagError, SourceError
from tracker_diag.health import Health
from tracker_diag.hooks import Unlocked, after
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.finished import FinishedRun, Listed, Progress

T = TypeVar("T")

_ours = ContextVar("ours", default=False)


@contextmanager
def writing() -> Generator[None, None, None]:
    """What is written to a tracker inside is ours: no listener takes it for the trainer's."""
    before = _ours.get()
    try:
        _ours.set(True)  # in here, as a signal handler may raise right after it
        yield
    finally:
        _ours.set(before)


def writing_of_ours() -> bool:
    """Whether this is a call inside `writing`."""
    return _ours.get()


class Refused(DiagError):
    """The tracker will not take something, now or later; the message says what, and what it said."""


class Unavailable(OSError):
    """The tracker cannot take something now. Delivery tries again after this, as after any OSError."""


@dataclass(frozen=True)
class Metrics:
    """The trainer's own metrics of a step, which may be NaN or infinite; of one step they may come in several calls."""

    values: Mapping[str, float]


@dataclass(frozen=True)
class Standing:
    """All findings so far that have fired, each in its present state."""

    findings: Sequence[Finding]


@dataclass(frozen=True)
class Event:
    """Something was done on purpose, such as taking a new baseline."""

    text: str


LINKS, PICTURE = "<!-- links -->", "<!-- picture -->"
"""Where a tracker may put its own in a `Description`; in Markdown nobody sees them."""


@dataclass(frozen=True)
class Description:
    """The decision on the run so far, in Markdown, for the page of the run; a later one takes its place."""

    text: str
    over: bool = False
    """Whether the run has ended, so that its report comes with this."""


@dataclass(frozen=True)
class File:
    """A text to keep among the files of the run, as `diag/<name>`; one that is there is replaced."""

    name: str
    text: str


@dataclass(frozen=True)
class End:
    """The diagnostics end: the last that is written. The run itself is not ours to end."""

    summary: Summary
    tables: Sequence[Table]

    @cached_property
    def report(self) -> str:
        """The report, as a page."""
        from tracker_diag.report.html import render_html  # the page's library takes long to load

        return render_html(self.summary, self.tables)


Entry: TypeAlias = Record | Metrics | Finding | Standing | Notice | Event | Description | File | End
"""What is written to a tracker. A `Finding` is one that began, fired, was resolved or is explained by another."""

RECORDS = (Scalar, Histogram, Table, Drawing)

Off: TypeAlias = Callable[[], None]
"""Lets go of what was listened to."""


class Address(dict[str, str]):
    """Where a tracker wrote to, for a process that comes later; without secrets."""

    def __missing__(self, name: str) -> str:
        raise DiagError(f"the address of the run has no {name!r}")


class Name(str):
    """What a finished run is called: the `<run>` of the source `<tracker>:<run>`."""

    __slots__ = ()


@dataclass(frozen=True)
class Listener:
    """What a tracker calls when somebody else logs to the run. None of it raises."""

    hear: Callable[[Mapping[str, object], object, int | None], None]
    """Metrics, the step that was given with them, and the number that the tracker gives them where there was none."""
    log: Callable[[Mapping[str, object], object], None]
    """The same of a call that is a step of its own where none was given."""
    end: Callable[[], object]
    """The run is about to end."""
    record: Callable[[str, Exception], None]
    """A hook has failed: the kind of failure, and the error."""


class Tally:
    """Failures and counts that a tracker has collected; the run's health takes them."""

    def __init__(self) -> None:
        self._errors: deque[Exception] = deque(maxlen=100)  # several threads may use a deque without a lock
        self._counts: deque[tuple[str, int]] = deque()

    def failed(self, error: Exception) -> None:
        self._errors.append(error)

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to `diag/health/<name>`."""
        self._counts.append((name, n))

    def taken(self) -> tuple[Counter[str], list[Exception]]:
        """All since the last time of asking."""
        counts: Counter[str] = Counter()
        for _ in range(len(self._counts)):
            name, n = self._counts.popleft()
            counts[name] += n
        return counts, [self._errors.popleft() for _ in range(len(self._errors))]


class Tracker:
    """A destination, written to by one thread at a time. A subclass overrides what its tracker can do.

    Any method may raise: the failure is counted in `diag/health/tracker_errors`, and training continues. An OSError is
    temporary, and delivery tries again. Any other error is final. A tracker is called in the order of the run. The
    calls come from a thread of its own (`Outbox`), unless it is `local`.
    """

    name = "tracker"
    """Also what its sources begin with: `<name>:<run>`."""
    takes: ClassVar[tuple[type, ...]] = RECORDS
    """Kinds of entries that it does something with; no others are written to it."""
    library = ""
    """Module whose import `td.watch` waits for; empty if it cannot watch for runs."""
    local = False
    """Whether a call costs less than handing it to another thread, as writing a line to a file does."""
    outside = False
    """Whether it is none of the run's trackers: it is written to before they are, and not counted among them."""
    shows_alerts = False
    """Whether it prints alerts into the terminal itself."""
    pace = 0.0
    """Seconds to wait before writing again, where several steps in one request cost what one does."""
    sent = 0
    """Requests that went well, for a tracker that collects: after a failure, whether there was progress since."""
    full = False
    """Whether it has collected as much as memory should hold; what comes next then stays on disk."""

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> "Tracker | None":
        """The tracker for a run; None if there is none of this kind.

        It looks only at libraries that are loaded already, and asks no server.

        Args:
            target: an object that `wrap` was given; an `Address` or the `Name` of a finished run, to write there
                again; None for the run that is underway in this process.
            run_id: which run, where the object alone does not say it; left out if `wrap` was given none.
        """
        if isinstance(target, Address | Name):
            raise DiagError(f"{cls.name}: cannot be opened again; what is left for it is in the journal alone")
        return None

    @classmethod
    def watch(cls, begun: "Callable[[Tracker], None]") -> Off:
        """Have `begun` called with each run that begins from now on. Called once `library` is loaded."""
        return _nothing

    @classmethod
    def read(cls, name: str, source: str, progress: Progress | None = None) -> FinishedRun:
        """The run of `source`, which is `<tracker>:<name>`.

        Raises:
            MissingExtra: the library that reads it is not installed.
            Gone: there is no such run.
            SourceError: in one line, "source: what is wrong".
        """
        raise SourceError(f"{source}: {cls.name} cannot be read from")

    @classmethod
    def runs(cls, name: str, source: str, *, project: bool = False) -> list[Listed]:
        """The state of the run `<tracker>:<name>`, or with `project` of all that are called so; raises as `read`."""
        if project:
            raise SourceError(f"{source}: {cls.name} cannot list the runs of a project")
        run = cls.read(name, source)
        last = max(run.rows, default=None)
        return [Listed(source, name, f"{len(run.rows)} {last} {run.ended}", run.ended)]

    @property
    def config(self) -> Mapping[str, object]:
        """Settings of the run that the tracker knows."""
        return {}

    @property
    def address(self) -> Mapping[str, str]:
        """Where it writes to; `find` takes this as an `Address`. `run` in it is the run's id."""
        return {}

    @property
    def page(self) -> str:
        """Where a person sees the run: an address, or the command that shows it; empty if nowhere."""
        return ""

    @property
    def source(self) -> str:
        """What `tracker-diag diagnose` reads the run from, later; empty if it cannot."""
        return ""

    @property
    def key(self) -> tuple[str, object]:
        """What makes two trackers write to the same run."""
        return self.name, self.address.get("run", id(self))

    @cached_property
    def tally(self) -> Tally:
        """What has failed in work that is done elsewhere, in a thread say."""
        return Tally()

    def listen(self, listener: Listener | None) -> Off:
        """Have the calls that log to the run heard. None: a monitor is about to write here, and hears nothing."""
        return _nothing

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        """Write `entries` of `step`, steps in rising order; `at` in seconds since 1970.

        Where more of a step came later it is called again, with what is new or has changed.
        """

    def flush(self, *, last: bool = False) -> bool:
        """Bring all that was given to the tracker; whether all of it is there. If not, it is called again.

        An error that is not temporary must have given up what it was about. It is called for a tracker that is not
        `local`; after `End` with `last`.
        """
        return True

    def close(self) -> None:
        """Let go of everything. Nothing comes after this."""


def give(tracker: Tracker, step: int, entries: Sequence[Entry], at: float | None = None) -> None:
    """Write those of `entries` that `tracker` takes; `at` is now by default."""
    if wanted := [entry for entry in entries if isinstance(entry, tracker.takes)]:
        tracker.write(step, wanted, time.time() if at is None else at)


def asked(tracker: Tracker, name: str, missing: T) -> T:
    """What `tracker` has under `name`; `missing` where it raises, which is counted."""
    try:
        value: T = getattr(tracker, name)
    except Exception as error:  # noqa: BLE001  # whatever a tracker raises
        tracker.tally.failed(error)
        return missing
    return value


def _nothing() -> None:
    """Where nothing is listened to, nothing is let go of."""


def on_begin(module: Any, begun: Callable[[Any], None]) -> Off:
    """Have `begun` called with each run that `init` of `module` gives."""

    def seen(run: Any, _: Mapping[str, Any]) -> None:
        if not writing_of_ours():
            begun(run)

    return after(module, "init", (), seen, Unlocked(Health().record))


def is_a(target: object, library: str, *names: str) -> bool:
    """Whether `target` is of one of the classes `names` of `library`; no library is loaded for that."""
    kinds = [getattr(sys.modules.get(library), name, None) for name in names]
    return isinstance(target, tuple(kind for kind in kinds if isinstance(kind, type)))
