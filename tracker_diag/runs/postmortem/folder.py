"""Folder: what ended a run and all that is known of it, as files that a person and a program can read.

It is written beside where it goes and then moved there, so that it is whole or not there. Secrets are starred in all
of it; tokens and texts are in it only where they may be shown in the tracker as well.
"""

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tracker_diag.errors import MissingExtra
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.monitor.context import FILE, Context
from tracker_diag.records import Table
from tracker_diag.report.evidence import damage, outcomes, speaks_for
from tracker_diag.report.markdown import escaped, markdown
from tracker_diag.report.tables import brief, by_growth
from tracker_diag.rules.triage import Summary
from tracker_diag.scrub import without_secrets

NAME = "postmortem"
"""Of the folder, below that of the journals and below `diag/` in a tracker."""

PAGE = "README.md"
"""What a person reads first."""

TRACE = "traceback.txt"
SLICES, CHECKPOINTS = f"{PREFIX}slices", f"{PREFIX}checkpoints"
"""Tables that the page shows; of the others it says where they lie."""

LINES = 25
"""Of a traceback, its last ones, in the page."""
EVENTS, ROWS = 10, 12
"""The last ones, and the slices that have grown most, in the page."""

Cause: TypeAlias = Literal["exception", "thread", "signal", "nan", "stop", "status", "end"]


@dataclass(frozen=True)
class Ending:
    """One thing that ended a run, or had a part in it."""

    cause: Cause
    """`thread`: an exception that ended the thread that logs. `stop`: a guard's. `status`: as its tracker says.
    `end`: nothing is known but that it is over."""
    what: str
    """In one line."""
    at: float | None = None
    """In seconds since 1970, where it is known."""
    trace: str = ""
    """The traceback, or the stacks of all threads."""


NON_FINITE = "NUM004"
"""The rule that tells NaN in what the parameters are made of."""


def of_nan(summary: Summary) -> Iterator[Ending]:
    """NaN that was there to the end, as where a run is stopped for it."""
    for finding in summary.findings:
        if finding.rule.id == NON_FINITE and finding.state == "firing":
            yield Ending("nan", f"NaN or infinity: {finding.summary}, since step {finding.onset}")


@dataclass(frozen=True)
class Remains:
    """All that is known of a run that is over."""

    run: str
    """Its name for people."""
    source: str
    """What `tracker-diag diagnose` reads it from; empty if it cannot."""
    endings: tuple[Ending, ...]
    """What ended it first, then what else was seen to end."""
    context: Context
    summary: Summary | None = None
    """None where the diagnostics could not be asked any more."""
    tables: Sequence[Table] = ()
    """Windows, worst sequences, checkpoints and samples, as they go to the tracker."""
    events: Sequence[tuple[int, str]] = ()
    """What was done on purpose, by step."""
    health: Mapping[str, int] = field(default_factory=dict[str, int])
    failures: Sequence[str] = ()
    secrets: Collection[str] = ()
    """Starred wherever they stand."""


def write(remains: Remains, place: Path) -> Path:
    """Write the files into a new folder at `place`, or beside it where there is one: `-2`, `-3`, ... follow its name.

    Returns:
        The folder.

    Raises:
        OSError: the disk is full, say; nothing is left behind then.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a process of the same number that was killed here
    try:
        new.mkdir(mode=0o700)
        for name, content in files(remains).items():
            (new / name).write_bytes(content)
        return _moved(new, place)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _moved(new: Path, place: Path) -> Path:
    for number in count(1):
        end = place if number == 1 else place.with_name(f"{place.name}-{number}")
        with suppress(FileExistsError):
            try:
                return new.rename(end)
            except OSError:
                if not end.exists():
                    raise
    raise AssertionError


def files(remains: Remains) -> dict[str, bytes]:
    """The files by name, the page first."""
    remains = _starred(remains)  # before anything is escaped, as a secret is then another text
    texts = {
        PAGE: page(remains),
        f"{NAME}.json": json.dumps(to_json(remains), indent=1),
        FILE: json.dumps(remains.context.to_json(), indent=1),
    }
    if trace := _traces(remains):
        texts[TRACE] = trace
    for table in remains.tables:
        texts[_file(table)] = json.dumps({"columns": table.columns, "data": table.rows})
    if remains.summary is not None:
        with suppress(MissingExtra):  # the page has what matters
            texts["report.html"] = _report(remains, remains.summary)
    return {name: without_secrets(text, remains.secrets).encode(errors="replace") for name, text in texts.items()}


def _starred(remains: Remains) -> Remains:
    def starred(text: str) -> str:
        return without_secrets(text, remains.secrets)

    return replace(
        remains,
        source=starred(remains.source),
        endings=tuple(
            replace(ending, what=starred(ending.what), trace=starred(ending.trace)) for ending in remains.endings
        ),
        events=[(step, starred(event)) for step, event in remains.events],
        failures=[starred(failure) for failure in remains.failures],
    )


def _report(remains: Remains, summary: Summary) -> str:
    from tracker_diag.report.html import render_html

    return render_html(summary, remains.tables, note=f"Ended by {remains.endings[0].what}.")


def to_json(remains: Remains) -> dict[str, Any]:
    """All of it but the tables and traces, which have files of their own."""
    ended = [{name: value for name, value in asdict(ending).items() if name != "trace"} for ending in remains.endings]
    return {
        "run": remains.run,
        "source": remains.source,
        "ended": ended,
        "diagnosis": remains.summary and remains.summary.to_json(),
        "context": remains.context.to_json(),
        "events": [list(event) for event in remains.events],
        "health": dict(remains.health),
        "failures": list(remains.failures),
        "tables": [_file(table) for table in remains.tables],
    }


def page(remains: Remains) -> str:
    """The page in Markdown: what ended the run, what broke first, how its tails stood, from what to repeat it."""
    parts = [f"# {escaped(remains.run)}: what ended it", *_ended(remains), *_found(remains.summary)]
    tables = {table.name: table for table in remains.tables}
    if SLICES in tables:
        slices = brief(by_growth(tables[SLICES]))
        parts += ["## The last windows", markdown(replace(slices, rows=slices.rows[:ROWS]))]
        if len(slices.rows) > ROWS:
            parts.append(f"And {len(slices.rows) - ROWS} more slices, in `{_file(slices)}`.")
    if trace := _traces(remains):
        shown = trace.rstrip().splitlines()[-LINES:]
        parts += ["## Where it ended", "\n".join(f"    {line}" for line in shown)]
        if len(shown) < len(trace.rstrip().splitlines()):
            parts.append(f"All of it is in [{TRACE}]({TRACE}).")
    events = [(step, event) for step, event in remains.events if "\n" not in event]  # others are pages by themselves
    if events:
        parts += ["## Events", "\n".join(f"- step {step}: {escaped(event)}" for step, event in events[-EVENTS:])]
    parts += ["## Checkpoints", markdown(tables[CHECKPOINTS]) if CHECKPOINTS in tables else "None was registered."]
    return "\n\n".join([*parts, *_repeated(remains.context), *_rest(remains)]) + "\n"


def _ended(remains: Remains) -> Iterator[str]:
    summary = remains.summary
    after = f", after step {summary.last_step}" if summary and summary.last_step is not None else ""
    first, *others = remains.endings
    yield f"**{escaped(first.what)}**{after}{_when(first)}."
    if others:
        yield "\n".join(f"- then {escaped(ending.what)}{_when(ending)}" for ending in others)
    if summary is None:
        yield "The diagnostics were at work and could not be asked any more: nothing is known here of what broke first."


def _when(ending: Ending) -> str:
    if ending.at is None:
        return ""
    return time.strftime(", at %Y-%m-%d %H:%M:%S UTC", time.gmtime(ending.at))


def _found(summary: Summary | None) -> Iterator[str]:
    if summary is None:
        return
    yield "## What broke first"
    first = summary.first_break
    counts = f"{len(summary.healthy)} rules could see and found nothing, {len(summary.blind)} could not see."
    if first is None:
        quiet = f"No rule fired at warn or above in {summary.steps} steps."
        yield f"{quiet if summary.judged else '; '.join(summary.short) + '.'} {counts}"
    else:
        place = f", on {first.slice}" if first.slice != "all" else ""
        seen = f"since step {first.onset}, detected at step {first.fired}; rule {first.rule.id}."
        rows = [
            f"**{escaped(first.rule.title + place)}**, {seen}",
            *(f"- evidence: {escaped(line)}" for line in speaks_for(first)[:4]),
            *(f"- damage: {escaped(line)}" for line in damage(summary)),
            *(f"- do first: {escaped(line)}" for line in first.rule.remedy[:1]),
        ]
        yield "\n".join([rows[0], "", *rows[1:]])
        yield f"{counts} {'; '.join(map(escaped, outcomes(summary)))}".strip()
    if caveats := (*summary.log, *summary.caveats):
        yield "\n".join(f"- but: {escaped(caveat)}" for caveat in caveats)
    if summary.incidents:
        yield "## Incidents"
        yield "\n".join(f"- {escaped(str(incident))}" for incident in summary.incidents)


def _repeated(context: Context) -> Iterator[str]:
    yield "## To repeat it"
    code = context.code
    rows: list[tuple[str, str]] = [
        ("code", f"{code.commit}{', with changes that are not committed' if code.dirty else ''}" if code else ""),
        *[(what, _settings(setting)) for what, setting in (("seed", context.seed), ("data", context.data))],
        ("evaluation", _settings(context.evaluation)),
        ("versions", ", ".join(f"{name} {number}" for name, number in context.versions.items())),
        ("settings", f"{len(context.config)}, in {FILE}" if context.config else ""),
    ]
    yield markdown(Table("", ("what", "value"), tuple((what, value or "not recorded") for what, value in rows)))
    if context.missing:
        yield f"Not recorded: {'; '.join(context.missing)}."


def _settings(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _rest(remains: Remains) -> Iterator[str]:
    there = [
        f"`{NAME}.json` (all of this for programs)",
        f"`{FILE}`",
        *(f"`{_file(table)}`" for table in remains.tables),
    ]
    if remains.summary is not None:
        there.insert(0, "`report.html` (time line, evidence, tails, worst sequences)")
    yield f"Beside this page: {', '.join(there)}."
    if remains.source:
        yield f"Looked at again by `tracker-diag diagnose {remains.source}`."
    if remains.failures:
        yield "\n".join(
            ["What went wrong in the diagnostics:", "", *(f"- {escaped(failure)}" for failure in remains.failures)]
        )


def _traces(remains: Remains) -> str:
    return "\n".join(f"{ending.what}\n\n{ending.trace.rstrip()}\n" for ending in remains.endings if ending.trace)


def _file(table: Table) -> str:
    return f"{table.name.removeprefix(PREFIX).replace('/', '_')}.json"
