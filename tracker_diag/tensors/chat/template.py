"""The delimiters of a chat template, found by rendering conversations whose contents are known."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tracker_diag.errors import DiagError

FIRST, LAST = 0xF0000, 0xFFFFD
"""Unicode gives no characters here; one stands for each added token, so that no other text can spell it."""
ADDED = f"[{chr(FIRST)}-{chr(LAST)}]"

USER, REPLY, LATER, AGAIN, NAME, KEY, VALUE, RESULT, NAME2, VALUE2 = (
    f"q{word}q" for word in ("user", "reply", "later", "again", "name", "key", "value", "result", "second", "other")
)
"""Contents of the conversations that are rendered: words that no template has or changes."""
CALL_IDS = ("qcallqid1", "qcallqid2")
"""Nine letters and digits, as Mistral's templates ask."""

SIGN, BYTE = re.compile(r"[^\w\s]"), re.compile("<0x[0-9A-F]{2}>$")

Message: TypeAlias = dict[str, Any]


class ChatError(DiagError, ValueError):
    """A chat template in which the turns cannot be told apart; the message says what was not found."""


@dataclass(frozen=True)
class Delimiters:
    """Patterns over text in which a character stands for each added token."""

    opens: str
    """What stands before a turn of the model."""
    stops: str
    """What ends a turn of the model."""
    pauses: str
    """What ends a turn of the model unless the model opens its next message right after it."""
    others: str
    """What opens a turn that is not the model's."""
    result: str | None
    """What opens a tool result, with its name if the template writes it; None if the template takes none."""
    call: str | None
    """What opens a tool call, with its name; None if the template writes none."""
    call_end: str
    """What closes a tool call before the end of the turn."""
    added: Mapping[int, str]
    """The characters of added tokens by id."""


class _Template:
    """Renders conversations, with a character for each added token."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
        self.tokenizer, self.arguments = tokenizer, arguments
        # Added tokens without a sign in them are words or spaces, no delimiters; and bytes are text.
        signs = [one for one in tokenizer.get_added_vocab().items() if SIGN.search(one[0]) and not BYTE.match(one[0])]
        self.characters = {text: chr(FIRST + i) for i, (text, _) in enumerate(signs[: LAST - FIRST])}
        self.added = {token: self.characters[text] for text, token in signs[: LAST - FIRST]}

    def render(self, *messages: Message, prompt: bool = False) -> str:
        """What follows the first user's content, with the prompt for the model's next turn if asked for."""
        kind = {"type": "string", "description": "a key"}
        parameters = {"type": "object", "properties": {KEY: kind}, "required": [KEY]}
        tools = [
            {"type": "function", "function": {"name": name, "description": "a tool", "parameters": parameters}}
            for name in (NAME, NAME2)
        ]
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt, tools=tools, **self.arguments
            )
        except Exception as error:  # of jinja, or whatever a template raises
            raise ChatError(f"chat template: {type(error).__name__}: {error}") from error
        for added in sorted(self.characters, key=len, reverse=True):
            text = text.replace(added, self.characters[added])
        if USER not in text:
            raise ChatError("chat template: leaves out the user's text, expected it as it was given")
        return _after(text, USER)

    def tries(self, *messages: Message) -> str:
        """`render`, or "" where the template takes no such conversation."""
        try:
            return self.render(*messages)
        except ChatError:
            return ""


def read(tokenizer: Any, arguments: Mapping[str, Any]) -> Delimiters:
    """The delimiters of the chat template of `tokenizer`, rendered with `arguments`; ChatError if there are none."""
    template = _Template(tokenizer, arguments)
    user, later = ({"role": "user", "content": text} for text in (USER, LATER))
    reply, again = ({"role": "assistant", "content": text} for text in (REPLY, AGAIN))
    closing, prompted = template.render(user), template.render(user, prompt=True)
    history = template.render(user, reply, later, again)
    before, between = _until(history, REPLY), _until(_after(history, REPLY), LATER)
    before_again = _until(_after(history, LATER), AGAIN)
    ending = _after(template.render(user, reply), REPLY)

    opens = {_prompt(closing, prompted)}
    if prompted != closing:  # a history may leave out what a prompt begins for the model, its thoughts say
        opens.add(_shared(prompted, before)[len(closing) :])
    opens = {text for text in opens if text.strip()}
    if not opens:
        raise ChatError("chat template: nothing between user and assistant, expected what opens the model's turn")

    # Which of `between` ends the model's turn, and which opens the user's?
    shared = _shared(ending, between)
    stop, pause, opens_user = shared.strip(), "", between[len(shared) :]
    if not stop:
        stop, added = ending.strip(), list(re.finditer(ADDED, between))
        if stop and len(added) > 1:  # a turn is ended in another way if one follows
            pause, opens_user = between[: added[0].end()], between[added[0].end() :]
    if not opens_user.strip():  # the model stops with what opens the next turn
        stop, opens_user = "", between
    if not opens_user.strip():
        raise ChatError("chat template: nothing between assistant and user, expected what opens the user's turn")

    thoughts = {_without(text, closing, opens) for text in (before, before_again)}
    tools = _read_tools(template, user, reply, opens, opens_user)
    if tools.before_name is not None:
        thought = max((one for one in thoughts if tools.before_name.startswith(one)), key=len, default="")
        tools.call = _read_call(template, user, tools.before_name.removeprefix(thought), tools.arguments)
    return Delimiters(
        opens=_either(opens | tools.opens),
        stops=_either({stop, *tools.stops}),
        pauses=_either({pause}),
        others=_either({text for text in (opens_user, *tools.begins) if re.search(ADDED, text) or not stop}),
        result=tools.result,
        call=tools.call,
        call_end=tools.call_end,
        added=template.added,
    )


@dataclass
class _Tools:
    """What a template writes around calls and results of tools; nothing if it takes none."""

    opens: set[str] = field(default_factory=set[str])
    stops: set[str] = field(default_factory=set[str])
    begins: set[str] = field(default_factory=set[str])
    result: str | None = None
    call: str | None = None
    call_end: str = ""
    before_name: str | None = None
    """What stands between what opens the model's turn and the name of the tool that it calls."""
    arguments: object = None
    """Those of the call, as the template takes them."""


def _read_tools(template: _Template, user: Message, reply: Message, opens: set[str], opens_user: str) -> _Tools:
    result = {"role": "tool", "name": NAME, "tool_call_id": CALL_IDS[0], "content": RESULT}
    arguments: tuple[object, ...] = ({KEY: VALUE}, json.dumps({KEY: VALUE}))  # DeepSeek's templates take text
    for given in arguments:
        call = _call((NAME, given))
        text = template.tries(user, call, result)
        if all(word in text for word in (NAME, VALUE, RESULT)):
            break
    else:  # no call is written; a result may be all the same
        given, call, text = None, reply, template.tries(user, reply, result)
    if RESULT not in text:
        return _Tools()

    last = VALUE if given is not None else REPLY
    between = _until(_after(text, last), RESULT)
    shared = _shared(_after(template.tries(user, call), last), between)
    two = template.tries(user, _call((NAME, given), (NAME2, given)))
    inside = _until(_after(two, last), NAME2) if NAME2 in two else ""
    # What stands between two calls of a turn as well does not end that turn.
    tools = _Tools(stops={mark for mark in re.findall(f"{ADDED}$", shared.rstrip()) if mark not in inside})
    begins = between[len(shared) :]
    cuts = [*(mark.end() for mark in re.finditer(f"{ADDED}|{NAME}", begins)), len(begins)]
    own = (begins[:cut].strip() for cut in cuts)
    begins = next((text for text in own if text and not any(o.startswith(text) for o in (opens_user, *opens))), "")
    if not begins:
        raise ChatError("chat template: a tool's result begins as a user's turn, expected a delimiter of its own")
    # The name may stand behind what tells that it is a result.
    before, name, _ = between[len(shared) :].partition(NAME)
    tools.begins = {begins}
    tools.result = _named(begins) if name in begins else f"{_named(before + name)}|{_literal(begins)}"
    if not re.search(ADDED, begins):  # a user may write it too, but not right after the model's turn
        tools.result = rf"^\s*(?:{tools.result})"

    opening = _prompt(_after(text, RESULT), _after(template.render(user, call, result, prompt=True), RESULT))
    if not opening.strip():
        raise ChatError("chat template: nothing after a tool's result, expected what opens the model's next turn")
    tools.opens = {opening}
    if given is not None:
        tools.arguments = given
        tools.before_name = _without(_until(text, NAME), template.render(user), opens)
        tools.call_end = _literal(_outside(shared.rstrip().removesuffix("".join(tools.stops))).rstrip())
    return tools


def _read_call(template: _Template, user: Message, before: str, given: object) -> str | None:
    """The pattern of what opens a tool call, up to its arguments."""
    if not before.strip():
        return None
    one = _after(template.tries(user, _call((NAME, given))), NAME)
    as_json = re.search(rf'\{{\s*"{KEY}":\s*"{VALUE}"', one)
    head = one[: as_json.start()] if as_json else _until(one, KEY)
    two = _call((NAME, given), (NAME2, json.loads(json.dumps(given).replace(VALUE, VALUE2))))
    second = _after(_after(template.tries(user, two), NAME), VALUE)
    prefixes = [before.strip(), _outside(_until(second, NAME2)).rstrip()] if NAME2 in second else [before.strip()]
    starts = "|".join(_literal(prefix) for prefix in prefixes if prefix.strip())
    # Plain JSON may stand in an argument too, and is a call only with all of its frame.
    optional = "" if any('"' in prefix and not re.search(ADDED, prefix) for prefix in prefixes) else "?"
    return rf"(?:{starts})(?P<name>[\w.\-]+)(?:{_literal(head)}){optional}"


def _call(*calls: tuple[str, object]) -> Message:
    functions = [
        {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(CALL_IDS, calls, strict=False)
    ]
    return {"role": "assistant", "content": "", "tool_calls": functions}


def _prompt(closing: str, prompted: str) -> str:
    """What the prompt for the model's turn adds to `closing`; if nothing, the last delimiter before that turn."""
    added = prompted[len(closing) :] if prompted.startswith(closing) else ""
    if added.strip():
        return added
    marks = list(re.finditer(ADDED, prompted))
    return prompted[marks[-1].start() :] if marks else prompted


def _without(text: str, closing: str, opens: set[str]) -> str:
    """`text` from the model's turn on, without what opens it."""
    found = (
        _after(text, one) for one in sorted(opens, key=len, reverse=True) if one in text[: len(closing) + len(one)]
    )
    return next(found, text)


def _outside(text: str) -> str:
    """`text` that follows a value, without what closes JSON arguments."""
    return re.sub(r'^"\s*\}', "", text)


def _shared(one: str, other: str) -> str:
    """What both texts begin with."""
    return one[
        : next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    ]


def _after(text: str, word: str) -> str:
    return text.partition(word)[2]


def _until(text: str, word: str) -> str:
    return text.partition(word)[0]


def _named(text: str) -> str:
    """The pattern of `text` with a group for the tool's name."""
    before, name, after = text.partition(NAME)
    return _literal(before) + (r"(?P<name>[\w.\-]+)" + _literal(after) if name else "")


def _either(texts: set[str]) -> str:
    """A pattern of all `texts` that are not empty, the longest first; if there are none, one that is nowhere."""
    return "|".join(_named(text) for text in sorted(texts, key=len, reverse=True) if text) or r"(?!)"


def _literal(text: str) -> str:
    """The pattern of `text` with any id of a call; spaces inside may differ, and those at its end be missing."""
    inner = r"\s*".join(map(re.escape, re.split(r"\s+", text.rstrip())))
    inner = re.sub("|".join(CALL_IDS), r"\\w+", inner)
    at_end = text[len(text.rstrip()) :]
    return inner + "".join(f"(?:{re.escape(space)}" for space in at_end) + ")?" * len(at_end)
