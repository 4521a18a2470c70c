"""What a guard may say. Data only, in Python or in a YAML file; each guard is a dry-run unless it says `act: true`."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from tracker_diag.errors import RuleError, UnknownName
from tracker_diag.metrics.series import ANY, KNOWN, any_of
from tracker_diag.metrics.yaml_files import Place, YamlFile
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident
from tracker_diag.rules.model import Link, Severity
from tracker_diag.rules.nodes import Node

Action: TypeAlias = Literal[
    "save_state", "skip_batch", "stop_update", "stop_training", "rollback",
    "kl_cap", "scale_lr", "cap_tool_share", "refresh_reference", "reevaluate",
]  # fmt: skip

ACTIONS: tuple[Action, ...] = get_args(Action)

BOUNDS: dict[Action, tuple[float, float] | None] = {
    "kl_cap": None, "scale_lr": (0.1, 1.0), "cap_tool_share": (0.1, 1.0),
}  # fmt: skip
"""Actions that set a number, and its bounds where none are given; None where they must be."""

HELD: frozenset[Action] = frozenset({"stop_update", *BOUNDS})
"""What continues until the incident is over; all else is done once."""


def _known_slice(name: str) -> str:
    if name not in (*KNOWN, *ANY) and any_of(name) is None:
        raise UnknownName("slice", name, (*KNOWN, *ANY))
    return name


class On(Node):
    """What an incident must have: a finding that is firing now, all three at once by one of `rules`, `links`, `slices`.

    What is left out may be any.
    """

    rules: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    slices: tuple[Annotated[str, AfterValidator(_known_slice)], ...] = ()
    """`post_tool`, `tool:search`, `tool:*` for each tool, and the like."""
    severity: Severity = "warn"
    """The incident's own, at least: error is one that has harmed the outcome."""

    def holds(self, incident: Incident) -> bool:
        """Whether `incident` is one of these, now."""
        severe = SEVERITIES.index(incident.severity) >= SEVERITIES.index(self.severity)
        return (
            severe
            and not incident.acknowledged
            and any(finding.state == "firing" and self._of(finding) for finding in incident.findings)
        )

    def _of(self, finding: Finding) -> bool:
        return (
            (not self.rules or finding.rule.id in self.rules)
            and (not self.links or finding.rule.link in self.links)
            and (not self.slices or finding.slice in self.slices or any_of(finding.slice) in self.slices)
        )


class Guard(Node):
    """One policy: on which incidents to do what, within which limits.

    It acts once for an incident; again only if that gets worse, and the limits allow it.
    """

    do: Action
    """What to do; docs/guards.md tells of each."""
    on: On = On()
    """On which incidents; on all of severity warn and above if left out."""
    act: bool = False
    """False is a dry-run: what would be done is written to the tracker, and nothing is done."""
    most: int = Field(default=3, ge=1)
    """Times that it acts in a run, at most."""
    cooldown: int = Field(default=50, ge=0)
    """Steps after it has acted in which it does not act again."""
    hold: int = Field(default=50, ge=1)
    """Steps that it holds on at most, where it does not act once: stop_update, kl_cap, scale_lr and cap_tool_share."""
    bounds: tuple[float, float] | None = None
    """Of the KL coefficient, of the factor of the learning rate, or of a tool's weight: lowest and highest."""
    target: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Nats of KL that kl_cap aims at."""

    @model_validator(mode="after")
    def _fits(self) -> "Guard":
        if self.bounds is not None and self.do not in BOUNDS:
            raise ValueError(f"bounds: given for {self.do}, expected none; they go with {', '.join(BOUNDS)}")
        if (self.target is None) == (self.do == "kl_cap"):
            expected = "the nats of KL to aim at" if self.target is None else "none; it goes with kl_cap"
            raise ValueError(f"target: {self.target} given for {self.do}, expected {expected}")
        if self.do in BOUNDS:
            self._check_bounds()
        return self

    def _check_bounds(self) -> None:
        highest = float("inf") if self.do == "kl_cap" else 1.0
        bounds = self.bounds or BOUNDS[self.do]
        if bounds is None:
            raise ValueError("bounds: nothing given for kl_cap, expected the lowest and the highest coefficient")
        low, high = bounds
        if not (0 < low <= high <= highest and high < float("inf")):
            limit = "" if self.do == "kl_cap" else " ≤ 1"
            raise ValueError(f"bounds: {low:g}, {high:g} given for {self.do}, expected 0 < lowest ≤ highest{limit}")

    @property
    def within(self) -> tuple[float, float]:
        """The bounds, or those of the action where none are given; of an action without a number, 1 and 1."""
        return self.bounds or BOUNDS.get(self.do) or (1.0, 1.0)


Guarded: TypeAlias = Sequence[Guard] | str | Path
"""Guards as they are, or the YAML file with a list of them."""


def guards_of(own: Guarded, rules: Collection[str]) -> tuple[Guard, ...]:
    """The guards that `own` is or that stand in its file.

    Args:
        rules: ids of those that the run is held against.
    """
    guards = _load(Path(own)) if isinstance(own, str | Path) else tuple(own)
    for guard in guards:
        if not isinstance(guard, Guard):  # pyright: ignore[reportUnnecessaryIsInstance]  # who checks no types
            raise RuleError(f"guards: {type(guard).__name__} given, expected Guard(do=...), or a YAML file")
        for rule in guard.on.rules:
            if rule not in rules:
                raise UnknownName("guards: on.rules", rule, tuple(rules))
    return guards


class _Guards(BaseModel):
    guards: tuple[Guard, ...]


def _load(file: Path) -> tuple[Guard, ...]:
    content = YamlFile.load(file, RuleError)
    if not isinstance(content.data, dict) or [*content.data] != ["guards"] or not content.data["guards"]:
        raise RuleError(f"{file}:1: expected `guards:` and a list below it, each with `do`, and what else a guard has")
    listed = content.data["guards"]
    given = [_with_on(guard) for guard in listed] if isinstance(listed, list) else listed
    try:
        return _Guards.model_validate({"guards": given}).guards
    except ValidationError as error:
        raise RuleError(content.refused(error, _fields)) from error


def _with_on(guard: Any) -> Any:
    """A guard as it was meant: in YAML 1.1 the word `on` is true."""
    return {"on" if key is True else key: value for key, value in guard.items()} if isinstance(guard, dict) else guard


def _fields(place: Place) -> Collection[str]:
    """The names that may stand where `place` is."""
    return (On if "on" in place[:-1] else Guard).model_fields
