"""Sleep: which readers there is something to read for. Of most series of a catalogue a run never has any value."""

from collections.abc import Collection

from tracker_diag.metrics.series import SeriesKey
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import Known, Reader, Series


class Sleep:
    """Reads the series that have a value, and the readers for which that makes a difference.

    A reader of which no series has ever come sleeps until one does, and counts then how many steps that were.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self._of_key: dict[SeriesKey, list[Series]] = {}
        """The series that begin with a key: itself, and what is held against another."""
        self._readers: dict[Series, list[Reader]] = {}
        """Those that look at a series."""
        self._here: dict[Series, None] = {}
        """The series that had a value at the last step."""
        self._awake: dict[Reader, None] = {}
        self.asleep: dict[Reader, int] = {}
        """By reader the step, counted from 1 on, that it has read last."""
        self.steps = 0

    def add(self, one: Reader) -> None:
        """A reader that is to read from now on."""
        self._awake[one] = None
        for series in one.looks_at:
            if series not in self._readers:
                self._of_key.setdefault(series.keys[0], []).append(series)
            self._readers.setdefault(series, []).append(one)

    def read(self, observed: Observed, *, again: bool) -> set[Reader]:
        """Take in one step, `again` if it is the last one, of which more has come; the readers that woke up."""
        self.steps += not again
        came = self.read_series(observed, again=again)
        woken = {one for series in came for one in self._readers[series] if one in self.asleep}
        self._wake(woken, self.steps - (not again))
        for one in list(self._awake):
            if not again or not one.looks_at or any(series.new for series in one.looks_at):
                one.read(observed)
                if one.holds is None and one.idle and all(series.now is None for series in one.looks_at):
                    del self._awake[one]
                    self.asleep[one] = self.steps
        return woken

    def read_series(self, observed: Observed, *, again: bool) -> list[Series]:
        """Read those series that have a value or had one at the last step; those that had none."""
        self._known.observed, before = observed, self._here
        here = {one: None for key in observed.series for one in self._of_key.get(key, ())}
        for series in {**before, **here}:
            series.read(observed, again=again)
        self._here = {one: None for one in here if one.now is not None}
        return [one for one in self._here if one not in before]

    def catch_up(self) -> None:
        """Have all readers know of all steps."""
        for one, last in self.asleep.items():
            one.pass_over(self.steps - last)
            self.asleep[one] = self.steps

    def wake(self) -> None:
        """Have all readers read the next step."""
        self._wake(list(self.asleep), self.steps)

    def _wake(self, readers: Collection[Reader], steps: int) -> None:
        for one in readers:
            one.pass_over(steps - self.asleep.pop(one))
            self._awake[one] = None
