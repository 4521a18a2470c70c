"""The demo's policy: one GRU layer, 32,184 parameters, and how it plays and scores episodes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tracker_diag.demo.world import MAX_LENGTH, PAD, PROMPT_LENGTH, VOCABULARY, Episode, Task

WARM_START = Path(__file__).with_name("warm_start.safetensors")


class Policy(nn.Module):
    """Embedding 64, GRU 64, linear to the 56 tokens; temperature 1."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.gru = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (B, T, 56) for the token after each of `tokens` (B, T), and the hidden state."""
        out, state = self.gru(self.embed(tokens), hidden)
        return self.head(out), state


def warm_policy() -> Policy:
    """The policy after supervised warm-up, as shipped; `docs/make_warm_start.py` makes the file anew."""
    from safetensors.torch import load

    policy = Policy()
    policy.load_state_dict(load(WARM_START.read_bytes()))
    return policy


@dataclass(frozen=True)
class Rollout:
    """B episodes, padded to T tokens. All arrays are (B, T) but `reward`, which is (B,) in [0, 1]."""

    tokens: Tensor
    is_model: Tensor
    """True where the policy sampled the token; who wrote it decides, never its id."""
    is_response: Tensor
    """True on everything after the prompt that is no padding: model and tool tokens."""
    sampler_logprobs: Tensor
    """float32, log-probability under the sampling policy; 0 off the model tokens."""
    reward: Tensor


@torch.no_grad()
def play(
    policy: Policy, tasks: Sequence[Task], width: float, rng: random.Random, generator: torch.Generator
) -> Rollout:
    """Sample one episode per task, token by token, with the tool's output forced into the context."""
    episodes = [Episode(task, rng, width) for task in tasks]
    size = (len(tasks), MAX_LENGTH)
    tokens = np.full(size, PAD)
    is_model = np.zeros(size, bool)
    is_response = np.zeros(size, bool)
    logprobs = torch.zeros(size)
    tokens[:, :PROMPT_LENGTH] = [task.prompt for task in tasks]

    logits, hidden = policy(torch.from_numpy(tokens[:, :PROMPT_LENGTH]))
    for position in range(PROMPT_LENGTH, MAX_LENGTH):
        scores = logits[:, -1].log_softmax(-1)
        draws = torch.multinomial(scores.exp(), 1, generator=generator)
        logprobs[:, position] = scores.gather(1, draws)[:, 0]
        for row, (episode, token) in enumerate(zip(episodes, draws[:, 0].tolist(), strict=True)):
            if episode.done:
                continue
            is_response[row, position] = True
            if episode.forced:
                tokens[row, position] = episode.forced.pop(0)
            else:
                tokens[row, position] = token
                is_model[row, position] = True
                episode.sample(token)
        if all(episode.done for episode in episodes):
            break
        logits, hidden = policy(torch.from_numpy(tokens[:, position : position + 1]), hidden)

    length = int(np.flatnonzero(is_response.any(axis=0)).max()) + 1
    mask = torch.from_numpy(is_model[:, :length])
    return Rollout(
        tokens=torch.from_numpy(tokens[:, :length]),
        is_model=mask,
        is_response=torch.from_numpy(is_response[:, :length]),
        sampler_logprobs=logprobs[:, :length] * mask,
        reward=torch.tensor([episode.reward for episode in episodes]),
    )


def score(policy: Policy, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each of `tokens` (B, T) given those before it, and the entropy there, in nats.

    Both are (B, T); the first column, which has nothing before it, is 0.
    """
    logits, _ = policy(tokens[:, :-1])
    scores = logits.log_softmax(-1)
    logprobs = scores.gather(2, tokens[:, 1:, None])[..., 0]
    entropy = -(scores.exp() * scores).sum(-1)
    return nn.functional.pad(logprobs, (1, 0)), nn.functional.pad(entropy, (1, 0))
