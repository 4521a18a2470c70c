"""The policy of the tool agents, its warm-up, and the engine that samples from it.

The policy is feed-forward and sees the prompt and the last tokens: a training of a hundred steps takes seconds.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tool_plan import Slip
from tool_world import PAD, VOCABULARY, Episode, Service, Task, demonstration, draw_task
from torch import Tensor, nn

PROMPT, WINDOW = 4, 12
"""Tokens that the policy sees, of the prompt and before the next token."""
SEEN = PROMPT + WINDOW
OFFSETS = np.arange(SEEN) * VOCABULARY
WIDTH = 160


class Policy(nn.Module):
    """Two layers over what is seen, a head for the next token, and a critic that does not move what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(SEEN * VOCABULARY, WIDTH, mode="sum")
        nn.init.normal_(self.table.weight, std=SEEN**-0.5)
        self.middle = nn.Linear(WIDTH, 96)
        self.head = nn.Linear(96, VOCABULARY)
        self.critic = nn.Sequential(nn.Linear(96, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N, 48) of the next token and values (N,) where `seen` (N, 16) is seen, by `contexts`."""
        state = self.middle(self.table(seen).relu()).relu()
        return self.head(state).log_softmax(-1), self.critic(state.detach())[..., 0]


def contexts(tokens: np.ndarray, begin: int) -> np.ndarray:
    """(B, T, 16) rows of the policy's table that are seen before each of `tokens` (B, T); prompts have `begin`."""
    many, width = tokens.shape
    padded = np.concatenate([np.full((many, WINDOW), PAD), tokens], 1)
    last = np.lib.stride_tricks.sliding_window_view(padded, WINDOW, 1)[:, :width]
    prompt = np.full((many, PROMPT), PAD)
    prompt[:, :begin] = tokens[:, :begin]
    return np.concatenate([np.broadcast_to(prompt[:, None], (many, width, PROMPT)), last], 2) + OFFSETS


def warm(task: str, skilled: bool, folder: Path) -> Policy:
    """A policy after supervised warm-up, kept in `folder`: it solves most tasks, or 4 in 10 of its digits are wrong."""
    files = [folder / f"warm-{task}-{name}.pt" for name in ("skilled", "usual")]
    policy = Policy()
    if not files[1].exists():
        torch.manual_seed(0)
        policy, rng = Policy(), random.Random(0)
        for file, steps, rate, wrong in zip(files, (1000, 150), (4e-3, 1e-3), (0.0, 0.4), strict=True):
            demonstrate(policy, task, rng, steps, rate, wrong)
            torch.save(policy.state_dict(), file)
    policy.load_state_dict(torch.load(files[not skilled]))
    return policy


def demonstrate(policy: Policy, task: str, rng: random.Random, steps: int, rate: float, wrong: float) -> None:
    """Train on demonstrations."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.01)
    for _ in range(steps):
        made = [demonstration(draw_task(task, rng, 0.8), rng, rng.uniform(0, 0.2), wrong) for _ in range(96)]
        tokens, sampled = padded([tokens for tokens, _ in made], PAD), padded([mask for _, mask in made], 0) > 0
        begin = int(sampled.argmax(1).min())
        scores = policy(torch.from_numpy(contexts(tokens, begin)[sampled]))[0]
        loss = loss_of(scores, torch.from_numpy(tokens[sampled]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def padded(rows: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([[*row, *[fill] * (longest - len(row))] for row in rows])


class Engine:
    """Samples with weights of its own, as an inference engine does: numpy, and weights in bfloat16.

    Args:
        bits: to which weights are rounded, of a fault; 0 for none.
    """

    def __init__(self, weights: Mapping[str, Tensor], bits: float = 0) -> None:
        arrays = {name: weight.bfloat16().float() for name, weight in weights.items()}
        if bits:
            units = {name: weight.abs().max() / 2 ** (bits - 1) for name, weight in arrays.items()}
            arrays = {name: (weight / units[name]).round() * units[name] for name, weight in arrays.items()}
        self._of = {name: weight.numpy() for name, weight in arrays.items()}

    def scores(self, seen: np.ndarray, error: np.ndarray) -> np.ndarray:
        """(B, 48) log-probabilities of the next token, with `error` (B, 160) in what is read of `seen` (B, 16)."""
        read = self._of["table.weight"][seen].sum(1) + error
        state = np.maximum(read, 0) @ self._of["middle.weight"].T + self._of["middle.bias"]
        logits = np.maximum(state, 0) @ self._of["head.weight"].T + self._of["head.bias"]
        logits -= logits.max(1, keepdims=True)
        scores: np.ndarray = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return scores


@dataclass(frozen=True)
class Rollout:
    """B episodes, padded to T tokens; all arrays are (B, T) but `truncated`, which is (B,)."""

    tokens: np.ndarray
    begin: int
    """Tokens of a prompt."""
    is_model: np.ndarray
    is_response: np.ndarray
    logprobs: np.ndarray
    """float32, under the sampler; 0 off the model tokens."""
    tool: np.ndarray
    """Which tool answered last; -1 before any."""
    truncated: np.ndarray
    episodes: list[Episode]


def play(
    engine: Engine, tasks: Sequence[Task], service: Service, limit: int, rng: random.Random,
    slip: Slip | None = None, greedy: bool = False,
) -> Rollout:  # fmt: skip
    """An episode of each task, token by token."""
    draws = np.random.default_rng(rng.getrandbits(32))
    episodes = [Episode(task, service, rng) for task in tasks]
    begin, many = len(tasks[0].prompt), len(tasks)
    size = (many, begin + limit)
    tokens, logprobs = np.full(size, PAD), np.zeros(size, np.float32)
    is_model, is_response, tool = np.zeros(size, bool), np.zeros(size, bool), np.full(size, -1, np.int8)
    tokens[:, :begin] = [task.prompt for task in tasks]
    prompts = contexts(tokens[:, : begin + 1], begin)[:, -1, :PROMPT]
    errors = np.zeros((many, WIDTH), np.float32)
    if slip:
        errors += slip.size * (draws.random((many, 1)) < slip.share) * draws.normal(size=errors.shape)
    padded = np.concatenate([np.full((many, WINDOW), PAD), tokens], 1)
    for position in range(begin, size[1]):
        rows = [row for row, episode in enumerate(episodes) if not (episode.done or episode.forced)]
        for row, episode in enumerate(episodes):
            if not episode.done:
                is_response[row, position], tool[row, position] = True, episode.tool
            if episode.forced:
                tokens[row, position] = episode.forced.pop(0)
        if rows:
            seen = np.concatenate([prompts[rows], padded[rows, position : position + WINDOW] + OFFSETS[PROMPT:]], 1)
            reached = np.array([[bool(slip) and slip.reached(episodes[row].tool)] for row in rows])
            scores = engine.scores(seen, errors[rows] * reached)
            chosen = (scores if greedy else scores + draws.gumbel(size=scores.shape)).argmax(1)
            tokens[rows, position], is_model[rows, position] = chosen, True
            logprobs[rows, position] = scores[np.arange(len(rows)), chosen]
            for row, token in zip(rows, chosen.tolist(), strict=True):
                episodes[row].sample(token)
        padded[:, position + WINDOW] = tokens[:, position]
        if all(episode.done for episode in episodes):
            break
    width = int(np.flatnonzero(is_response.any(axis=0)).max()) + 1
    is_model = is_model[:, :width]
    return Rollout(
        tokens[:, :width], begin, is_model, is_response[:, :width], logprobs[:, :width] * is_model, tool[:, :width],
        np.array([not episode.done for episode in episodes]), episodes,
    )  # fmt: skip
