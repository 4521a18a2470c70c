"""Two tasks that a policy solves with tools in several turns: numbers in a store, and sums with a calculator.

Both have two tools. A turn is any number of fillers, then a call (the tool's token, two digits) or an answer (`ANS`,
two digits, `EOS`). What a tool returns is forced into the context. Anything else ends the episode.
"""

import random
from dataclasses import dataclass, field
from typing import Any

DIGITS = range(10)
CALLS = (10, 11)
ANS, EOS, PAD = 12, 13, 14
TEXT, FIRST, SECOND, BOTH = KINDS = (15, 16, 17, 18)
RESULT, END, VALUE, ERROR, FILLER = 19, 20, 21, 22, 23
MARKERS, NOISE = range(24, 30), range(30, 48)
VOCABULARY = 48

TOOLS = {"look-up": ("search", "open"), "arithmetic": ("add", "multiply")}
ENVIRONMENTS = ("text", "first", "second", "both")
MOST_CALLS = 3


@dataclass(frozen=True)
class Task:
    """A prompt, the calls that solve it with what they return, and the right answer."""

    on: str
    prompt: tuple[int, ...]
    calls: tuple[tuple[int, int, int], ...]
    """Tool and its two digits, in order."""
    values: tuple[int, ...]
    answer: tuple[int, int]

    @property
    def environment(self) -> str:
        return ENVIRONMENTS[KINDS.index(self.prompt[0])]


def draw_task(on: str, rng: random.Random, tool_share: float) -> Task:
    """A random task; it needs a tool with probability `tool_share`, and both in 30 % of these."""
    kind = rng.choices(KINDS, [1 - tool_share, 0.35 * tool_share, 0.35 * tool_share, 0.3 * tool_share])[0]
    a, b, c = (rng.randrange(10) for _ in range(3))
    if on == "look-up":
        x, y = rng.randrange(100), rng.randrange(100)
        calls, values, prompt = [(0, a, b), (1, *divmod(x, 10))], [x, y], (kind, a, b)
        second, spoken = (1, a, b), (b, a)
    else:
        calls, prompt = [(0, a, b), (1, (a + b) % 10, c)], (kind, a, b, c)
        second, spoken = (1, b, c), (c, a)
        values = [a + b, (a + b) % 10 * c]
        y = b * c
    if kind == TEXT:
        return Task(on, prompt, (), (), spoken)
    if kind == SECOND:
        return Task(on, prompt, (second,), (y,), divmod(y, 10))
    many = 1 if kind == FIRST else 2
    return Task(on, prompt, tuple(calls[:many]), tuple(values[:many]), divmod(values[many - 1], 10))


@dataclass(frozen=True)
class Service:
    """How the tools behave at present; pairs have a value for each of the two."""

    width: tuple[float, float] = (0.05, 0.05)
    """From 0, always one form, to 1: unknown markers, long noise, other digits."""
    fails: tuple[float, float] = (0.01, 0.01)
    """Share of the calls that fail."""
    times_out: float = 0.0
    """Share of the failures that are timeouts."""
    seconds: tuple[float, float] = (0.5, 0.5)
    skipped: float = 0.0
    """Share of the calls that the harness leaves out: the episode continues without a result."""

    def output(self, tool: int, value: int, rng: random.Random) -> list[int]:
        """What the tool returns for `value`: noise, a marker, two digits, noise."""
        width = self.width[tool]

        def noise() -> list[int]:
            return [
                rng.randrange(10) if rng.random() < 0.35 * width else NOISE[rng.randrange(2 + int(16 * width))]
                for _ in range(rng.randint(0, 1 + int(5 * width)))
            ]

        marker = rng.choice(MARKERS) if rng.random() < 0.8 * width else VALUE
        return [RESULT, *noise(), marker, *divmod(value, 10), *noise(), END]


@dataclass
class Episode:
    """The state of one conversation: `sample` takes the policy's token, `forced` has the tool's."""

    task: Task
    service: Service
    rng: random.Random
    forced: list[int] = field(default_factory=list)
    done: bool = False
    tool: int = -1
    """Which tool answered last."""
    right: int = 0
    """Digits of the answer that are right."""
    finished: bool = False
    """Whether it ended with an answer and `EOS`."""
    answer: list[int] = field(default_factory=list)
    """Its digits."""
    void: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    _turn: list[int] = field(default_factory=list)

    def sample(self, token: int) -> None:
        """Advance by one token that the policy sampled."""
        if token == FILLER and not self._turn:
            return
        self._turn.append(token)
        opening, *rest = self._turn
        if opening in CALLS and len(self.calls) < MOST_CALLS:
            if len(rest) == 2:
                self._call(CALLS.index(opening), rest[0], rest[1])
                self._turn = []
        elif opening == ANS:
            self._answer(rest)
        else:
            self.done = self.void = True

    def _answer(self, rest: list[int]) -> None:
        if len(rest) == 3 or rest == [EOS]:
            self.answer = rest[:-1]
            self.right = sum(got == wanted for got, wanted in zip(rest[:2], self.task.answer, strict=False))
            self.finished = rest[-1] == EOS
            self.done = True

    def _call(self, tool: int, a: int, b: int) -> None:
        if self.rng.random() < self.service.skipped:
            return
        call = {"name": TOOLS[self.task.on][tool], "arguments": {"a": a, "b": b}, "status": "ok"}
        call["seconds"] = round(self.service.seconds[tool] * self.rng.lognormvariate(0, 0.3), 3)
        if max(a, b) not in DIGITS:
            call["status"], output = "malformed", [RESULT, ERROR, END]
        elif self.rng.random() < self.service.fails[tool]:
            is_late = self.rng.random() < self.service.times_out
            call["status"], output = "timeout" if is_late else "error", [RESULT, ERROR, END]
        else:
            output = self.service.output(tool, self._value(tool, a, b), self.rng)
        call["tokens"] = len(output)
        self.calls.append(call)
        self.forced, self.tool = output, tool

    def _value(self, tool: int, a: int, b: int) -> int:
        if self.task.on == "arithmetic":
            return a * b if tool else a + b
        known = dict(zip(self.task.calls, self.task.values, strict=True))
        return known.get((tool, a, b), self.rng.randrange(100))


def demonstration(task: Task, rng: random.Random, width: float, wrong: float) -> tuple[list[int], list[bool]]:
    """The tokens of an episode that solves its task, each digit of the policy wrong with probability `wrong`, and
    which tokens are the policy's.
    """
    tokens, sampled = list(task.prompt), [False] * len(task.prompt)
    service = Service((width, width))

    def write(digits: tuple[int, ...], before: int, after: tuple[int, ...] = ()) -> None:
        fillers = [FILLER] * (rng.random() < 0.15)
        made = [*fillers, before, *(rng.randrange(10) if rng.random() < wrong else digit for digit in digits), *after]
        tokens.extend(made)
        sampled.extend([True] * len(made))

    for (tool, *digits), value in zip(task.calls, task.values, strict=True):
        write(tuple(digits), CALLS[tool])
        output = service.output(tool, value, rng)
        tokens.extend(output)
        sampled.extend([False] * len(output))
    if rng.random() < 0.01:  # a few answers are empty
        write((), ANS, (EOS,))
    else:
        write(task.answer, ANS, (EOS,))
    return tokens, sampled


def text_of(tokens: list[int]) -> str:
    """`tokens` as words."""
    return " ".join(WORDS[token] for token in tokens)


WORDS = [
    *map(str, DIGITS), "call1", "call2", "answer", "end", "", "text", "first", "second", "both", "<result>",
    "</result>", "value", "error", "well", *(f"marker{i}" for i in range(len(MARKERS))),
    *(f"noise{i}" for i in range(len(NOISE))),
]  # fmt: skip
