"""The demo's world: a small language, three kinds of task and one tool whose output can widen.

Everything that the tool writes is forced into the context; the policy is only ever trained on the
tokens that it sampled itself. `width` is the knob of the whole demonstration: at 0 the tool answers
in one narrow form, at 1 with unseen markers, long noise and distracting digits.
"""

import random
from dataclasses import dataclass, field

DIGITS = range(10)
CALL, ANS, EOS, PAD = 10, 11, 12, 13
TXT, ONE, TWO = 14, 15, 16
RESP, END, VAL = 17, 18, 19
OTHER_MARKERS = range(20, 26)
NOISE = range(26, 56)
VOCABULARY = 56

MAX_LENGTH = 44
PROMPT_LENGTH = 3
MAX_CALLS = 2


@dataclass(frozen=True)
class Task:
    """One prompt and the answers that are true for it, shared by all samples of its group.

    `TXT` wants the two digits reversed, `ONE` the value stored under them, `TWO` the value stored
    under that value. The values are drawn afresh for each prompt, so that none can be memorised.
    """

    kind: int
    digits: tuple[int, int]
    values: tuple[int, int]

    @property
    def prompt(self) -> list[int]:
        return [self.kind, *self.digits]

    @property
    def keys(self) -> tuple[int, ...]:
        """The tool calls that solve the task, in order."""
        first = 10 * self.digits[0] + self.digits[1]
        return {TXT: (), ONE: (first,), TWO: (first, self.values[0])}[self.kind]

    @property
    def answer(self) -> tuple[int, int]:
        if self.kind == TXT:
            return self.digits[1], self.digits[0]
        return divmod(self.values[len(self.keys) - 1], 10)


def draw_task(rng: random.Random, tool_share: float) -> Task:
    """A random task; a tool prompt with probability `tool_share`, 40 % of those need two calls."""
    kind = TXT
    if rng.random() < tool_share:
        kind = TWO if rng.random() < 0.4 else ONE
    digits = (rng.randrange(10), rng.randrange(10))
    return Task(kind, digits, (rng.randrange(100), rng.randrange(100)))


def tool_output(rng: random.Random, value: int, width: float) -> list[int]:
    """What the tool writes for `value` at `width` in [0, 1]: noise, a marker, two digits, noise."""

    def noise() -> list[int]:
        length = rng.randint(0, 1 + int(6 * width))
        return [
            rng.randrange(10) if rng.random() < 0.35 * width else NOISE[rng.randrange(2 + int(28 * width))]
            for _ in range(length)
        ]

    marker = rng.choice(OTHER_MARKERS) if rng.random() < 0.8 * width else VAL
    return [RESP, *noise(), marker, *divmod(value, 10), *noise(), END]


@dataclass
class Episode:
    """The rules of one conversation: `sample` takes the policy's token, `forced` holds the tool's."""

    task: Task
    rng: random.Random
    width: float
    forced: list[int] = field(default_factory=list)
    done: bool = False
    reward: float = 0.0
    _calls: int = 0
    _solved: int = 0
    _turn: list[int] = field(default_factory=list)

    def sample(self, token: int) -> None:
        """Advance by one token that the policy sampled."""
        self._turn.append(token)
        opening, *rest = self._turn
        if opening == CALL:
            if self._calls == MAX_CALLS:
                self.done = True
            elif len(rest) == 2:
                self._call(10 * rest[0] + rest[1] if max(rest) in DIGITS else -1)
                self._turn = []
        elif opening == ANS:
            if len(rest) == 3:
                right = sum(got == want for got, want in zip(rest[:2], self.task.answer, strict=True))
                self.reward = 0.45 * right + 0.1 * (rest[2] == EOS)
                self.done = True
        else:
            self.done = True

    def _call(self, key: int) -> None:
        # The tool never errors: an unexpected key is answered with some other value.
        value = self.rng.randrange(100)
        if self._solved < len(self.task.keys) and key == self.task.keys[self._solved]:
            value = self.task.values[self._solved]
            self._solved += 1
        self._calls += 1
        self.forced = tool_output(self.rng, value, self.width)
