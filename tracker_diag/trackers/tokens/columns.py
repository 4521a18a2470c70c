"""Columns: what a token table may have, under which names, and of which type each must be."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tracker_diag.errors import SourceError, UnknownName, nearest
from tracker_diag.metrics.series import PAIRS

LOGPROB_COLUMNS = {
    "logprob": "logprobs",
    "old_logprob": "old_logprobs",
    "rollout_logprob": "rollout_logprobs",
    "ref_logprob": "ref_logprobs",
}
"""Columns of log-probabilities, and the arguments of `observe` that they are."""
PAIR_COLUMNS = {
    pair: tuple(name for name, argument in LOGPROB_COLUMNS.items() if argument in both) for pair, both in PAIRS.items()
}
"""The two columns that each ratio pair needs."""
LABEL_COLUMNS = {"turn": "turn", "policy_lag": "policy_lag", "advantage": "advantages", "control": "control"}
NAMED_COLUMNS = ("tool", "env", "prompt")
AUDIT_COLUMNS = {
    "in_loss": "loss_mask",
    "token_id": "token_ids",
    "logprob_again": "logprobs_again",
}
"""Columns for checks before training, which `observe` does not take."""
REQUIRED = ("step", "sequence", "position", "is_model")
IMPLIED = ("sequence", "position")
"""Of those what a table with a list in each row has by itself: its rows, and the places in its lists."""
KINDS = {
    **dict.fromkeys(("step", "sequence", "position"), "integer"),
    **dict.fromkeys(("is_model", "after_tool"), "boolean"),
    **dict.fromkeys(LOGPROB_COLUMNS, "floating"),
    **dict.fromkeys(("tool", "env", "token"), "string"),
    "prompt": "string or integer",
    **dict.fromkeys(("turn", "policy_lag"), "integer"),
    "advantage": "floating",
    "control": "boolean",
    "in_loss": "boolean",
    "token_id": "integer",
    "logprob_again": "floating",
}
"""The columns that are read, with the kind of type that each must have."""


@dataclass(frozen=True)
class Layout:
    """Where the columns of `KINDS` are in a file."""

    names: Mapping[str, str]
    """Of each column that the file has, its name there."""
    nested: bool
    """Whether a row is a sequence, with a list in each column that has a value for each token."""
    coded: tuple[str, ...] = ()
    """Columns, as the file names them, that are read as codes and a dictionary of texts."""

    @classmethod
    def of_schema(
        cls, where: str, schema: Any, renamed: Mapping[str, str], known: Collection[str] = (), *, audit: bool = False
    ) -> "Layout":
        """The layout of the file `where`, of this Arrow schema; `AUDIT_COLUMNS` are read with `audit` alone.

        `renamed` is what the file calls columns that have another name here; of `known` ones the path says the value.
        """
        for name, theirs in renamed.items():
            if name not in KINDS:
                raise UnknownName("--columns", name, tuple(KINDS))
            if theirs not in schema.names:
                raise SourceError(f"{where}: no column {theirs}{nearest(theirs, schema.names, otherwise=True)}")
        wanted = [name for name in KINDS if audit or name not in AUDIT_COLUMNS]
        names = {name: renamed.get(name, name) for name in wanted if renamed.get(name, name) in schema.names}
        nested = any(is_list(schema.field(names[name]).type) for name in LOGPROB_COLUMNS if name in names)
        there, it_has = {*names, *known, *(IMPLIED if nested else ())}, f"it has {', '.join(schema.names)}"
        if there.isdisjoint(LOGPROB_COLUMNS):
            raise SourceError(
                f"{where}: no log-probabilities, none of {', '.join(LOGPROB_COLUMNS)}; {it_has}. "
                "Name them with --columns logprob=…; `tracker-diag audit` looks at texts and rewards"
            )
        if missing := [name for name in REQUIRED if name not in there]:
            raise SourceError(f"{where}: column {missing[0]} is missing; {it_has}")
        for name, theirs in names.items():
            given = schema.field(theirs).type
            given = given.value_type if is_list(given) else given
            if not _may_hold(given, KINDS[name]):
                raise SourceError(f"{where}: column {theirs}: {given} given, expected {KINDS[name]}")
        named = [names[name] for name in NAMED_COLUMNS if name in names]
        return cls(names, nested, tuple(name for name in named if _is_text(schema.field(name).type)))


def is_list(given: Any) -> bool:
    """Whether an Arrow type is of lists."""
    from pyarrow import types

    return bool(types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given))


def _is_text(given: Any) -> bool:
    """Whether the type `given` is of texts, or a dictionary of them."""
    from pyarrow import types

    given = given.value_type if types.is_dictionary(given) else given
    return any(getattr(types, f"is_{name}")(given) for name in ("null", "string", "large_string", "string_view"))


def _may_hold(given: Any, kind: str) -> bool:
    """Whether values of the type `given` may be of `kind`: numbers may be whole ones or truth values all the same."""
    from pyarrow import types

    if "string" in kind:
        return _is_text(given) or (kind == "string or integer" and bool(types.is_integer(given)))
    whole = types.is_boolean(given) or types.is_integer(given)
    return bool(types.is_null(given) or types.is_floating(given) or (whole and kind != "floating"))
