"""A PPO-style loop of your own: hand over tensors as you have them, padded or packed.

    python examples/own_loop.py
    python examples/own_loop.py --packed
    python examples/own_loop.py --ewma 0.9
    tracker-diag diagnose own_loop.jsonl

A tiny policy learns to count, and a tool speaks in the middle of each episode. Lines that you would add are marked.
"""

import argparse
import copy

import torch

import tracker_diag as td
from tracker_diag.trackers.files.write import JsonlTracker

parser = argparse.ArgumentParser()
parser.add_argument("--packed", action="store_true", help="tensors (N,) without padding, as varlen attention has them")
parser.add_argument("--ewma", type=float, default=0.0, help="PPO-EWMA: the proximal policy keeps this share an update")
parser.add_argument("--steps", type=int, default=120)
options = parser.parse_args()

TOKENS, BATCH, LENGTH = 16, 64, 24
TOOL = slice(10, 14)
torch.manual_seed(0)
torch.set_num_threads(1)  # it is tiny
policy = torch.nn.Embedding(TOKENS, TOKENS)  # the next token's logits, by the token before
proximal = copy.deepcopy(policy)  # a moving average of its weights, or with --ewma 0 the policy of the batch's start
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
monitor = td.Monitor([JsonlTracker("own_loop.jsonl")], algorithm="ppo")  # 1
loss = reward = torch.zeros(())


def score(model: torch.nn.Module, text: torch.Tensor) -> torch.Tensor:
    """(B, T) log-probabilities of the tokens of `text` under `model`, each from the token before."""
    logprobs: torch.Tensor = model(text.roll(1, 1)).log_softmax(-1).gather(-1, text[..., None])[..., 0]
    return logprobs


for step in range(options.steps):
    text = torch.randint(0, TOKENS, (BATCH, LENGTH))  # a prompt token, then the response
    length = torch.randint(18, LENGTH + 1, (BATCH, 1))
    response_mask = (torch.arange(LENGTH) < length) & (torch.arange(LENGTH) > 0)
    model_mask = response_mask.clone()
    model_mask[:, TOOL] = False  # what the tool said was not sampled
    with torch.no_grad():
        for t in range(1, LENGTH):
            sampled = torch.multinomial(policy(text[:, t - 1]).softmax(-1), 1)[:, 0]
            text[:, t] = torch.where(model_mask[:, t], sampled, text[:, t])
    right = (text == (text.roll(1, 1) + 1) % TOKENS) & model_mask
    reward = right.sum(1) / model_mask.sum(1)
    advantages = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None].expand(-1, LENGTH)

    old_logprobs = logprobs = score(proximal, text).detach()
    rollout_logprobs = score(policy, text).detach()  # of the policy that sampled
    weights = (old_logprobs - rollout_logprobs).exp()  # 1 without a moving average
    for _ in range(4):  # epochs
        logprobs = score(policy, text)
        ratio = (logprobs - old_logprobs).exp()
        gains = weights * torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -gains[model_mask].mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        proximal.weight.data.lerp_(policy.weight.data, 1 - options.ewma)

    if options.packed:
        rows = torch.arange(BATCH)[:, None].expand(-1, LENGTH)
        monitor.observe(  # 2: each of them (N,), the tokens of a sequence adjacent
            logprobs=logprobs[response_mask],
            old_logprobs=old_logprobs[response_mask],
            model_mask=model_mask[response_mask],
            advantages=advantages[response_mask],
            sequence_ids=rows[response_mask],
        )
    else:
        monitor.observe(  # 2: each of them (B, T)
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            response_mask=response_mask,
            model_mask=model_mask,
            advantages=advantages,
            rollout_logprobs=rollout_logprobs if options.ewma else None,
            applied_weights=weights if options.ewma else None,
        )
    monitor.log({"reward": reward.mean(), "loss": loss.detach()}, step)  # 3

summary = monitor.close()  # 4
table = monitor.slices_table()
for values in table.rows:
    row = dict(zip(table.columns, values, strict=True))
    print(f"{row['pair']} {row['slice']}: {row['count']} tokens, p95 |log-ratio| {row['p95']:.3f}")
for finding in summary.findings:
    print(finding.rule.id, finding.slice, finding.state, f"from step {finding.onset}:", finding.summary)
print(f"reward {reward.mean():.2f}, highest severity: {summary.level or 'none'}")
