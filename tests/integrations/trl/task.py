"""A small model looks numbers up with a tool, whose answers can be made to widen: "get 42" → lookup → "07".

It is for runs of a minute on a CPU, with real tool calls through TRL's own loop.
"""

import random
import sysconfig
from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
SYSTEM = {"role": "system", "content": "Answer."}
NOISE = [
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch",
    "maple", "north", "ocean", "pearl",
]  # fmt: skip
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"content": "text", "close_pattern": r"<\|im_end\|>\s*"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""How transformers splits an answer of the model."""
MARKERS = ["entry", "found", "datum", "reply", "where"]


class Lookup:
    """The tool. At width 0 it answers "value 07"; the wider, the more words and other markers stand around that."""

    def __init__(self, seed: int = 0) -> None:
        self.width = 0.0
        self._random = random.Random(seed)

    def text(self, value: str) -> str:
        """What the tool says when it has found `value`."""

        def words() -> list[str]:
            many = self._random.randint(0, round(6 * self.width))
            return self._random.choices(NOISE, k=many)

        marker = self._random.choice(MARKERS) if self._random.random() < 0.9 * self.width else "value"
        return " ".join([*words(), marker, value, *words()])

    def tools(self) -> list[object]:
        """The functions that the model may call."""

        def lookup(key: str) -> str:
            """Look up.

            Args:
                key: Key.
            """
            return self.text(value_of(key))

        return [lookup]


def value_of(key: str) -> str:
    """Two digits; nobody could guess them from the key's text."""
    return f"{random.Random(f'value of {key}').randrange(100):02d}"


def prompts(n: int, seed: int = 0, tool_share: float = 0.7) -> list[dict[str, object]]:
    """Rows of a data set; those that need no tool ask to "say 42"."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        number, tool = f"{rng.randrange(100):02d}", rng.random() < tool_share
        text = f"get {number}" if tool else f"say {number}"
        answer = value_of(number) if tool else number
        rows.append({"prompt": [SYSTEM, {"role": "user", "content": text}], "answer": answer})
    return rows


def judge(errs: float, luck: random.Random | None = None):
    """A reward function: 1 if the last message is the answer, else 0; in a share of `errs` the other way round.

    A judge that never errs leaves a policy that is right nothing to learn from, and then there is no ratio either.
    """
    rng = luck or random.Random(0)

    def right(completions, answer, **_):
        result = [(completion[-1].get("content") or "").strip() for completion in completions]
        return [float((a == b) != (rng.random() < errs)) for a, b in zip(result, answer, strict=True)]

    return right


def demonstration(row: dict, tool: Lookup, value: str | None = None) -> list[dict]:
    """The messages of an ideal run of `row`; `value` is what the tool gives, where that is to be learned."""
    text = row["prompt"][-1]["content"]
    if text.startswith("say"):
        return [*row["prompt"], {"role": "assistant", "content": row["answer"]}]
    value = value or row["answer"]
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"key": text.split()[1]}}}
    return [
        *row["prompt"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "lookup", "content": tool.text(value)},
        {"role": "assistant", "content": value},
    ]


def tokenizer():
    """Of the checkpoint. `AutoTokenizer` would put another pre-tokenizer in its place, without a word."""
    from transformers import PreTrainedTokenizerFast

    return with_templates(PreTrainedTokenizerFast.from_pretrained(CHECKPOINT))


def with_templates(tokenizer):
    """`tokenizer` with the chat template of Qwen 2.5 that the installed TRL has, whichever release runs."""
    templates = Path(sysconfig.get_path("purelib")) / "trl" / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text()
    tokenizer.response_template = RESPONSE
    return tokenizer
