"""Check: what one check shows; Report: all of them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Table
from tracker_diag.report.console import add_rows, cut, labelled, plain

Status: TypeAlias = Literal["fail", "pass", "not checked"]


@dataclass(frozen=True)
class Check:
    """What one check shows, and on which numbers."""

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
    """Something is wrong, and what to do about it."""
    return Check(name, "fail", reason, do, values)


def unchecked(name: str, reason: str, do: str) -> Check:
    """It could not be checked, and what to give so that it can."""
    return Check(name, "not checked", reason, do)


Flaw: TypeAlias = tuple[object, str, str]
"""Whether it is there, what is wrong then, and what to do."""


def judged(name: str, reason: str, flaws: Iterable[Flaw], **values: float) -> Check:
    """Fails with the first of `flaws` that is there; passes with `reason` if none is."""
    for there, wrong, do in flaws:
        if there:
            return failed(name, wrong, do, **values)
    return passed(name, reason, **values)


@dataclass(frozen=True, repr=False)
class Report:
    """All checks, in the order of the training loop: environment first, resources last."""

    checks: tuple[Check, ...]

    def with_status(self, status: Status) -> tuple[Check, ...]:
        """The checks that have this status."""
        return tuple(check for check in self.checks if check.status == status)

    @property
    def exit_code(self) -> int:
        """1 if a check failed, else 0."""
        return int(bool(self.with_status("fail")))

    @property
    def headline(self) -> str:
        """The numbers of checks by status, in one line."""
        fails, passes, rest = (len(self.with_status(status)) for status in get_args(Status))
        return f"preflight: {fails} failed, {passes} passed, {rest} not checked"

    def to_json(self) -> dict[str, Any]:
        """JSON values; `passed` is true if no check failed. A number that is not finite is None."""
        rows = [
            {"check": check.name, "status": check.status, "reason": check.reason, "do": check.do}
            | {"values": {name: float(n) if math.isfinite(n) else None for name, n in check.values.items()}}
            for check in self.checks
        ]
        return {"passed": not self.exit_code, "checks": rows}

    def table(self) -> Table:
        """One row a check, as trackers show it."""
        rows = tuple((check.name, check.status, check.reason, check.do) for check in self.checks)
        return Table(f"{PREFIX}preflight", ("check", "status", "reason", "do"), rows)

    def __rich__(self) -> RenderableType:
        fails, passes, rest = map(self.with_status, get_args(Status))
        color = "red" if fails else "green" if passes else "yellow"
        failures = (
            (Text(check.name, style="bold red"), check.reason, Text.assemble(("do: ", "dim"), check.do))
            for check in fails
        )
        missing: dict[str, list[str]] = {}
        for check in rest:
            missing.setdefault(check.do, []).append(check.name)
        rows = labelled(11)
        add_rows(rows, "failed", chain.from_iterable(failures))
        add_rows(rows, "passed", (Text.assemble((it.name, "green"), f": {cut(it.reason, 130)}") for it in passes))
        unmade = (Text.assemble((", ".join(names), "dim"), f": {cut(do, 110)}") for do, names in missing.items())
        add_rows(rows, "not checked", unmade)
        return Group(Text.assemble(("tracker_diag: ", "dim"), (self.headline, f"bold {color}")), rows)

    def __str__(self) -> str:
        return plain(self)

    __repr__ = __str__
