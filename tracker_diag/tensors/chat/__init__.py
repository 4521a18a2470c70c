"""Slices from token ids alone, for a trainer that marks nothing: who wrote a token is told by the chat template.

    chat = ChatFormat.of(tokenizer)                  # reads the tokenizer's own template, once
    monitor.observe(**chat.label(token_ids).tensors(), old_logprobs=..., rollout_logprobs=...)

There is no table of model families: `template` renders a few conversations whose contents are known, and what
stands between these are the delimiters. `labels` reads tokens as a text: a turn of the model runs from what the
template puts before it up to and with what ends it, and only outside such a turn can a tool result begin, so that
a model which writes a delimiter itself does not move the slices.
"""

from tracker_diag.tensors.chat.labels import ChatFormat, ChatLabels
from tracker_diag.tensors.chat.template import ChatError

__all__ = ["ChatError", "ChatFormat", "ChatLabels"]
