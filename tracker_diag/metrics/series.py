"""Series: which ratio pair, which slice and which statistic a number is of. Words and values alone, no tensors."""

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, get_args

Pair: TypeAlias = Literal["policy", "mismatch", "reference"]
"""Which two log-probabilities are subtracted, trainer first."""

PAIRS: dict[Pair, tuple[str, str]] = {
    "policy": ("logprobs", "old_logprobs"),
    "mismatch": ("old_logprobs", "rollout_logprobs"),
    "reference": ("logprobs", "ref_logprobs"),
}

Slice: TypeAlias = Literal["text_only", "post_tool"]

CONTEXT: tuple[Slice, ...] = ("text_only", "post_tool")
"""The dimension `context`: model tokens before any tool result of their sequence, and after one."""

UNKNOWN = "unknown"
"""One more row of `context`: model tokens for which it is unknown whether a tool result comes before them. They count
in `all`, and in no slice that a rule reads."""

ALL = "all"
"""The merge of one dimension's slices, with what is unknown: every model token once."""

FIRST = 16
"""k of `after_tool_k`: how many model tokens after a tool result are kept separate from later ones."""

Dimension: TypeAlias = Literal[
    "context", "after_tool_k", "turn", "advantage", "policy_lag", "control", "tool", "env"
]  # fmt: skip
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

_UP_TO_SEVEN = (*map(str, range(7)), "7_or_more")
FIXED: dict[Dimension, tuple[str, ...]] = {
    "context": (*CONTEXT, UNKNOWN),
    "after_tool_k": (f"first_{FIRST}", "later"),
    "turn": _UP_TO_SEVEN,
    "advantage": ("positive", "negative", "zero"),
    "policy_lag": _UP_TO_SEVEN,
    "control": ("control", "rest"),
}
"""The values of the dimensions that are known beforehand, in the order of their rows."""

NAMED_ROWS = 16
"""Rows of `tool` and `env`: fifteen names in the order in which they appear, and the last for all others."""

OTHER = "other"

CELLS: tuple[Dimension, ...] = ("tool", "env")
"""Dimensions whose slices are known only once they are met: a rule looks at all of them as `tool:*`."""

EVALUATIONS = "eval"
"""Of metrics alone: one of several evaluations."""

ANY = tuple(f"{name}:*" for name in (*CELLS, EVALUATIONS))
"""All slices of such a dimension, as a rule names them."""


@lru_cache(1024)
def any_of(slice: str) -> str | None:
    """The name in `ANY` that `slice` is one of; None if its name was known beforehand."""
    name = f"{slice.partition(':')[0]}:*"
    return name if name in ANY else None


KNOWN: tuple[str, ...] = (
    *CONTEXT,
    ALL,
    *(f"{name}:{value}" for name, values in FIXED.items() if name != "context" for value in values),
)
"""Slices whose names are known beforehand, so that a rule may ask for them."""


class StatKey(str):
    """The key of a statistic of one slice of one pair: the text `policy/post_tool/p95`, and the three that it is of."""

    __slots__ = ("pair", "slice", "stat")

    pair: Pair
    slice: str
    stat: str

    def __new__(cls, pair: Pair, slice: str, stat: str) -> "StatKey":
        key = super().__new__(cls, f"{pair}/{slice}/{stat}")
        key.pair, key.slice, key.stat = pair, slice, stat
        return key

    @classmethod
    def parse(cls, text: str) -> "StatKey | None":
        """The key that `text` is, as a file or a tracker gives it back; None if it is none."""
        pair, *rest = text.split("/")
        return cls(pair, *rest) if pair in PAIRS and len(rest) == 2 else None

    def __reduce__(self) -> tuple[type["StatKey"], tuple[str, str, str]]:
        return StatKey, (self.pair, self.slice, self.stat)


SeriesKey: TypeAlias = str
"""A series that rules read: a `StatKey`, or the canonical name of a metric of the trainer."""


class Rank(NamedTuple):
    """One process of a run of several."""

    number: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.number} on {self.host or 'an unknown host'}"
