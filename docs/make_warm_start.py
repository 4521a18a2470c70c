"""Makes `tracker_diag/demo/warm_start.safetensors`: `python docs/make_warm_start.py`, about a minute on one core.

Label smoothing is needed. Without it the policy is too certain after warm-up. Its effective sample size is then near
zero from the first steps on. No weight statistic can be read on such a run.
"""

import random

import torch
from torch import nn

from tracker_diag.demo.policy import WARM_START, Policy
from tracker_diag.demo.world import ANS, CALL, EOS, PAD, PROMPT_LENGTH, Task, draw_task, tool_output

STEPS = 1200
BATCH = 128


def demonstration(task: Task, rng: random.Random, width: float) -> tuple[list[int], list[bool]]:
    """The tokens of a perfect episode, and which of them the policy is to produce."""
    tokens, sampled = list(task.prompt), [False] * PROMPT_LENGTH
    for key, value in zip(task.keys, task.values, strict=False):
        output = tool_output(rng, value, width)
        tokens += [CALL, *divmod(key, 10), *output]
        sampled += [True] * 3 + [False] * len(output)
    tokens += [ANS, *task.answer, EOS]
    sampled += [True] * 4
    return tokens, sampled


def main() -> None:
    """Train on demonstrations and write the file."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = random.Random(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-5)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.02)
    for step in range(STEPS):
        episodes = [demonstration(draw_task(rng, 0.6), rng, rng.uniform(0, 0.08)) for _ in range(BATCH)]
        longest = max(len(tokens) for tokens, _ in episodes)
        tokens = torch.tensor([t + [PAD] * (longest - len(t)) for t, _ in episodes])
        sampled = torch.tensor([s + [False] * (longest - len(s)) for _, s in episodes])
        logits, _ = policy(tokens[:, :-1])
        loss = loss_of(logits[sampled[:, 1:]], tokens[:, 1:][sampled[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
    save_file(policy.state_dict(), WARM_START)


if __name__ == "__main__":
    main()
