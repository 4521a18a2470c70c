"""Check: what one check shows; Report: all of them."""

import math
from collections.abc import Iterable, Mapping
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
        return Table(TABLE, ("check", "status", "reason", "do"), rows)

    def __rich__(self) -> RenderableType:
        fails, passes = self.with_status("fail"), self.with_status("pass")
        color = "red" if fails else "green" if passes else "yellow"
        rows = labelled(LABEL)
        for i, check in enumerate(fails):
            rows.add_row("" if i else "failed", Text(check.name, style=FAIL))
            rows.add_row("", check.reason)
            rows.add_row("", Text.assemble(("do: ", "dim"), check.do))
        for i, check in enumerate(passes):
            rows.add_row("" if i else "passed", Text.assemble((check.name, PASS), f": {cut(check.reason, 130)}"))
        missing: dict[str, list[str]] = {}
        for check in self.with_status("not checked"):
            missing.setdefault(check.do, []).append(check.name)
        for i, (do, names) in enumerate(missing.items()):
            rows.add_row("" if i else "not checked", Text.assemble((", ".join(names), "dim"), f": {cut(do, 110)}"))
        return Group(Text.assemble(("tracker_diag: ", "dim"), (self.headline, f"bold {color}")), rows)

    def __str__(self) -> str:
        return plain(self)

    __repr__ = __str__
