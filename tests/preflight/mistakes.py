"""Mistakes of wiring: each is made in one clean set-up, and nothing else of it changes."""

import itertools
import runpy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

clean = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("setups.py"))))


class OldGym(clean.Corridor):
    def step(self, action):
        observation, reward, over, cut, info = super().step(action)
        return observation, reward, over or cut, info


class NeverEnds(clean.Corridor):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


class Unseeded(clean.Corridor):
    drawn = itertools.count()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = next(self.drawn) % 3
        return self.seen(), {}


class NotNormalised(clean.Corridor):
    def seen(self):
        return np.array([self.place * 100.0], np.float32)


class NotScaled(clean.Corridor):
    observation_space = gymnasium.spaces.Box(-1000.0, 1000.0, (1,), np.float32)

    def seen(self):
        return np.array([self.place * 100.0], np.float32)


class WideActions(clean.Corridor):
    action_space = gymnasium.spaces.Box(-500.0, 500.0, (1,), np.float32)

    def step(self, action):
        return super().step(int(action[0] > 0))


class IgnoresActions(clean.Corridor):
    def step(self, action):
        return super().step(int(self.np_random.integers(0, 2)))


class WrongSign(clean.Corridor):
    def step(self, action):
        observation, reward, over, cut, info = super().step(action)
        return observation, -reward, over, cut, info


@dataclass
class Mistake:
    base: str
    """The clean set-up in which it is made."""
    change: dict[str, Any]
    finds: str
    """The check that must fail."""


def changed(**arrays):
    return {"batch": clean.batch() | arrays}


def shifted(mask):
    return np.roll(mask, 1, axis=1)


def without_end(given):
    return given["loss_mask"] * (given["token_ids"] != clean.EOS)


def divides_by_zero(rewards, groups):
    result = np.zeros(len(rewards))
    for group in np.unique(groups):
        part = rewards[groups == group]
        with np.errstate(invalid="ignore"):
            result[groups == group] = (part - part.mean()) / part.std()
    return result


B = clean.batch()
R = clean.grpo()
V = clean.rollout()

MISTAKES = {
    "step gives four values": Mistake("corridor", {"env": OldGym}, "env_steps"),
    "episodes never end": Mistake("corridor", {"env": NeverEnds}, "env_ends"),
    "reset ignores its seed": Mistake("corridor", {"env": Unseeded}, "env_api"),
    "observations are not normalised": Mistake("corridor", {"env": NotNormalised}, "env_steps"),
    "actions do not reach the environment": Mistake("corridor", {"env": IgnoresActions}, "expert_beats_random"),
    "the environment's reward has the wrong sign": Mistake("corridor", {"env": WrongSign}, "expert_beats_random"),
    "every reward is zero": Mistake("GRPO in TRL", {"rewards": np.zeros(64)}, "reward_histogram"),
    "one reward is an outlier": Mistake("GRPO in TRL",
        {"rewards": np.append(R["rewards"][:-1], 1e4)}, "reward_histogram"),
    "the scorer gives NaN": Mistake("GRPO in TRL",
        {"rewards": np.append(R["rewards"][:-1], np.nan)}, "reward_histogram"),
    "rewards have the wrong sign": Mistake("GRPO in TRL", {"rewards": -R["rewards"]}, "reward_sign"),
    "each sample has a group of its own": Mistake("GRPO in TRL", {"groups": list(range(64))}, "reward_groups"),
    "two prompts share an id": Mistake("GRPO in TRL",
        {"groups": [max(0, i // 8 - 3) for i in range(64)]}, "reward_groups"),
    "all samples of a prompt get one reward": Mistake("GRPO in TRL",
        {"rewards": np.repeat(np.linspace(0, 1, 8), 8)}, "reward_groups"),
    "advantages are divided by a deviation of zero": Mistake("GRPO in TRL",
        {"advantage": divides_by_zero}, "advantage_extremes"),
    "values are normalised and returns are not": Mistake("PPO in SB3",
        {"values": (V["values"] - V["values"].mean()) / V["values"].std()}, "critic_fit"),
    "values belong to other steps": Mistake("PPO in SB3", {"values": np.roll(V["values"], 1)}, "critic_fit"),
    "padding is trained": Mistake("padded on the right",
        changed(loss_mask=B["model_mask"] | (1 - B["attention_mask"])), "mask_padding"),
    "the prompt is trained": Mistake("padded on the left",
        changed(loss_mask=B["attention_mask"] * (B["model_mask"] | (1 - B["response_mask"]))), "mask_prompt"),
    "tool output is trained": Mistake("padded on the right", changed(loss_mask=B["response_mask"]), "mask_tools"),
    "the mask is shifted by a token": Mistake("padded on the right",
        changed(loss_mask=shifted(B["model_mask"])), "mask_coverage"),
    "the end token is masked": Mistake("padded on the right", changed(loss_mask=without_end(B)), "mask_end"),
    "the sampler has another temperature": Mistake("padded on the right",
        changed(rollout_logprobs=1.6 * B["old_logprobs"]), "sampler_step0"),
    "log-probs are of the next token": Mistake("padded on the right",
        changed(rollout_logprobs=shifted(B["old_logprobs"])), "batch_form"),
    "placeholders stand for log-probs": Mistake("padded on the right",
        changed(rollout_logprobs=np.where(np.arange(40) % 20 < 1, 0.0, B["rollout_logprobs"]) *
        (np.arange(40) % 12 > 0)), "sampler_step0"),
    "the evaluation's temperature is written nowhere": Mistake("GRPO in TRL",
        {"config": {"eval": {name: value for name, value in clean.EVALUATION.items() if name !=
        "temperature"}}}, "evaluation_complete"),
    "a tool that fails under load": Mistake("tools and memory", {"tool": lambda q: 1 / (q - 2)}, "tool_stress"),
    "a tool that answers in several forms": Mistake("tools and memory",
        {"tool": lambda q: {"found": q} if q % 2 else "nothing"}, "tool_outputs"),
    "a new reward that pays what is wrong": Mistake("GRPO in TRL",
        {"rewards": R["rewards"] * (np.arange(64) % 3 > 0), "rewards_before": R["rewards"]}, "reward_revision"),
    "observations are not scaled": Mistake("corridor", {"env": NotScaled}, "env_scale"),
    "actions are in units of the machine": Mistake("corridor", {"env": WideActions}, "env_scale"),
    "the optimiser has no parameters": Mistake("GRPO in TRL", {"overfit": [2.3] * 20}, "batch_overfits"),
    "length pays more than the solution": Mistake("GRPO in TRL",
        {"rewards": clean.grpo()["rewards"] + np.arange(64) % 8}, "reward_ranks"),
    "the evaluation draws its tasks anew": Mistake("GRPO in TRL",
        {"evaluate": itertools.cycle((0.5, 0.6)).__next__}, "evaluation_repeats"),
    "a model that does not fit": Mistake("tools and memory", {"memory": {"device_gib": 24, "actor": 7e9}}, "memory"),
}  # fmt: skip
