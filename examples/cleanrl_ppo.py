"""PPO in one file, as CleanRL writes it, on CartPole; two lines attach the diagnostics.

    pip install "tracker-diag[tensorboard,torch]" gymnasium
    python examples/cleanrl_ppo.py
    python examples/cleanrl_ppo.py --clip-coef 1000 --learning-rate 0.02
    tensorboard --logdir runs

The second run does not clip, and learns too fast. Its own `losses/clipfrac` says that all is well; its weights say
what is wrong.
"""

import argparse
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter

import tracker_diag as td

parser = argparse.ArgumentParser()
parser.add_argument("--total-timesteps", type=int, default=16_000)
parser.add_argument("--learning-rate", type=float, default=2.5e-3)
parser.add_argument("--clip-coef", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()
NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 4, 64, 4, 4
GAMMA, LAMBDA, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.99, 0.95, 0.01, 0.5, 0.5
BATCH = NUM_ENVS * NUM_STEPS

torch.manual_seed(args.seed)
torch.set_num_threads(1)
shuffle = np.random.default_rng(args.seed)
writer = SummaryWriter(f"runs/ppo_{args.seed}_{int(time.time())}")
writer = td.wrap(writer, algorithm="ppo")  # 1: wrap the writer
envs = gym.vector.SyncVectorEnv(
    [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))] * NUM_ENVS,
    autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
)


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> nn.Linear:
    """A linear layer, orthogonal at the start."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.constant_(linear.bias, 0.0)
    return linear


critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))
parameters = [*critic.parameters(), *actor.parameters()]


def distribution(x: torch.Tensor) -> Any:
    """The policy's distribution of actions."""
    return Categorical(logits=actor(x))


optimizer = torch.optim.Adam(parameters, lr=args.learning_rate, eps=1e-5)

obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4)
actions, logprobs, rewards, dones, values = torch.zeros(5, NUM_STEPS, NUM_ENVS)
observation, _ = envs.reset(seed=args.seed)
next_obs, next_done = torch.tensor(observation), torch.zeros(NUM_ENVS)
global_step, start = 0, time.time()

for update in range(args.total_timesteps // BATCH):
    optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update * BATCH / args.total_timesteps)
    for t in range(NUM_STEPS):
        global_step += NUM_ENVS
        obs[t], dones[t] = next_obs, next_done
        with torch.no_grad():
            dist = distribution(next_obs)
            action = dist.sample()
            values[t], actions[t], logprobs[t] = critic(next_obs)[:, 0], action, dist.log_prob(action)
        observation, reward, terminated, truncated, infos = envs.step(action.numpy())
        rewards[t], next_obs = torch.tensor(reward), torch.tensor(observation)
        next_done = torch.tensor(terminated | truncated, dtype=torch.float32)
        ended = infos.get("final_info", {}).get("episode")
        if ended is not None:
            returns_ = ended["r"][infos["_final_info"]]
            writer.add_scalar("charts/episodic_return", returns_.mean(), global_step)
            writer.add_scalar("charts/episodic_length", ended["l"][infos["_final_info"]].mean(), global_step)

    with torch.no_grad():
        advantages, last = torch.zeros_like(rewards), torch.zeros(NUM_ENVS)
        for t in reversed(range(NUM_STEPS)):
            alive = 1 - (next_done if t == NUM_STEPS - 1 else dones[t + 1])
            following = critic(next_obs)[:, 0] if t == NUM_STEPS - 1 else values[t + 1]
            delta = rewards[t] + GAMMA * following * alive - values[t]
            advantages[t] = last = delta + GAMMA * LAMBDA * alive * last
        returns = advantages + values
    b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1)
    b_advantages, b_returns, b_values = advantages.reshape(-1), returns.reshape(-1), values.reshape(-1)

    clipfracs: list[float] = []
    v_loss = pg_loss = entropy = old_approx_kl = approx_kl = torch.zeros(())
    for _ in range(EPOCHS):
        for mb in np.split(shuffle.permutation(BATCH), MINIBATCHES):
            dist = distribution(b_obs[mb])
            newlogprob, entropy = dist.log_prob(b_actions[mb]), dist.entropy().mean()
            logratio = newlogprob - b_logprobs[mb]
            ratio = logratio.exp()
            writer.diag.observe(  # 2: hand over both log-probabilities; each action is a sequence of its own
                logprobs=newlogprob[:, None], old_logprobs=b_logprobs[mb, None], model_mask=torch.ones(len(mb), 1)
            )
            with torch.no_grad():
                old_approx_kl, approx_kl = -logratio.mean(), (ratio - 1 - logratio).mean()
                clipfracs.append(((ratio - 1).abs() > args.clip_coef).float().mean().item())
            mb_advantages = b_advantages[mb]
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            pg_loss = torch.max(-mb_advantages * ratio, -mb_advantages * clipped).mean()
            v_loss = 0.5 * (critic(b_obs[mb])[:, 0] - b_returns[mb]).square().mean()
            loss = pg_loss - ENT_COEF * entropy + VF_COEF * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()

    explained = 1 - (b_returns - b_values).var() / b_returns.var()
    writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
    writer.add_scalar("losses/value_loss", v_loss.item(), global_step)
    writer.add_scalar("losses/policy_loss", pg_loss.item(), global_step)
    writer.add_scalar("losses/entropy", entropy.item(), global_step)
    writer.add_scalar("losses/old_approx_kl", old_approx_kl.item(), global_step)
    writer.add_scalar("losses/approx_kl", approx_kl.item(), global_step)
    writer.add_scalar("losses/clipfrac", float(np.mean(clipfracs)), global_step)
    writer.add_scalar("losses/explained_variance", explained.item(), global_step)
    writer.add_scalar("charts/SPS", int(global_step / (time.time() - start)), global_step)

envs.close()
writer.close()
for finding in writer.diag.summary().findings:
    print(finding.rule.id, finding.slice, finding.state, f"from step {finding.onset}:", finding.summary)
print(f"highest severity: {writer.diag.summary().level or 'none'}")
