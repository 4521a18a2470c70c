"""Which trackers there are, those of other packages among them: by name, for an object, and of the runs underway."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static
from typing import Any, Literal

from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.trackers.tracker import Address, Name, Tracker

GROUP = "tracker_diag.trackers"
"""Entry points of this group name a subclass of `Tracker` each. What it is imported from loads no tracker."""

_log = logging.getLogger("tracker_diag")

_broken: dict[str, DiagError] = {}  # trackers of other packages that raised while they were looked for, by name


def tracker_class(name: str) -> type[Tracker]:
    """The tracker called `name`.

    Raises:
        UnknownName: none of that name is installed.
        DiagError: it cannot be imported.
    """
    known = {entry.name: entry for entry in _entries()}
    if name not in known:
        raise UnknownName("tracker", name, tuple(sorted(known)))
    try:
        kind: type[Tracker] = known[name].load()
    except Exception as error:
        raise _failure(known[name], "cannot be loaded", error) from error
    return kind


def reopened(kind: type[Tracker], place: Address | Name) -> Tracker:
    """The tracker of this `kind` that writes to `place` again; DiagError if it does not, or there is no such run."""
    tracker = kind.find(place)
    if tracker is None:
        raise DiagError(f"{kind.name} does not open {place!r} again")
    return tracker


def tracker_names() -> tuple[str, ...]:
    """The names of all trackers that are installed; none is imported for that."""
    return tuple(sorted(entry.name for entry in _entries()))


def tracker_of(target: object, *, run_id: str | None = None) -> Tracker | None:
    """The tracker that knows what to do with `target`; None if there is none.

    Args:
        run_id: which run, where `target` alone does not say it.

    Raises:
        DiagError: it is a tracker that we know, but lacks a run, say.
    """
    given = {"target": target} if run_id is None else {"target": target, "run_id": run_id}
    return next(_of_each_kind(given, "is left out", refused=True), None)


def active_trackers() -> list[Tracker]:
    """One tracker for each run that is underway in this process; a tracker that raises is left out, and logged."""
    return [*_of_each_kind({}, "the run that is underway gets no diagnostics")]


def _of_each_kind(given: Mapping[str, Any], left_out: str, *, refused: bool = False) -> Generator[Tracker]:
    """What each kind of tracker finds; one that raises is left out, but for a DiagError where that is `refused`."""
    for entry, kind in _kinds():
        with _left_out(entry, left_out, but=(DiagError,) if refused else ()):
            tracker = kind.find(**given)
            if tracker is not None:
                _check(tracker)
                yield tracker


def _check(tracker: object) -> None:
    """Raise what a tracker of another package would raise later, where it could reach training."""
    if not isinstance(tracker, Tracker):
        raise TypeError(f"find gave {type(tracker).__name__}, expected a Tracker")
    for name in ("tally", "takes", "local", "outside", "pace"):
        getattr(tracker, name)


def watchable() -> list[type[Tracker]]:
    """Those that can say when a run begins."""
    return [kind for _, kind in _kinds() if kind.library]


def that_can(method: Literal["listen", "read"]) -> tuple[str, ...]:
    """The names of those that have a `method` of their own."""
    return tuple(kind.name for _, kind in _kinds() if getattr_static(kind, method) is not vars(Tracker)[method])


def broken() -> list[DiagError]:
    """What went wrong with trackers of other packages, for the health of a run that begins."""
    return [*_broken.values()]


def _kinds() -> Generator[tuple[EntryPoint, type[Tracker]]]:
    """Each tracker that is installed, ours first, so that a fault of another package's does not hinder ours."""
    for entry in sorted(_entries(), key=lambda entry: (not entry.value.startswith("tracker_diag."), entry.name)):
        with _left_out(entry, "cannot be loaded, left out"):
            yield entry, entry.load()


def _entries() -> tuple[EntryPoint, ...]:
    entries = tuple(entry_points(group=GROUP))
    if not entries:
        raise DiagError(
            f"no entry point of group {GROUP}, expected those of tracker_diag: "
            "it can be imported here, but is not installed; install it with pip"
        )
    return entries


@contextmanager
def _left_out(entry: EntryPoint, what: str, but: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """What somebody else's module raises inside is logged once, and its tracker left out."""
    try:
        yield
    except but:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is
        if entry.name not in _broken:
            _broken[entry.name] = _failure(entry, what, error)
            _log.warning("%s", _broken[entry.name])


def _failure(entry: EntryPoint, what: str, error: Exception) -> DiagError:
    return DiagError(f"tracker {entry.name} ({entry.value}): {what}: {type(error).__name__}: {error}")
