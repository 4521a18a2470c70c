"""Labels of tokens: who wrote them, in which turn, after which tool, and which are delimiters."""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from tracker_diag.stats.arrays import Array, BoolArray, IntArray
from tracker_diag.tensors.chat.template import Delimiters, read


@dataclass(frozen=True)
class ChatLabels:
    """What is known of each token, in the shape of the token ids."""

    response_mask: BoolArray
    """Tokens of the model and of tools, not those of user and system."""
    model_mask: BoolArray
    """Tokens that the model wrote, with the one that ended its turn."""
    after_tool: BoolArray
    """Model tokens after a tool result of their sequence."""
    turn: IntArray
    """Turns of the model in the sequence before the token's own; −1 on padding."""
    tool: IntArray
    """Which of `tool_names` answered last before a model token; −1 for none, or for one that is not named."""
    tool_names: tuple[str, ...]
    control: BoolArray
    """Delimiters of the template and of tool calls."""

    def tensors(self) -> dict[str, Any]:
        """Arguments of `Monitor.observe`. The two masks tell what comes after a tool, and how soon after it."""
        names = ("response_mask", "model_mask", "turn", "tool", "tool_names", "control")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Segment:
    begin: int
    end: int
    model: bool
    """Whether the model wrote it."""
    answered: str | None = None
    """The tool whose result it holds, "" if that has no name; None for anything else."""


@dataclass
class ChatFormat:
    """The delimiters of one chat template, and the tokenizer that turns tokens into text."""

    delimiters: Delimiters
    tokenizer: Any = field(repr=False)
    _pieces: dict[int, str] = field(default_factory=dict[int, str], repr=False)

    @classmethod
    def of(cls, tokenizer: Any, **template: Any) -> "ChatFormat":
        """Read the delimiters off the chat template of `tokenizer`, a Hugging Face one or one with its methods.

        Where the template takes no tool results, `delimiters.result` is None, and nothing counts as after a tool.

        Args:
            template: what the trainer gives to `apply_chat_template` beside messages and tools, such as
                `enable_thinking`.

        Raises:
            ChatError: if the turns of user and model cannot be told apart.
        """
        return cls(read(tokenizer, template), tokenizer)

    def label(
        self,
        token_ids: Array,
        *,
        attention_mask: Array | None = None,
        sequence_ids: Array | None = None,
        begins_in_model: bool = False,
    ) -> ChatLabels:
        """Label `token_ids`, (B, T) padded or (N,) packed.

        Turns of the model that were part of a prompt count as the model's: `&` with your own loss mask.

        Args:
            attention_mask: 0 on padding; needed where the padding token also ends turns.
            sequence_ids: (N,) of packed tokens; one sequence otherwise.
            begins_in_model: whether sequences begin with what the model wrote, without their prompt.
        """
        ids = _host(token_ids)
        flat = ids.reshape(-1)
        keep = np.ones(len(flat), bool) if attention_mask is None else _host(attention_mask).reshape(-1) != 0
        ends = np.arange(0, len(flat) + 1, ids.shape[-1] or 1)
        if sequence_ids is not None:
            ends = np.flatnonzero(np.diff(_host(sequence_ids), prepend=np.nan, append=np.nan))

        response, model, after = np.zeros((3, len(flat)), bool)
        control = np.isin(flat, list(self.delimiters.added)) & keep
        turn, tool = np.full((2, len(flat)), -1, np.int64)
        names: dict[str, int] = {}
        for start, end in pairwise(ends.tolist()):
            at = start + np.flatnonzero(keep[start:end])
            text, anchors = self._text(flat[at])
            segments, delimiters = self._parse(text, begins_in_model)
            turns, answered, code = 0, False, -1
            for one in segments:
                tokens = at[np.searchsorted(anchors, one.begin) : np.searchsorted(anchors, one.end)]
                if one.answered is not None:
                    answered, code = True, names.setdefault(one.answered, len(names)) if one.answered else -1
                response[tokens] = one.model or one.answered is not None
                turn[tokens] = turns
                if one.model:
                    model[tokens], after[tokens], tool[tokens] = True, answered, code
                    turns += bool(len(tokens))
            for begin, stop in delimiters:
                control[at[np.searchsorted(anchors, begin) : np.searchsorted(anchors, stop)]] = True
        response, model, after, control = (one.reshape(ids.shape) for one in (response, model, after, control))
        return ChatLabels(
            response, model, after, turn.reshape(ids.shape), tool.reshape(ids.shape), tuple(names), control
        )

    def _text(self, ids: IntArray) -> tuple[str, IntArray]:
        """The text of `ids`, and the place in it that each belongs to: its first character that can be seen."""
        tokens, which = np.unique(ids, return_inverse=True)
        pieces = [self._piece(token) for token in tokens.tolist()]
        lengths = np.array([len(piece) for piece in pieces], np.int64)[which]
        unseen = np.array([len(piece) - len(piece.lstrip()) for piece in pieces], np.int64)[which]
        begins = np.cumsum(lengths) - lengths
        return "".join(pieces[i] for i in which.tolist()), begins + np.where(unseen < lengths, unseen, 0)

    def _piece(self, token: int) -> str:
        """The text of one token; taken after itself, since some tokenizers drop the space that a text begins with."""
        if token not in self._pieces:
            how = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            one, two = (self.tokenizer.decode([token] * n, **how) for n in (1, 2))
            self._pieces[token] = self.delimiters.added.get(token) or (two[len(one) :] if two.startswith(one) else one)
        return self._pieces[token]

    def _parse(self, text: str, in_model: bool) -> tuple[list[_Segment], list[tuple[int, int]]]:
        """The stretches of `text`, and where its delimiters are."""
        segments: list[_Segment] = []
        delimiters: list[tuple[int, int]] = []
        opens, others = re.compile(self.delimiters.opens), re.compile(self.delimiters.others)
        position, called = 0, ""
        while position < len(text):
            if not in_model:
                opening = opens.search(text, position)
                begin = opening.end() if opening else len(text)
                delimiters += [opening.span()] if opening else []
                delimiters += [other.span() for other in others.finditer(text, position, begin)]
                # What stands before the model's first turn is the prompt, whatever it is made of.
                answered = self._answered(text[position:begin], called) if segments else None
                segments.append(_Segment(position, begin, False, answered))
                position = begin
            end, written = self._end_of_turn(text, position)
            if end > position:  # and not between two results, each of which could be the last
                delimiters += [(written, end)]
                delimiters += [own.span() for own in opens.finditer(text, position, written)]
                called, found = self._calls(text[position:written])
                delimiters += [(position + a, position + b) for a, b in found]
                segments.append(_Segment(position, end, True))
            position, in_model = end, False
        return segments, delimiters

    def _end_of_turn(self, text: str, position: int) -> tuple[int, int]:
        """Where the turn that begins at `position` ends, with and without what ends it."""
        ends = re.compile(
            f"(?P<stops>{self.delimiters.stops})|(?P<pauses>{self.delimiters.pauses})|(?P<others>{self.delimiters.others})"
        )
        for end in ends.finditer(text, position):
            if end.lastgroup == "others":  # cut off, or a template that ends no turn
                return end.start(), end.start()
            if end.lastgroup == "stops" or not re.compile(self.delimiters.opens).match(text, end.end()):
                return end.end(), end.start()
        return len(text), len(text)

    def _calls(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The tool that a turn calls last, "" if it calls none, and where the delimiters of its calls are."""
        called, delimiters = "", list[tuple[int, int]]()
        for call in re.finditer(self.delimiters.call, text) if self.delimiters.call else ():
            called = call["name"]
            delimiters += [(call.start(), call.start("name")), (call.end("name"), call.end())]
        if delimiters and self.delimiters.call_end and (end := re.search(f"{self.delimiters.call_end}$", text)):
            delimiters.append(end.span())
        return called, delimiters

    def _answered(self, text: str, called: str) -> str | None:
        """Which tool's result `text` holds: the one that it names, or else the one that was called last."""
        results = list(re.finditer(self.delimiters.result, text)) if self.delimiters.result else []
        if not results:
            return None
        return results[-1].groupdict().get("name") or called


def _host(values: Array) -> Any:
    """`values` as a numpy array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
