"""What to do now: the orders of all guards in one frozen value, with a defined precedence where they disagree."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from tracker_diag.guards.checkpoints import Checkpoint, of_state
from tracker_diag.guards.policy import Action
from tracker_diag.rules.alerts import Notice

ABOVE: dict[Action, tuple[Action, ...]] = {
    "rollback": ("stop_training",),
    "stop_update": ("stop_training", "rollback"),
    "skip_batch": ("stop_training", "rollback", "stop_update"),
    "refresh_reference": ("stop_training", "rollback"),
}
"""What gives way to what, where guards that act want both at once. All else goes together: a state is saved, then the
run is evaluated, then what is on top is done."""


@dataclass(frozen=True)
class Order:
    """What one guard wants."""

    do: Action
    incident: str
    """Name of the incident, as in `Summary.incidents`."""
    why: str
    """One sentence for a person: what is or would be done, and why."""
    dry: bool
    """Whether nothing is done: the guard is a dry-run, gave way to another one, or is out of the caller's reach."""


@dataclass(frozen=True)
class Decision:
    """What guards that act want done now; false if that is nothing. Guards in dry-run are not in it."""

    stop: Literal["training", "update"] | None = None
    """`training`: end the run. `update`: no optimiser steps now; asked again after each step until it is None."""
    rollback_to: Checkpoint | None = None
    """Load this one, whose files have just been read and are what they were; then continue to count steps upwards."""
    skip_batch: bool = False
    """Make no optimiser step with the batch at hand."""
    kl_coef: float | None = None
    """Weight of the KL to the reference; None is your own."""
    lr_factor: float = 1.0
    """Multiply your own learning rate by it, in (0, 1]."""
    tool_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By tool, how often tasks that need it are to be drawn, against your own share; `*` is every tool. In (0, 1]."""
    save: bool = False
    """Save the state, before anything else is done."""
    refresh_reference: bool = False
    """Take the policy as it is for the reference; the diagnostics take a new baseline with the next step."""
    reevaluate: bool = False
    """Evaluate now."""
    orders: tuple[Order, ...] = ()
    """What guards that act have said at this call, with the reasons, and what is held on to."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(order.why for order in self.orders)

    def notices(self, step: int, reasons: Collection[str]) -> list[Notice]:
        """The messages to people about what is done at `step`, for orders whose reasons are among `said`."""
        done = [order for order in self.orders if not order.dry and order.why in reasons]
        return [Notice(step, "warn", f"A guard acts: {order.do.replace('_', ' ')}", order.why) for order in done]

    @property
    def ends(self) -> bool:
        """Whether a training that cannot load a checkpoint midway ends here."""
        return self.stop == "training" or self.rollback_to is not None

    @property
    def dry(self) -> bool:
        """Whether guards would do something, and none of them does."""
        return bool(self.orders) and all(order.dry for order in self.orders)

    def __bool__(self) -> bool:
        return any(not order.dry for order in self.orders)

    def state_dict(self) -> dict[str, Any]:
        """In JSON values, for other ranks."""
        return asdict(self) | {"tool_weights": dict(self.tool_weights)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Decision":
        to, orders = state["rollback_to"], tuple(Order(**order) for order in state["orders"])
        kept: dict[str, Any] = {**state, "rollback_to": of_state(to) if to else None, "orders": orders}
        return cls(**kept)


Value: TypeAlias = float | dict[str, float] | Checkpoint | None
"""What an order sets, or loads."""


@dataclass(frozen=True)
class Wish:
    """An order with its value."""

    order: Order
    value: Value = None


def strength(do: Action) -> int:
    """The more, the more gives way to it."""
    return sum(do in above for above in ABOVE.values())


def smallest(weights: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The smallest weight of each tool."""
    least: dict[str, float] = {}
    for given in weights:
        for tool, weight in given.items():
            least[tool] = min(weight, least.get(tool, weight))
    return least


def overruled(do: Action, wanted: Collection[Action]) -> Action | None:
    """The action among those `wanted` that `do` gives way to, the strongest first."""
    return next((above for above in ABOVE.get(do, ()) if above in wanted), None)


def decided(wishes: Sequence[Wish]) -> Decision:
    """One decision of all that is wanted.

    Of two learning rates or two weights of a tool the smaller counts. Of two KL coefficients the larger counts, of two
    checkpoints the earlier. None of `wishes` overrules another one any more.
    """
    acting = [wish for wish in wishes if not wish.order.dry]
    does = {wish.order.do for wish in acting}
    numbers = [(wish.order.do, wish.value) for wish in acting if isinstance(wish.value, float)]
    checkpoints = [wish.value for wish in acting if isinstance(wish.value, Checkpoint)]
    return Decision(
        stop="training" if "stop_training" in does else "update" if "stop_update" in does else None,
        rollback_to=min(checkpoints, key=lambda checkpoint: checkpoint.step, default=None),
        skip_batch="skip_batch" in does,
        kl_coef=max((value for do, value in numbers if do == "kl_cap"), default=None),
        lr_factor=min((value for do, value in numbers if do == "scale_lr"), default=1.0),
        tool_weights=smallest(wish.value for wish in acting if isinstance(wish.value, dict)),
        save="save_state" in does,
        refresh_reference="refresh_reference" in does,
        reevaluate="reevaluate" in does,
        orders=tuple(wish.order for wish in wishes),
    )
