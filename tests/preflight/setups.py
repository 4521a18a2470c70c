"""Nine clean set-ups: arguments of `preflight` in which nothing is wrong."""

import random

import gymnasium
import numpy as np

PAD, EOS, TOOL = 0, 2, 9


class Words:
    """A tool environment that is none of Gymnasium's: guess a digit, with one look at a hint."""

    def reset(self, *, seed=None):
        self.answer, self.turn = random.Random(seed).randrange(10), 0
        return "guess, or look", {}

    def step(self, action):
        self.turn += 1
        if action == "look":
            return f"it is {self.answer}", -0.1, False, self.turn >= 5, {}
        return "over", float(action == str(self.answer)), True, False, {}


def at_random(seed=0):
    drawn = random.Random(seed)
    return lambda observation: drawn.choice(["look", *"0123456789"])


def reads(observation):
    return observation[-1] if observation.startswith("it is") else "look"


class Corridor(gymnasium.Env):
    """Five places; the right end is the goal."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(0, 3)), 0
        return self.seen(), {}

    def seen(self):
        return np.array([self.place / 4], np.float32)

    def step(self, action):
        self.place, self.steps = max(0, min(4, self.place + (1 if action else -1))), self.steps + 1
        over = self.place == 4
        return self.seen(), 1.0 if over else -0.1, over, self.steps >= 20, {}


def forward(observation):
    return 1


def batch(n=8, width=40, *, left=False):
    """Prompts of 6 to 9 tokens, an answer with a tool's result in its midst, an end token, and padding."""
    rng = np.random.default_rng(0)
    ids, attended, response, model = (np.zeros((n, width), int) for _ in range(4))
    for row in range(n):
        prompt, first, tool, second = rng.integers(6, 10), rng.integers(5, 8), 4, rng.integers(5, 8)
        length = int(prompt + first + tool + second)
        at = width - length if left else 0
        ids[row, at : at + length] = rng.integers(10, 90, length)
        attended[row, at : at + length] = 1
        response[row, at + prompt : at + length] = 1
        model[row, at + prompt : at + length] = 1
        model[row, at + prompt + first : at + prompt + first + tool] = 0
        ids[row, at + prompt + first : at + prompt + first + tool] = TOOL
        ids[row, at + length - 1] = EOS
    trainer = rng.uniform(-3, -0.05, (n, width))
    return {
        "token_ids": ids, "attention_mask": attended, "response_mask": response, "model_mask": model,
        "loss_mask": model.copy(), "old_logprobs": trainer,
        "rollout_logprobs": trainer - rng.normal(0, 0.02, trainer.shape),
        "logprobs_again": trainer - rng.normal(0, 0.02, trainer.shape),
    }  # fmt: skip


def grpo():
    rng = np.random.default_rng(1)
    success = (rng.random(64) < 0.5).astype(float)
    return {
        "rewards": success + 0.1 * rng.random(64), "groups": [i // 8 for i in range(64)], "success": success,
        "advantage": normalised, "rewards_before": success,
    }  # fmt: skip


def normalised(rewards, groups):
    result = np.zeros(len(rewards))
    for group in np.unique(groups):
        part = rewards[groups == group]
        result[groups == group] = (part - part.mean()) / (part.std() + 1e-4)
    return result


def rollout():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(200, 4))
    returns = 500 + features @ [100.0, -50.0, 25.0, 0.0] + rng.normal(0, 25, 200)
    return {"returns": returns, "values": returns + rng.normal(0, 40, 200)}


EVALUATION = {
    "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 512, "prompt_template": "qa-v2", "num_samples": 4,
    "split": "dev",
}  # fmt: skip
SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip


def clean():
    """Arguments of `preflight` by the name of the set-up, made anew."""
    masks = {"batch": batch(), "pad_id": PAD, "eos_id": EOS}
    return {
        "MountainCar": {"env": lambda: gymnasium.make("MountainCar-v0"), "policy": lambda seen: 2 * (seen[1] > 0)},
        "corridor": {"env": Corridor, "policy": forward},
        "words": {"env": Words, "random_policy": at_random(), "policy": reads},
        "padded on the right": masks,
        "padded on the left": masks | {"batch": batch(left=True)},
        "GRPO in TRL": grpo() | {
            "config": {"eval": EVALUATION},
            "overfit": [2.3 * 0.8**i for i in range(20)], "evaluate": lambda: 0.55,
        },
        "PPO in SB3": rollout(),
        "tools and memory": {
            "tool": lambda q: q * 2, "tool_arguments": [1, 2, 3],
            "memory": {"device_gib": 80, "actor": SHAPE, "reference": SHAPE, "micro_batch": 4, "length": 2048,
                       "checkpointing": True},
        },
    }  # fmt: skip
