"""Postmortem: the folder that a run leaves where it does not end by itself, made of any finished run."""

from collections.abc import Iterator
from contextlib import suppress

from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import STATISTICS
from tracker_diag.monitor.context import Context, context_of
from tracker_diag.records import Table
from tracker_diag.report.tables import findings_table
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.runs.postmortem.folder import SLICES, Ending, Remains, of_nan
from tracker_diag.scrub import secrets_of

LATELY = 20
"""Steps at the end of a run in which a statistic that is shown was logged last."""


def remains_of(found: Diagnosis) -> Remains:
    """What is known of a finished run: how its tracker says that it ended, and what follows from its record."""
    run = found.run
    tables = (_slices(found), findings_table(found.summary.findings))
    return Remains(
        run.source,
        run.source,
        tuple(_endings(found)),
        context_kept(found),
        found.summary,
        tuple(table for table in tables if table.rows),
        secrets=secrets_of(run.config),
    )


def context_kept(found: Diagnosis) -> Context:
    """The context record that was kept while the run was underway, with the settings that its tracker has beside it."""
    run = found.run
    kept = context_of({})
    if run.context is not None:
        with suppress(ValueError):  # another program's file
            kept = Context.of_json(run.context)
    return context_of({**kept.config, **run.config}, kept.versions, kept.code)


def _endings(found: Diagnosis) -> Iterator[Ending]:
    says = {None: "What ended the run is not recorded", "finished": "The run ended by itself"}
    if found.run.ended in says:
        yield Ending("end", says[found.run.ended])
    else:
        yield Ending("status", f"Its tracker says: {found.run.ended}")
    yield from of_nan(found.summary)


def _slices(found: Diagnosis) -> Table:
    """The statistics of slices as they were logged last, one row for each slice."""
    last = found.summary.last_step or 0
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for key, points in found.series.items():
        if isinstance(key, StatKey) and max(points) > last - LATELY:
            rows.setdefault((key.pair, key.slice), {})[key.stat] = points[max(points)]
    stats = [stat for stat in STATISTICS if any(stat in row for row in rows.values())]
    of = tuple((*place, *(row.get(stat) for stat in stats)) for place, row in rows.items())
    return Table(SLICES, ("pair", "slice", *stats), of)
