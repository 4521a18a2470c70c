"""Which tokens the model wrote, by its chat template: the mask that transformers makes of a conversation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError, DiagError, MissingExtra, require
from tracker_diag.stats.arrays import BoolArray, IntArray

MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""What surrounds the model's text in a template, so that transformers can mark it."""

INSTEAD = "or give response_mask and model_mask in the batch"


def model_tokens(tokenizer: Any, messages: Sequence[Any], rows: Sequence[IntArray]) -> BoolArray:
    """(N,) whether the model wrote a token, for all token ids of `rows` in a row.

    Args:
        tokenizer: of Hugging Face, with a chat template that has generation marks or that TRL has a training form of.
        messages: the conversation of each row, a list of messages, or a mapping with `messages` and `tools`.
        rows: token ids of each sequence without padding. A sequence may be cut off.

    Raises:
        DiagError: the template does not show what the model wrote.
        BatchError: a row has other ids than its conversation.
    """
    if len(messages) != len(rows):
        raise BatchError(
            "messages", f"{len(messages)} conversations", f"{len(rows)}, one for each sequence of the batch"
        )
    template = training_template(tokenizer)
    masks: list[BoolArray] = []
    for i, (conversation, ids) in enumerate(zip(messages, rows, strict=True)):
        given = conversation if isinstance(conversation, Mapping) else {"messages": conversation}
        rendered = tokenizer.apply_chat_template(
            given["messages"],
            tools=given.get("tools"),
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        written = np.asarray(rendered["input_ids"])[: len(ids)]
        if not np.array_equal(written, ids):
            shared = min(len(written), len(ids))
            differs = np.flatnonzero(written[:shared] != ids[:shared])
            at = int(differs[0]) if len(differs) else shared
            expected = f"the ids that the chat template writes for messages[{i}]"
            raise BatchError("token_ids", f"sequence {i} with other ids from token {at}", expected, INSTEAD)
        masks.append(np.asarray(rendered["assistant_masks"])[: len(ids)].astype(bool))
    return np.concatenate(masks)


def training_template(tokenizer: Any) -> str:
    """The chat template of `tokenizer` with generation marks: its own, or the training form that TRL has of it.

    Raises:
        DiagError: there is neither.
    """
    try:
        template: str = tokenizer.get_chat_template()
    except (AttributeError, ValueError) as error:
        given = f"tokenizer: {type(tokenizer).__name__} without a chat template given"
        raise DiagError(f"{given}, expected one with a template; set tokenizer.chat_template, {INSTEAD}") from error
    if MARKERS.search(template):
        return template
    lacking = "tokenizer: a chat template without {% generation %} marks given, expected one with them"
    try:
        trained = require("trl.chat_template_utils", "trl").get_training_chat_template(tokenizer)
    except MissingExtra as error:
        raise DiagError(f"{lacking}; install trl, which has them for common models, {INSTEAD}") from error
    except ValueError as error:
        raise DiagError(f"{lacking}; TRL has no training form of it: put the marks in, {INSTEAD}") from error
    return trained or template
