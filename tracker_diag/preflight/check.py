"""Check: what one check found; Report: what all of them did."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Table
from tracker_diag.report.console import cut, labelled, plain

Status: TypeAlias = Literal["fail", "pass", "not checked"]

TABLE = f"{PREFIX}preflight"
"""Name of the table in the tracker."""

LABEL = 11
FAIL, PASS = "bold red", "green"


@dataclass(frozen=True)
class Check:
    """What one check found, and on which numbers."""

    name: str
    status: Status
    reason: str
    do: str = ""
    """What to do about it; of a check that was not made, what to give so that it is."""
    values: Mapping[str, float] = field(default_factory=dict[str, float])


def passed(name: str, reason: str, **values: float) -> Check:
    """Nothing is wrong."""
    return Check(name, "pass", reason, values=values)


def failed(name: str, reason: str, do: str, **values: float) -> Check:
    """Something is, and what to do about it."""
    return Check(name, "fail", reason, do, values)


def unchecked(name: str, reason: str, do: str) -> Check:
    """It could not be looked at, and what to give so that it is."""
    return Check(name, "not checked", reason, do)


Flaw: TypeAlias = tuple[object, str, str]
"""Whether it is there, what is wrong then, and what to do."""


def judged(name: str, told: str, flaws: Iterable[Flaw], **values: float) -> Check:
    """Fails with the first of `flaws` that is there; passes with what is `told` if none is."""
    for there, reason, do in flaws:
        if there:
            return failed(name, reason, do, **values)
    return passed(name, told, **values)


@dataclass(frozen=True, repr=False)
class Report:
    """What all checks found, in the order of the training loop: environment first, resources last."""

    checks: tuple[Check, ...]

    def of(self, status: Status) -> tuple[Check, ...]:
        """The checks that ended so."""
        return tuple(check for check in self.checks if check.status == status)

    @property
    def exit_code(self) -> int:
        """1 if a check failed, else 0."""
        return int(bool(self.of("fail")))

    @property
    def headline(self) -> str:
        """All of it in one line."""
        fails, passes, rest = (len(self.of(status)) for status in get_args(Status))
        return f"preflight: {fails} failed, {passes} passed, {rest} not checked"

    def to_json(self) -> dict[str, Any]:
        """JSON values; `passed` says that no check failed. A number that is not finite is None."""
        checks = [
            {"check": one.name, "status": one.status, "reason": one.reason, "do": one.do, "values": _finite(one.values)}
            for one in self.checks
        ]
        return {"passed": not self.of("fail"), "checks": checks}

    def table(self) -> Table:
        """One row a check, as trackers show it."""
        rows = tuple((one.name, one.status, one.reason, one.do) for one in self.checks)
        return Table(TABLE, ("check", "status", "reason", "do"), rows)

    def __rich__(self) -> RenderableType:
        color = "red" if self.of("fail") else "green" if self.of("pass") else "yellow"
        rows = labelled(LABEL)
        for heading, one in zip(_once("failed", self.of("fail")), self.of("fail"), strict=True):
            rows.add_row(heading, Text(one.name, style=FAIL))
            rows.add_row("", one.reason)
            rows.add_row("", Text.assemble(("do: ", "dim"), one.do))
        for heading, one in zip(_once("passed", self.of("pass")), self.of("pass"), strict=True):
            rows.add_row(heading, Text.assemble((one.name, PASS), f": {cut(one.reason, 130)}"))
        for heading, (do, names) in zip(*_grouped(self.of("not checked")), strict=True):
            rows.add_row(heading, Text.assemble((", ".join(names), "dim"), f": {cut(do, 110)}"))
        return Group(Text.assemble(("tracker_diag: ", "dim"), (self.headline, f"bold {color}")), rows)

    def __str__(self) -> str:
        return plain(self)

    __repr__ = __str__


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}


def _once(label: str, of: Sequence[object]) -> list[str]:
    """A label for the first row of a part alone."""
    return [label, *[""] * len(of)][: len(of)]


def _grouped(checks: Iterable[Check]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Checks that were not made, by what to give so that they are."""
    by: dict[str, list[str]] = {}
    for one in checks:
        by.setdefault(one.do, []).append(one.name)
    return _once("not checked", list(by)), list(by.items())
