"""W&B's rows on the axis that the run's charts have."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.keys import flat, integer
from tracker_diag.trackers.rows import Rows

STEP = "_step"
"""W&B's own count of rows; it is the training step only where the trainer passes `step=` to `log`."""
AXES = ("train/global_step", "trainer/global_step", "global_step")
"""If no axis was defined: keys that Hugging Face, Lightning and a synchronised TensorBoard log with the rest."""


class Axis:
    """The step of each row: of the metric that was defined as the axis of all, else W&B's own.

    The diagnostics' own metrics come with `diag/step`, which is theirs even when the row is a later one's.
    """

    def __init__(self) -> None:
        self._axis: str | None = None
        self._at: int | None = None

    def define(self, metric: str, step_metric: str) -> None:
        """The run's `define_metric(metric, step_metric=...)`."""
        if fnmatchcase("any", metric):
            self._axis = step_metric

    def put_record(self, rows: Rows, given: Mapping[str, object]) -> None:
        """Put one row of W&B's history into `rows`."""
        own = integer(given.get(STEP))
        if own is None:
            rows.count("rows without a step, left out", f"after row {rows.added}")
            return
        step = self._step(given, own)
        values = dict(_numbers(given))
        late = integer(given.get(f"{PREFIX}step"))
        if late is not None and late != step:
            theirs = {key: values.pop(key) for key in list(values) if key.startswith(PREFIX)}
            rows.put_row(late, theirs, f"step {own}")
        clock = given.get("_timestamp")
        rows.put_row(step, values, f"step {own}", float(clock) if isinstance(clock, int | float) else None)

    def put_diagnostics(self, rows: Rows, given: Mapping[str, object]) -> None:
        """Put one row of the diagnostics' own run into `rows`, with the steps that found no row of the trainer's."""
        step = integer(given.get(f"{PREFIX}step"))
        if step is not None:
            rows.put_row(step, {key: value for key, value in _numbers(given) if key.startswith(PREFIX)}, f"step {step}")

    def note_on(self, rows: Rows) -> None:
        """Note which axis it was, where it was not W&B's own."""
        if self._axis not in {STEP, None} and self._at is not None:
            rows.note(f"steps are those of {self._axis}, not W&B's count of rows")

    def _step(self, given: Mapping[str, object], own: int) -> int:
        if self._axis is None:  # none was defined: what the first row has
            self._axis = next((key for key in AXES if integer(given.get(key)) is not None), STEP)
        step = integer(given.get(self._axis))
        if step is not None:
            self._at = step
        return own if self._at is None else self._at  # a row without the axis belongs to the one before


def _numbers(given: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What is no histogram, table, picture or other medium, and not W&B's own."""
    row = dict(flat(given, "."))
    media = {key.removesuffix("_type") for key in row if key.endswith("._type")}
    for key, value in row.items():
        if not key.startswith("_") and not any(key.startswith(medium) for medium in media if medium):
            yield key, value
