"""Postmortem: the folder that a run leaves where it does not end by itself, made of any finished run."""

from collections.abc import Iterator
from contextlib import suppress

from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import STATISTICS
from tracker_diag.monitor.context import Context, context_of
from tracker_diag.records import Table
from tracker_diag.report.tables import findings_table
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.runs.postmortem.folder import SLICES, Ending, Remains, nan_at_the_end

LATELY = 20
"""Steps at the end of a run in which a statistic that is shown was logged last."""


def remains_of(diagnosis: Diagnosis) -> Remains:
    """What is known of a finished run: how its tracker says that it ended, and what follows from its record."""
    run = diagnosis.run
    tables = (_slices(diagnosis), findings_table(diagnosis.summary.findings))
    return Remains(
        run.source,
        run.source,
        tuple(_endings(diagnosis)),
        context_kept(diagnosis),
        diagnosis.summary,
        tuple(table for table in tables if table.rows),
    )


def context_kept(diagnosis: Diagnosis) -> Context:
    """The context record from while the run was underway, with the settings that its tracker has too."""
    run = diagnosis.run
    kept = context_of({})
    if run.context is not None:
        with suppress(ValueError):  # another program's file
            kept = Context.of_json(run.context)
    return context_of({**kept.config, **run.config}, kept.versions, kept.code)


def _endings(diagnosis: Diagnosis) -> Iterator[Ending]:
    says = {None: "What ended the run is not recorded", "finished": "The run ended by itself"}
    if diagnosis.run.ended in says:
        yield Ending("end", says[diagnosis.run.ended])
    else:
        yield Ending("status", f"Its tracker says: {diagnosis.run.ended}")
    yield from nan_at_the_end(diagnosis.summary)


def _slices(diagnosis: Diagnosis) -> Table:
    """The statistics of slices as they were logged last, one row for each slice."""
    last = diagnosis.summary.last_step or 0
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for key, points in diagnosis.series.items():
        if isinstance(key, StatKey) and max(points) > last - LATELY:
            rows.setdefault((key.pair, key.slice), {})[key.stat] = points[max(points)]
    stats = [stat for stat in STATISTICS if any(stat in row for row in rows.values())]
    cells = tuple((*place, *(row.get(stat) for stat in stats)) for place, row in rows.items())
    return Table(SLICES, ("pair", "slice", *stats), cells)
