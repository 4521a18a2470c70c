"""Sample records: one mapping a sequence, as files and traces hold them, and the columns that `samples` takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from tracker_diag.samples.columns import NUMBERS, Columns
from tracker_diag.samples.messages import Message, answer, messages_in, plain_text, split

Record: TypeAlias = Mapping[str, Any]
"""By the names of `Columns`, of which each is one value; `prompt` and `completion`, text or messages; `id`, `step`."""

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
TEXTS = ("text", "completion", "response", "output", "answer")
"""Names under which files have the prompt and the completion, the first that is there counts."""

WORDS = {"true": 1.0, "yes": 1.0, "pass": 1.0, "false": 0.0, "no": 0.0, "fail": 0.0, "nan": float("nan")}
OTHERS = ("group", "env", "scorer_error", "policy_version", "calls")


def columns_of(records: Sequence[Record]) -> tuple[Columns, tuple[str, ...]]:
    """What `samples` takes of `records`, and a sentence for each column of which values are left out."""
    odd: Counter[str] = Counter()
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        if any(name in record for record in records):
            columns[name] = [number_in(name, record.get(name), odd) for record in records]
    parts = [part if isinstance(part := record.get("components"), Mapping) else {} for record in records]
    names = dict.fromkeys(name for part in parts for name in part)
    if names:
        columns["components"] = {
            str(name): [number_in(f"components[{name!r}]", part.get(name), odd) for part in parts] for name in names
        }
    for name in OTHERS:
        if any(record.get(name) is not None for record in records):
            columns[name] = [record.get(name) for record in records]
    if "group" in columns:  # lists and mappings cannot be hashed
        plain = str | int | float | None
        columns["group"] = [group if isinstance(group, plain) else repr(group) for group in columns["group"]]
    if "calls" in columns:
        columns["calls"] = [_calls(calls, odd) for calls in columns["calls"]]
    texts = [text_of(record) for record in records]
    if any(text is not None for text in texts):
        columns["text"] = texts
    notes = tuple(f"values of {name} that are no numbers, left out: {n}" for name, n in odd.items() if n)
    return cast("Columns", columns), notes


def prompt_of(record: Record) -> str | None:
    """The prompt as text, of messages what the user says; None where the record has none."""
    given = _first(record, PROMPTS)
    if given is None:
        given = messages_in(record.get("messages")) or None
    if given is None or isinstance(given, str):
        return given
    prompt = split(given)[0]
    return plain_text([message for message in prompt if message["role"] == "user"] or prompt)


def text_of(record: Record) -> str | None:
    """The completion as text: of messages the last answer."""
    given = _first(record, TEXTS)
    if given is None and (messages := messages_in(record.get("messages"))):
        given = split(messages)[1]
    return given if given is None or isinstance(given, str) else answer(given)


def _first(record: Record, names: Sequence[str]) -> str | list[Message] | None:
    """The first of `names` that is text or messages."""
    values = (record.get(name) for name in names)
    known = (value if isinstance(value, str) else messages_in(value) or None for value in values)
    return next((value for value in known if value is not None), None)


def messages_of(record: Record) -> tuple[list[Message], list[Message]]:
    """Prompt and completion as messages; text is taken for one of the user and one of the assistant."""
    prompt, completion = messages_in(record.get("prompt")), messages_in(record.get("completion"))
    if not prompt and not completion and (messages := messages_in(record.get("messages"))):
        return split(messages)
    asked, text = prompt_of(record), text_of(record)
    return (
        prompt or ([{"role": "user", "content": asked}] if asked is not None else []),
        completion or ([{"role": "assistant", "content": text}] if text is not None else []),
    )


def as_number(value: Any) -> float | None:
    """`value` as a number: truth values and words for them count as 1 and 0; None where it is neither."""
    word = value.strip().lower() if isinstance(value, str) else value
    try:
        return WORDS[word] if isinstance(word, str) and word in WORDS else float(word)
    except (TypeError, ValueError, OverflowError):
        return None


def number_in(name: str, value: Any, odd: Counter[str]) -> float | None:
    """`value` of the column `name`; None where it is empty, or no number, which is counted in `odd`."""
    if value is None or value == "":
        return None
    number = as_number(value)
    odd[name] += number is None
    return number


def _calls(given: Any, odd: Counter[str]) -> list[Mapping[str, Any]] | None:
    """The calls that have a name; None where they are no list."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        odd["calls"] += 1
        return None
    named = [call for call in given if isinstance(call, Mapping) and (call.get("name") or call.get("function"))]
    odd["calls"] += len(given) - len(named)
    fields = ("seconds", "tokens", "truncated")
    return [{**call, **{field: as_number(call[field]) for field in fields if field in call}} for call in named]
