"""Folder: what ended a run and all that is known of it, as files for people and programs.

It is written next to its place and then moved there, so that it is whole or absent. Secrets are starred in all of it;
tokens and texts are in it only where they may be shown in the tracker as well.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tracker_diag.errors import MissingExtra
from tracker_diag.health import own_folder, private
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.monitor.context import FILE, Context
from tracker_diag.records import Table
from tracker_diag.report.html import render_html
from tracker_diag.report.markdown import escaped, markdown, note_on
from tracker_diag.report.tables import CHECKPOINTS, brief, by_growth
from tracker_diag.rules.triage import Summary, diagnose_command
from tracker_diag.scrub import without_secrets

NAME = "postmortem"
"""Of the folder, below that of the journals and below `diag/` in a tracker."""
PAGE = "README.md"
"""What a person reads first."""
TRACE = "traceback.txt"
SLICES = f"{PREFIX}slices"

LINES = 25
"""Of a traceback, its last ones, in the page."""
EVENTS, ROWS = 10, 12
"""The last ones, and the slices that have grown most, in the page."""

NON_FINITE = "NUM004"
"""The rule that reports NaN in what the parameters are made of."""

Cause: TypeAlias = Literal["exception", "nan", "stop", "status", "end"]


@dataclass(frozen=True)
class Ending:
    """One thing that ended a run, or had a part in it."""

    cause: Cause
    """`stop`: a guard's. `status`: as its tracker says. `end`: nothing is known but that it is over."""
    what: str
    """In one line."""
    trace: str = ""
    """The traceback."""


def nan_at_the_end(summary: Summary) -> Iterator[Ending]:
    """NaN that is there to the end, as where a run is stopped for it."""
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
    summary: Summary
    tables: Sequence[Table] = ()
    """Windows, worst sequences, checkpoints and samples, as they go to the tracker."""
    events: Sequence[tuple[int, str]] = ()
    """What was done on purpose, by step."""
    health: Mapping[str, int] = field(default_factory=dict[str, int])
    failures: Sequence[str] = ()


def write(remains: Remains, place: Path) -> Path:
    """Write the files into a new folder at `place`; where there is one, `-2`, `-3`, ... follow its name."""
    own_folder(place.parent)
    new = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a process of the same number that was killed here
    try:
        new.mkdir(mode=0o700)
        for name, content in files(remains).items():
            private(new / name, content)
        later = (place.with_name(f"{place.name}-{number}") for number in count(2))
        return new.rename(next(free for free in chain([place], later) if not free.exists()))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def files(remains: Remains) -> dict[str, str]:
    """The files by name, the page first."""
    remains = _starred(remains)  # before anything is escaped, as a secret is then another text
    texts = {
        PAGE: page(remains),
        f"{NAME}.json": json.dumps(to_json(remains), indent=1),
        FILE: json.dumps(remains.context.to_json(), indent=1),
        **{_file(table): json.dumps({"columns": table.columns, "data": table.rows}) for table in remains.tables},
    }
    if trace := _traces(remains):
        texts[TRACE] = trace
    with suppress(MissingExtra):  # the page has what matters
        texts["report.html"] = render_html(remains.summary, remains.tables, note=f"Ended by {remains.endings[0].what}.")
    return {name: without_secrets(text) for name, text in texts.items()}


def _starred(remains: Remains) -> Remains:
    return replace(
        remains,
        source=without_secrets(remains.source),
        endings=tuple(Ending(end.cause, *map(without_secrets, (end.what, end.trace))) for end in remains.endings),
        events=[(step, without_secrets(event)) for step, event in remains.events],
        failures=[*map(without_secrets, remains.failures)],
    )


def to_json(remains: Remains) -> dict[str, Any]:
    """All of it but the tables and traces, which have files of their own."""
    return {
        "run": remains.run,
        "source": remains.source,
        "ended": [{"cause": ending.cause, "what": ending.what} for ending in remains.endings],
        "diagnosis": remains.summary.to_json(),
        "context": remains.context.to_json(),
        "events": [list(event) for event in remains.events],
        "health": dict(remains.health),
        "failures": list(remains.failures),
        "tables": [_file(table) for table in remains.tables],
    }


def page(remains: Remains) -> str:
    """The page in Markdown: what ended the run, what broke first, its last windows, from what to repeat it."""
    summary, (first, *others) = remains.summary, remains.endings
    after = "" if summary.last_step is None else f", after step {summary.last_step}"
    parts = [f"# {escaped(remains.run)}: what ended it", f"**{escaped(first.what)}**{after}."]
    if others:
        parts.append("\n".join(f"- then {escaped(ending.what)}" for ending in others))
    command = diagnose_command(remains.source)
    parts += ["## What broke first", note_on(summary, f"`{command}` shows it again." if command else "")]
    tables = {table.name: table for table in remains.tables}
    if SLICES in tables:
        slices = brief(by_growth(tables[SLICES]))
        parts += ["## The last windows", markdown(replace(slices, rows=slices.rows[:ROWS]))]
        if len(slices.rows) > ROWS:
            parts.append(f"And {len(slices.rows) - ROWS} more slices, in `{_file(slices)}`.")
    if trace := _traces(remains):
        shown = trace.rstrip().splitlines()[-LINES:]
        parts += [
            "## Where it ended",
            "\n".join(f"    {line}" for line in shown),
            f"All of it is in [{TRACE}]({TRACE}).",
        ]
    events = [(step, event) for step, event in remains.events if "\n" not in event]  # others are pages by themselves
    if events:
        parts += ["## Events", "\n".join(f"- step {step}: {escaped(event)}" for step, event in events[-EVENTS:])]
    parts += ["## Checkpoints", markdown(tables[CHECKPOINTS]) if CHECKPOINTS in tables else "None was registered."]
    parts += _repeated(remains.context)
    if remains.failures:
        parts += ["## What went wrong in the diagnostics", "\n".join(f"- {escaped(text)}" for text in remains.failures)]
    return "\n\n".join(parts) + "\n"


def _repeated(context: Context) -> Iterator[str]:
    code, parts = context.code, ("seed", "data", "evaluation", "versions")
    known = {
        "code": f"{code.commit}{', with changes that are not committed' * code.dirty}" if code else "",
        **{part: ", ".join(f"{name}={value}" for name, value in getattr(context, part).items()) for part in parts},
        "settings": f"{len(context.config)}, in {FILE}" if context.config else "",
    }
    yield "## To repeat it"
    yield markdown(Table("", ("what", "value"), tuple((name, it or "not recorded") for name, it in known.items())))
    if context.missing:
        yield f"Not recorded: {'; '.join(context.missing)}."


def _traces(remains: Remains) -> str:
    return "\n".join(f"{ending.what}\n\n{ending.trace.rstrip()}\n" for ending in remains.endings if ending.trace)


def _file(table: Table) -> str:
    return f"{table.name.removeprefix(PREFIX).replace('/', '_')}.json"
