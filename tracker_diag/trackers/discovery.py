"""Which trackers there are, those of other packages among them: by name, for an object, and of the runs underway."""

import logging
from collections.abc import Generator
from importlib.metadata import EntryPoint, entry_points

from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.trackers.tracker import Tracker

GROUP = "tracker_diag.trackers"
"""Entry points of this group name a subclass of `Tracker` each. What it is imported from loads no tracker."""

_log = logging.getLogger("tracker_diag")


def tracker_class(name: str) -> type[Tracker]:
    """The tracker called `name`.

    Raises:
        UnknownName: none of that name is installed.
    """
    known = {entry.name: entry for entry in _entries()}
    if name not in known:
        raise UnknownName("tracker", name, tuple(sorted(known)))
    found: type[Tracker] = known[name].load()
    return found


def tracker_of(target: object, *, run_id: str | None = None) -> Tracker | None:
    """The tracker that knows what to do with `target`; None if there is none.

    Args:
        run_id: which run, where `target` alone does not say it.

    Raises:
        DiagError: it is a tracker that we know, but lacks a run, say.
    """
    given = {} if run_id is None else {"run_id": run_id}
    found = (kind.of(target, **given) for kind in _kinds())
    return next((tracker for tracker in found if tracker is not None), None)


def active_trackers() -> list[Tracker]:
    """One tracker for each run that is underway in this process, for those who did not start it themselves.

    Looks only at libraries that are loaded already, and starts nothing. A tracker that cannot be written to takes
    none of the others along; the log says which, and why.
    """
    found: list[Tracker] = []
    for kind in _kinds():
        try:
            tracker = kind.underway()
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises
            _log.warning("%s: the run that is underway gets no diagnostics: %s", kind.name, _told(error))
            continue
        if tracker is not None:
            found.append(tracker)
    return found


def _kinds() -> Generator[type[Tracker]]:
    """Each tracker that is installed, ours first, so that a fault of another package's stands in no way of ours."""
    for entry in sorted(_entries(), key=lambda entry: (not entry.value.startswith("tracker_diag."), entry.name)):
        try:
            kind: type[Tracker] = entry.load()
        except Exception as error:  # noqa: BLE001  # it is somebody else's module
            _log.warning("tracker %s: %s cannot be loaded, left out: %s", entry.name, entry.value, _told(error))
            continue
        yield kind


def _entries() -> tuple[EntryPoint, ...]:
    found = tuple(entry_points(group=GROUP))
    if not found:
        raise DiagError(
            f"no entry point of group {GROUP}, expected those of tracker_diag: "
            "it can be imported here, but is not installed; install it with pip"
        )
    return found


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
