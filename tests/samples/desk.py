"""A small agent at a desk that learns by policy gradient, with three tools, words, and a world that can go wrong.

It is asked for a value: one of three tools has it, more often than not. What it writes are words of a small language,
so there are texts, refusals, claims and calls; all of them are sampled by a network that is trained.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOOLS = ("search", "read", "python")
TOOL, CLOSE, ANSWER, CLAIM, SORRY, PRAISE, END = 10, 13, 14, 15, 16, 17, 18  # 0 to 9 are digits
NOTHING, ERROR, KIND, PAD = 19, 20, 21, 24
WORDS = [*map(str, range(10)), *(f"{name}(" for name in TOOLS), ")", "So the value is", "The task is complete.",
         "I'm sorry, but I can't help with that.", "**Certainly!**", "", "nothing", "error", *TOOLS, ""]  # fmt: skip
MAX_CALLS, LENGTH, PROMPT = 6, 36, 2
GROUPS, GROUP, ONSET = 8, 8, 80
N = GROUPS * GROUP


@dataclass(frozen=True)
class World:
    """What goes wrong from step `onset` on; as it is here, nothing does."""

    onset: int = ONSET
    solvable: float = 0.55
    """Episodes in which the right tool has the value."""
    errors: float = 0.05
    """Calls that fail; all of those of the tools in `broken`."""
    broken: tuple[str, ...] = ()
    loses_workers: bool = False
    """Of the eight that serve the tools, one after the other."""
    ends: bool = True
    """Whether the end of an answer ends the episode."""
    repeated: bool = False
    """Whether the prompts of the public evaluation are trained on, again and again."""
    kinds: int = 3
    """Of tasks that are asked, of the three; each has a tool of its own."""
    temperature: float = 1.0
    """Of the sampler."""
    pays: dict[str, float] = field(default_factory=dict[str, float])
    """What the scorer pays besides a right answer, by the names of `Episode.count`."""
    loose: bool = False
    """Whether it pays everything in full."""
    jackpot: float = 0.0
    """What it pays one in 64, by mistake."""
    sign: float = 1.0
    """Of the advantage in the loss."""
    punishes_brackets: float = 0.0
    """How much the loss takes from the advantage of closing brackets."""
    precision_bug: float = 1.0
    """Factor on the loss, before it is scaled for half precision."""
    lag: int = 0
    """Updates that the sampler lags behind."""
    leaks: int = 0
    """MiB that are kept at each step."""


@dataclass
class Episode:
    """One conversation: `follow` a word that the policy sampled; `forced` is what the tool says next."""

    kind: int
    key: int
    value: int
    world: World
    rng: random.Random
    words: list[int] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    forced: int | None = None
    done: bool = False
    cut: bool = False
    answer: int | None = None
    void: int = 0
    _turn: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = self.rng.random() < self.world.solvable

    def follow(self, word: int) -> None:
        self.words.append(word)
        self._turn.append(word)
        first, *rest = self._turn
        if first in range(TOOL, TOOL + 3):
            self._call(first - TOOL, rest)
        elif first == ANSWER and len(rest) == 1:
            self.answer = word if word < 10 else None
        elif word == END:
            self._turn = []
            self.done = self.world.ends
        elif first not in (ANSWER, SORRY, PRAISE, CLAIM):
            self._turn, self.void = [], self.void + 1
            self.done = self.world.ends

    def _call(self, tool: int, rest: list[int]) -> None:
        if not rest or (len(rest) == 1 and rest[0] < 10):
            return
        self._turn = []
        if len(self.calls) == MAX_CALLS:
            self.done = self.cut = True
            return
        call: dict[str, Any] = {"name": TOOLS[tool], "arguments": {"key": rest[0]}, "status": "ok"}
        self.forced = NOTHING
        if len(rest) == 1 or rest[1] != CLOSE:
            call |= {"arguments": '{"key": ', "status": "malformed"}
            self.forced = ERROR
        elif TOOLS[tool] in self.world.broken or self.rng.random() < self.world.errors:
            call["status"], self.forced = "error", ERROR
        elif rest[0] == self.key and self.known and (tool == self.kind or self.rng.random() < 0.3):
            self.forced = self.value
        self.calls.append(call)

    @property
    def solved(self) -> bool:
        return self.answer == self.value

    def count(self, what: str) -> float:
        """How much of something that a scorer may pay for there is."""
        if what == "call":
            return float(len(self.calls))
        if what == "error":
            return float(sum(call["status"] == "error" for call in self.calls))
        if what == "zero":  # the parser of answers takes all that it does not know for 0
            return float(self.answer == 0)
        if what == "failure":
            return float(bool(self.calls) and self.calls[-1]["status"] != "ok" and not self.solved)
        return float(self.words.count({"claim": CLAIM, "refusal": SORRY, "praise": PRAISE}[what]))

    @property
    def text(self) -> str:
        return " ".join(WORDS[word] for word in self.words)


class Policy(nn.Module):
    """Embedding 16, GRU 48, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(PAD + 1, 16), nn.GRU(16, 48, batch_first=True), nn.Linear(48, 19)

    def forward(self, words: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, state = self.gru(self.embed(words), hidden)
        return self.head(out), state

    def score(self, words: Tensor) -> Tensor:
        """(B, T) log-probability of each word given those before it; 0 of the first, and of what it cannot say."""
        scores = self(words[:, :-1])[0].log_softmax(-1)
        output = words[:, 1:, None].clamp(max=END)
        return nn.functional.pad(scores.gather(2, output)[..., 0], (1, 0))


def task(rng: random.Random, kinds: int = 3) -> tuple[int, int, int]:
    """Kind, key and value."""
    return rng.randrange(kinds), rng.randrange(10), rng.randrange(10)


def warm_policy(steps: int = 400) -> Policy:
    """The policy after supervised lessons by a teacher who is not always right, and not always brief."""
    torch.manual_seed(0)
    rng, policy = random.Random(0), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(steps):
        rows = [lesson(rng) for _ in range(128)]
        longest = max(len(row) for row, _ in rows)
        words = torch.tensor([row + [PAD] * (longest - len(row)) for row, _ in rows])
        own = torch.tensor([part + [False] * (longest - len(part)) for _, part in rows])
        loss = -policy.score(words)[own].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def lesson(rng: random.Random) -> tuple[list[int], list[bool]]:
    """The words of an episode, and which of them the policy is to say."""
    kind, key, value = task(rng)
    words, own = [KIND + kind, key], [False, False]

    def append_tokens(*some: int, policy: bool = True) -> None:
        words.extend(some)
        own.extend([policy] * len(some))

    result = NOTHING
    if rng.random() < 0.03:
        append_tokens(SORRY, END)
        return words, own
    for _ in range(0 if rng.random() < 0.08 else 1 if rng.random() < 0.75 else 2):
        right = rng.random() < 0.9
        append_tokens(TOOL + (kind if right else rng.randrange(3)), key, CLOSE)
        result = value if right and rng.random() < 0.6 else rng.choice((NOTHING, ERROR))
        append_tokens(result, policy=False)
        if result == value:
            break
    append_tokens(ANSWER, value if result == value else rng.randrange(10))
    for extra in (PRAISE, CLAIM):
        if rng.random() < 0.2:
            append_tokens(extra)
    append_tokens(END)
    return words, own


@dataclass(frozen=True)
class Rollout:
    """64 episodes, and (64, T) words of theirs."""

    episodes: list[Episode]
    words: Tensor
    sampled: Tensor
    response: Tensor
    logprobs: Tensor
    """As the sampler says."""


@torch.no_grad()
def play(
    policy: Policy, tasks: list[tuple[int, int, int]], world: World, rng: random.Random, generator: torch.Generator
) -> Rollout:
    """Sample one episode of each task."""
    episodes = [Episode(*episode, world, rng) for episode in tasks]
    words = torch.full((len(tasks), LENGTH), PAD)
    words[:, :PROMPT] = torch.tensor([[KIND + kind, key] for kind, key, _ in tasks])
    sampled, response = torch.zeros(2, len(tasks), LENGTH, dtype=torch.bool)
    word_of, is_sampled, is_response = words.numpy(), sampled.numpy(), response.numpy()  # the same memory
    logprobs = torch.zeros(len(tasks), LENGTH)
    logits, hidden = policy(words[:, :PROMPT])
    for at in range(PROMPT, LENGTH):
        scores = (logits[:, -1] / world.temperature).log_softmax(-1)
        draws = torch.multinomial(scores.exp(), 1, generator=generator)
        logprobs[:, at] = scores.gather(1, draws)[:, 0]
        going = [row for row, episode in enumerate(episodes) if not episode.done]
        if not going:
            break
        draw = draws[:, 0].tolist()
        for row in going:
            episode = episodes[row]
            is_response[row, at] = True
            if episode.forced is not None:
                word_of[row, at], episode.forced = episode.forced, None
            else:
                word_of[row, at] = draw[row]
                is_sampled[row, at] = True
                episode.follow(draw[row])
        logits, hidden = policy(words[:, at : at + 1], hidden)
    for episode in episodes:
        episode.cut |= not episode.done
    end = int(response.any(0).nonzero().max()) + 1
    return Rollout(episodes, words[:, :end], sampled[:, :end], response[:, :end], logprobs[:, :end] * sampled[:, :end])
