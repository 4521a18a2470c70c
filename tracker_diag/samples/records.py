"""Sample records: one mapping a sequence, as files and traces hold them, and the columns that `samples` takes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from tracker_diag.samples.columns import NUMBERS, Columns
from tracker_diag.samples.messages import Message, answer, messages_in, plain_text, split

Record: TypeAlias = Mapping[str, Any]
"""By the names of `Columns`, of which each is one value; `prompt` and `completion`, text or messages; `id`, `step`."""

Read: TypeAlias = Callable[[Sequence[Message]], str | None]
"""What text stands in messages."""

PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
TEXTS = ("text", "completion", "response", "output", "answer")
"""Names under which files have the prompt and the completion, the first that is there counts."""

WORDS = {"true": 1.0, "yes": 1.0, "pass": 1.0, "false": 0.0, "no": 0.0, "fail": 0.0, "nan": float("nan")}
OTHERS = ("group", "env", "scorer_error", "policy_version", "calls")


def columns_of(records: Sequence[Record]) -> tuple[Columns, Counter[str]]:
    """What `samples` takes of `records`, and how many values of which column are left out, being no numbers."""
    odd: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for name in NUMBERS:
        if any(name in one for one in records):
            found[name] = [_number(name, one.get(name), odd) for one in records]
    parts = dict.fromkeys(str(part) for one in records for part in _parts(one))
    if parts:
        found["components"] = {
            part: [_number(f"components[{part!r}]", _parts(one).get(part), odd) for one in records] for part in parts
        }
    for name in OTHERS:
        if any(one.get(name) is not None for one in records):
            found[name] = [one.get(name) for one in records]
    if "group" in found:  # lists and mappings cannot be hashed
        found["group"] = [
            one if one is None or isinstance(one, str | int | float) else repr(one) for one in found["group"]
        ]
    if "calls" in found:
        found["calls"] = [_calls(one, odd) for one in found["calls"]]
    said = [text_of(one) for one in records]
    if any(text is not None for text in said):
        found["text"] = said
    return cast("Columns", found), odd


def prompt_of(record: Record) -> str | None:
    """The prompt as text, of messages what the user says; None where the record has none."""
    return _said(record, PROMPTS, _asked, _asked)


def text_of(record: Record) -> str | None:
    """The completion as text: of messages the last answer."""
    return _said(record, TEXTS, answer, lambda whole: answer(split(whole)[1]))


def _said(record: Record, names: Sequence[str], part: Read, whole: Read) -> str | None:
    """The first of `names` that is text or messages; else what `whole` reads of prompt and completion together."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
        if value and (messages := messages_in(value)):
            return part(messages)
    messages = messages_in(record.get("messages"))
    return whole(messages) if messages else None


def _asked(messages: Sequence[Message]) -> str:
    prompt = split(messages)[0]
    return plain_text([one for one in prompt if one["role"] == "user"] or prompt)


def messages_of(record: Record) -> tuple[list[Message], list[Message]]:
    """Prompt and completion as messages; text is taken for one of the user and one of the assistant."""
    prompt, said = messages_in(record.get("prompt")), messages_in(record.get("completion"))
    if not prompt and not said and (messages := messages_in(record.get("messages"))):
        return split(messages)
    text, asked = text_of(record), prompt_of(record)
    return (
        prompt or ([{"role": "user", "content": asked}] if asked is not None else []),
        said or ([{"role": "assistant", "content": text}] if text is not None else []),
    )


def as_number(value: Any) -> float | None:
    """`value` as a number: truth values and words for them count as 1 and 0; None where it is neither."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in WORDS:
            return WORDS[word]
        try:
            return float(word)
        except ValueError:
            return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(name: str, value: Any, odd: Counter[str]) -> float | None:
    if value is None or value == "":
        return None
    found = as_number(value)
    odd[name] += found is None
    return found


def _parts(record: Record) -> Mapping[str, Any]:
    found = record.get("components")
    return found if isinstance(found, Mapping) else {}


def _calls(given: Any, odd: Counter[str]) -> list[Mapping[str, Any]] | None:
    """The calls that have a name; None where they are no list."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        odd["calls"] += 1
        return None
    named: list[Mapping[str, Any]] = []
    for one in given:
        if not isinstance(one, Mapping) or not (one.get("name") or one.get("function")):
            odd["calls"] += 1
            continue
        numbers = {key: as_number(one[key]) for key in ("seconds", "tokens", "truncated") if key in one}
        named.append({**one, **numbers})
    return named
