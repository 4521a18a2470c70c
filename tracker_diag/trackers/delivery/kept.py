"""The last steps of a run, kept on disk for a tracker whose memory is lost with its process."""

from collections.abc import Sequence

from tracker_diag.records import Record
from tracker_diag.trackers.delivery.journal import Journal, journal_for
from tracker_diag.trackers.delivery.lines import scalars_line
from tracker_diag.trackers.tracker import Tracker

LARGEST = 4 << 20
"""Bytes that are kept; a tracker writes what is older long before."""


class Kept:
    """Steps of `tracker`; `tracker-diag flush` brings those that its run has not, if nobody calls `close`."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._journal: Journal | None = None
        self._over = False

    def keep(self, step: int, records: Sequence[Record], at: float) -> OSError | None:
        """Keep a step; what keeps the disk from taking it comes back once, and no more is kept."""
        if self._over:
            return None
        try:
            self._journal = self._journal or journal_for(self._tracker, "-rows")
            self._journal.append(scalars_line(step, records, at))
            if self._journal.size > LARGEST:
                self._journal = self._later_half(self._journal)
        except OSError as error:
            self._over = True
            return error
        return None

    def _later_half(self, full: Journal) -> Journal:
        """Another journal with the later half of `full`. That one goes last, as we may be killed at any moment."""
        lines = [line for _, line in full.entries()]
        fresh = journal_for(self._tracker, "-rows")
        fresh.append(*lines[len(lines) // 2 :])
        full.close(keep=False)
        return fresh

    def close(self) -> None:
        """The tracker has all of it."""
        self._over = True
        if self._journal:
            self._journal.close(keep=False)
            self._journal = None
