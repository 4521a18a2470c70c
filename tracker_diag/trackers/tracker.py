"""What a tracker may do. A tracker that cannot do one of these inherits the empty method."""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from tracker_diag.errors import DiagError
from tracker_diag.records import Record, Table
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

_ours = ContextVar("ours", default=False)


@contextmanager
def writing() -> Generator[None, None, None]:
    """What is written to a tracker inside is ours: nobody who listens to the tracker takes it for the trainer's."""
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


class Tracker:
    """A destination, written to by one thread at a time.

    Any method may raise: that is counted, told once, and training goes on. An error that is `temporary` is tried
    again, anything else is given up. A tracker is called in the order of the run, from a thread of its own
    (`Outbox`) unless it is `local`.
    """

    name = "tracker"
    local = False
    """Whether a call costs less than handing it to another thread, as writing a line to a file does."""
    sent = 0
    """Requests that went well, for a tracker that collects: after a failure, whether there was progress since."""
    beside = False
    """Whether it is none of the run's trackers: it is told before they are, and not counted among them."""
    pace = 0.0
    """Seconds to wait before writing again, where several steps in one request cost what one does."""

    @classmethod
    def of(cls, target: object, *, run_id: str | None = None) -> "Tracker | None":
        """The tracker that writes to what `wrap` was given; None if that is none of its kind.

        It looks only at libraries that are loaded already: an object of any other cannot be there.

        Args:
            run_id: which run, where the tracker alone does not say it; left out if `wrap` was given none.
        """
        return None

    @classmethod
    def underway(cls) -> "Tracker | None":
        """The tracker for the run that its tracker has underway in this process; None if there is none.

        It looks only at libraries that are loaded already, and starts nothing.
        """
        return None

    @classmethod
    def reopened(cls, address: Mapping[str, str]) -> AbstractContextManager["Tracker"]:
        """A tracker that writes to `address` again, long after; the run is left as it was found."""
        raise DiagError(f"{cls.name}: cannot be opened again; what is left for it is in the journal alone")

    def hears(self, *names: str) -> bool:
        """Whether it does anything with one of these calls."""
        return any(getattr(type(self), name) is not getattr(Tracker, name) for name in names)

    @property
    def config(self) -> Mapping[str, object]:
        """Settings of the run that the tracker knows."""
        return {}

    @property
    def full(self) -> bool:
        """Whether it has collected as much as memory should hold; what comes next then stays on disk."""
        return False

    @property
    def address(self) -> Mapping[str, str]:
        """Where it writes to, for a process that comes later: `reopened` takes this. Without secrets."""
        return {}

    @property
    def page(self) -> str:
        """Where a person sees the run: an address, or the command that shows it; empty if nowhere."""
        return ""

    @property
    def source(self) -> str:
        """What `tracker-diag diagnose` reads the run from, later; empty if it cannot."""
        return ""

    def begin(self) -> None:
        """A monitor writes here from now on."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """The trainer's own metrics of `step`, for a tracker that is not the tracker they went to.

        They may be NaN or infinite; of one step they may come in several calls.
        """

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        """The diagnostics of `step`, steps in rising order; `at` in seconds since 1970.

        Where more of a step came later it is called again, with what is new or has changed. A kind of record that it
        does not know is to be left out.
        """

    def finding(self, step: int, finding: Finding) -> None:
        """A finding that began, fired, was resolved, or is explained by another one or no longer so."""

    def standing(self, step: int, findings: Sequence[Finding]) -> None:
        """All findings so far that have fired, each as it stands now; after any of them has changed."""

    def alert(self, step: int, notice: Notice) -> None:
        """A person is to be told."""

    def event(self, step: int, event: str) -> None:
        """Something was done on purpose at `step`, such as taking a new baseline."""

    def file(self, name: str, text: str) -> None:
        """Keep `text` among the files of the run, as `diag/<name>`; one that is there is replaced."""

    def flush(self, *, last: bool = False) -> bool:
        """Bring all that was given to the tracker; whether all of it is there. If not, it is called again.

        So it is after an error; one that is not temporary must have given up what it was about.

        `last`: nothing comes after this but `close`.
        """
        return True

    def temporary(self, error: Exception) -> bool:
        """Whether what raised `error` may go well later: the network, a server that is down."""
        return isinstance(error, OSError)

    def errors(self) -> Sequence[Exception]:
        """Failures of work that is done elsewhere, in a thread say, since the last time of asking."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """What is to be added to `diag/health/<name>`, since the last time of asking."""
        return {}

    def end(self, summary: Summary, tables: Sequence[Table]) -> None:
        """Nothing comes after this but `close`, which waits for what others have still to write; this does not."""

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        """The end: everything that is still underway is to be written. The run itself is not ours to end.

        After an error `flush` is called for the rest, until it goes well or there is no more time.
        """


def is_a(target: object, library: str, *names: str) -> bool:
    """Whether `target` is of one of the classes `names` of `library`; no library is loaded for that."""
    kinds = [getattr(sys.modules.get(library), name, None) for name in names]
    return isinstance(target, tuple(kind for kind in kinds if isinstance(kind, type)))
