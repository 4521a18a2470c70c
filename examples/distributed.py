"""The same on several ranks: every statistic is of the whole batch, and rank 0 writes.

    python examples/distributed.py

Two processes over gloo on this machine; under torchrun, call `train` alone and take rank and world size from it.
"""

import multiprocessing
import socket

import torch
import torch.distributed as dist

import tracker_diag as td
from tracker_diag.trackers.files.write import JsonlTracker

WORLD, STEPS = 2, 40
TOKENS, BATCH, LENGTH = 16, 32, 24
TOOL = slice(10, 14)


def score(policy: torch.nn.Module, text: torch.Tensor) -> torch.Tensor:
    """(B, T) log-probabilities of the tokens of `text` under the policy, each from the token before."""
    logprobs: torch.Tensor = policy(text.roll(1, 1)).log_softmax(-1).gather(-1, text[..., None])[..., 0]
    return logprobs


def train(rank: int, address: str) -> None:
    """One rank: its own episodes, the same policy."""
    torch.set_num_threads(1)  # it is tiny
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    policy = torch.nn.Embedding(TOKENS, TOKENS)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    torch.manual_seed(rank + 1)
    # Made on every rank; only rank 0 has somewhere to write.
    backends = [JsonlTracker("distributed.jsonl")] if rank == 0 else []
    monitor = td.Monitor(backends, ranks=td.AllReduce(), algorithm="ppo")
    loss = reward = torch.zeros(())

    for step in range(STEPS):
        text = torch.randint(0, TOKENS, (BATCH, LENGTH))
        model_mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        model_mask[:, 0] = model_mask[:, TOOL] = False
        with torch.no_grad():
            for t in range(1, LENGTH):
                sampled = torch.multinomial(policy(text[:, t - 1]).softmax(-1), 1)[:, 0]
                text[:, t] = torch.where(model_mask[:, t], sampled, text[:, t])
        right = (text == (text.roll(1, 1) + 1) % TOKENS) & model_mask
        reward = right.sum(1) / model_mask.sum(1)
        advantages = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None]

        old_logprobs = logprobs = score(policy, text).detach()
        for _ in range(4):
            logprobs = score(policy, text)
            ratio = (logprobs - old_logprobs).exp()
            loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)[model_mask].mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            dist.all_reduce(policy.weight.grad)  # summed, which Adam minds as little as an average
            optimizer.step()

        # On every rank, once a step: its own tensors, and the same number of the step.
        monitor.observe(logprobs=logprobs, old_logprobs=old_logprobs, model_mask=model_mask)
        monitor.log({"reward": reward.mean(), "loss": loss.detach()}, step)

    summary = monitor.close()
    if rank == 0:
        table = monitor.slices_table()
        rows = [dict(zip(table.columns, values, strict=True)) for values in table.rows]
        counts = {row["slice"]: row["count"] for row in rows}
        print(
            f"{counts['all']} model tokens of {WORLD} ranks in the last 8 steps, {counts['post_tool']} after the tool"
        )
        print(f"reward {reward.mean():.2f}, highest severity: {summary.level or 'none'}")
    dist.destroy_process_group()


def free_port() -> int:
    """A port for the ranks to meet at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    address = f"tcp://127.0.0.1:{free_port()}"
    ranks = [multiprocessing.get_context("spawn").Process(target=train, args=(rank, address)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    raise SystemExit(any(process.exitcode for process in ranks))
