"""Why a series has no value, or a signal cannot tell: one of a closed list, with the facts that its sentence takes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

from tracker_diag.metrics.series import PAIRS, Pair, SeriesKey, StatKey

Fact: TypeAlias = str | int | float

SAY_TURN = "give begins_after_tool, or turn next to trajectory_ids"
"""What to do where a sequence may begin after a tool result or not."""


class Why(Enum):
    """What is lacking; the value is the sentence, with the names of its facts."""

    NO_STEP = "no step yet"
    UNCHECKED = "no metric and no tensor yet"
    NOT_LOGGED = "no series {series}"
    LOGGED = "only for runs without {series}"
    NOT_MEASURED = "no tensors for {series}"
    NOT_OBSERVED = "no {fields} observed"
    NOT_SET = "not seen with these settings; {how}"
    NOT_SEEN = "not seen with this trainer"
    ON_POLICY = "no signal: the ratio is 1 but for float noise, on-policy by construction"
    FEW_TOKENS = "{have} tokens in the window, {needed} needed; a larger window= holds more"
    FEW_SEQUENCES = "fewer than {needed} sequences in the window"
    FEW_APPLIED = "fewer than {needed} finite applied_weights observed"
    FEW_ADVANTAGES = "fewer than {needed} tokens with an advantage other than 0 observed"
    NO_REFERENCE = "no reference period yet, or too few tokens in it or in the window"
    NO_ERROR = "its sampling error is known in the run itself alone"
    NO_SPREAD = "the weights do not spread enough to compute it"
    FEW_STEPS = "{have} of {needed} steps"
    FEW_VALUES = "{have} of {needed} steps with a value"
    FEW_OF_BOTH = "{have} of {needed} steps with both values"
    SHORT_BASELINE = "baseline has {have} of {needed} steps with a value"
    NOISY_BASELINE = "its baseline varies so much that growth below ×{factor:.0f} cannot be seen"
    ZERO_BASELINE = "the baseline is 0"
    NEW_BASELINE = "the baseline is new"
    ZERO = "{series} is 0"
    NO_RANGE = "{lowest} and {highest} have not differed yet"
    ROUNDED = "{series} is logged in steps of {quantum:g}, too coarse to tell"
    STILL = "one of the two does not move"
    LOST = "no value since step {step}"
    NO_CELLS = "no name of a tool, an environment or a further evaluation observed"
    NO_SETTING = "no setting {keys}"
    NO_RANKS = "no ranks that report through a store"


@dataclass(frozen=True)
class Reason:
    """Why nothing can be said; as text, one sentence."""

    why: Why
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])
    pair: Pair | None = None
    """The pair that it is about, where a rule looks at one."""

    def __str__(self) -> str:
        text = self.why.value.format_map(self.facts)
        return f"{self.pair}: {text}" if self.pair else text

    def about(self, pair: Pair | None) -> "Reason":
        """The same, of a rule that looks at `pair`."""
        return replace(self, pair=pair)

    def state_dict(self) -> dict[str, Any]:
        return {"why": self.why.name, "facts": dict(self.facts), "pair": self.pair}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Reason":
        """The reason that `state_dict` was taken of."""
        return cls(Why[state["why"]], dict(state["facts"]), state["pair"])


def reason(why: Why, **facts: Fact) -> Reason:
    """Say `why`, with the facts that its sentence takes."""
    return Reason(why, facts)


def not_observed(there: Collection[Pair]) -> dict[Pair, Reason]:
    """The pairs that are not among those `there`, and which tensors they lack."""
    given = {field for pair in there for field in PAIRS[pair]}
    lacking: dict[Pair, list[str]] = {
        pair: [field for field in PAIRS[pair] if field not in given] for pair in PAIRS if pair not in there
    }
    return {pair: reason(Why.NOT_OBSERVED, fields=" and ".join(fields)) for pair, fields in lacking.items()}


def no_series(key: SeriesKey) -> Reason:
    """There is no value of `key`: tensors would be needed for a statistic, a log for a metric."""
    return reason(Why.NOT_MEASURED if isinstance(key, StatKey) else Why.NOT_LOGGED, series=str(key))
