"""PPO in one file under CleanRL's names, with the mistakes that people make when they write it themselves."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tasks import TASKS
from torch import nn
from torch.distributions import Categorical

Fault = Mapping[str, Any]
"""What is planted: sign, bootstrap, keep_gradient, rate_from, stale, inverted, clip, epochs, entropy, rate."""

ENVS, STEPS, EPOCHS, MINIBATCHES, UPDATES, RATE = 4, 128, 4, 4, 80, 1.5e-3
GAMMA, LAMBDA, ENTROPY, VALUE, LARGEST = 0.99, 0.95, 0.01, 0.5, 0.5


def layers(inputs: int, outputs: int, std: float) -> nn.Sequential:
    """Two hidden layers, orthogonal at the start."""
    net = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, gain in zip((net[0], net[2], net[4]), (2**0.5, 2**0.5, std), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return net


def run(fault: Fault, seed: int, task: str = "CartPole") -> dict[int, dict[str, float]]:
    """Rows by environment step."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(TASKS[task]())] * ENVS,
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    inputs, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor, critic = layers(inputs, choices, 0.01), layers(inputs, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    rate, clip = fault.get("rate", RATE), fault.get("clip", 0.2)
    optimizer = torch.optim.Adam(parameters, lr=rate, eps=1e-5)
    obs = torch.zeros(STEPS, ENVS, inputs)
    actions, logprobs, rewards, dones, values = torch.zeros(5, STEPS, ENVS)
    seen, _ = envs.reset(seed=seed)
    following, done = torch.tensor(seen), torch.zeros(ENVS)
    rows: dict[int, dict[str, float]] = {}
    first: Any = None
    for update in range(UPDATES):
        onset, factor = fault.get("rate_from", (2.0, 1.0))
        optimizer.param_groups[0]["lr"] = rate * (factor if update >= onset * UPDATES else 1.0)
        returns, lengths = [], []
        for t in range(STEPS):
            obs[t], dones[t] = following, done
            with torch.no_grad():
                dist = Categorical(logits=actor(following))
                actions[t] = dist.sample()
                values[t], logprobs[t] = critic(following)[:, 0], dist.log_prob(actions[t])
            seen, reward, ended, cut, infos = envs.step(actions[t].int().numpy())
            rewards[t], following = torch.tensor(reward), torch.tensor(seen)
            done = torch.tensor(ended | cut, dtype=torch.float32)
            if "final_info" in infos:
                messages = infos["final_info"]["episode"]
                returns += messages["r"][infos["_final_info"]].tolist()
                lengths += messages["l"][infos["_final_info"]].tolist()
        with torch.no_grad():
            advantages, last = torch.zeros_like(rewards), torch.zeros(ENVS)
            for t in reversed(range(STEPS)):
                end = t == STEPS - 1
                alive = 1.0 if fault.get("bootstrap") else 1 - (done if end else dones[t + 1])
                delta = rewards[t] + GAMMA * (critic(following)[:, 0] if end else values[t + 1]) * alive - values[t]
                advantages[t] = last = delta + GAMMA * LAMBDA * alive * last
            targets = advantages + values
        if fault.get("stale") and first is not None:  # advantages and actions of one rollout, states of the one before
            now, kept = first, (obs.clone(), logprobs.clone())
            b_obs, b_logprobs = now[0].reshape(-1, inputs), now[1].reshape(-1)
            first = kept
        else:
            first = (obs.clone(), logprobs.clone())
            b_obs, b_logprobs = obs.reshape(-1, inputs), logprobs.reshape(-1)
        b_actions, b_advantages, b_targets = actions.reshape(-1), advantages.reshape(-1), targets.reshape(-1)
        if fault.get("sign"):
            b_advantages = -b_advantages
        clipped_share: list[float] = []
        for _ in range(fault.get("epochs", EPOCHS)):
            for mb in np.split(rng.permutation(STEPS * ENVS), MINIBATCHES):
                dist = Categorical(logits=actor(b_obs[mb]))
                logprob, entropy = dist.log_prob(b_actions[mb]), dist.entropy().mean()
                ratio = (logprob - b_logprobs[mb]).exp()
                if fault.get("inverted"):
                    ratio = 1 / ratio
                with torch.no_grad():
                    change = logprob - b_logprobs[mb]
                    old_kl, kl = -change.mean(), (change.exp() - 1 - change).mean()
                    clipped_share.append(((ratio - 1).abs() > clip).float().mean().item())
                advantage = b_advantages[mb]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
                value_loss = 0.5 * (critic(b_obs[mb])[:, 0] - b_targets[mb]).square().mean()
                loss = policy_loss - fault.get("entropy", ENTROPY) * entropy + VALUE * value_loss
                if not fault.get("keep_gradient"):
                    optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(parameters, LARGEST)
                optimizer.step()
        explained = 1 - (targets - values).var() / targets.var()
        row = {
            "charts/learning_rate": optimizer.param_groups[0]["lr"], "losses/value_loss": value_loss.item(),
            "losses/policy_loss": policy_loss.item(), "losses/entropy": entropy.item(),
            "losses/old_approx_kl": old_kl.item(), "losses/approx_kl": kl.item(),
            "losses/clipfrac": float(np.mean(clipped_share)), "losses/explained_variance": explained.item(),
            "losses/grad_norm": norm.item(),
        }  # fmt: skip
        if returns:
            row |= {
                "charts/episodic_return": float(np.mean(returns)),
                "charts/episodic_length": float(np.mean(lengths)),
            }
        rows[(update + 1) * STEPS * ENVS] = row
    envs.close()
    return rows
