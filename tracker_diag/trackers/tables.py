"""What is shown of a run as tables, whichever tracker it is: each of them in its present state."""

from tracker_diag.records import Table
from tracker_diag.report.tables import events_table, findings_table
from tracker_diag.trackers.tracker import End, Entry, Event, Standing


class Tables:
    """The tables of one run."""

    def __init__(self) -> None:
        self._events: list[tuple[int, str]] = []

    def changed_by(self, step: int, entry: Entry) -> list[Table]:
        """The tables that `entry` of `step` begins or changes."""
        match entry:
            case Table():
                changed = [entry]
            case Standing():
                changed = [findings_table(entry.findings)]
            case Event():
                self._events.append((step, entry.text))
                changed = [events_table(self._events)]
            case End():
                changed = [*entry.tables, findings_table(entry.summary.findings)]
            case _:
                changed = []
        return [table for table in changed if table.rows]
