"""Simulated failures of training: from advantages to machines, and those of fine-tuning.

Each takes a `Case` of failures.py and changes what the failure changes in the metrics that a trainer logs, its
consequences included. Nothing here looks at a rule's limit.
"""

import numpy as np

# Advantages and groups.


def groups_without_spread(c):
    a = c.since(30, 100)
    c.share("zero_std_share", c.between(0.93, 1), a)
    for name in ("reward_std", "group_reward_std"):
        c.times(name, c.between(0.1, 0.4), a)


def echo_trap(c):
    a = c.since(20, 80)
    for name in ("group_reward_std", "reward_std"):
        c.times(name, c.between(0.1, 0.4), a)
    c.times("entropy", c.between(0.1, 0.5), a)
    c.share("zero_std_share", c.between(0.5, 0.8), a)
    c.reward(-c.between(0.0, 0.1), a)


def advantages_grow(c):
    a = c.since(20, 80)
    factor = c.between(6, 30)
    c.times("advantage_std", factor, a)
    c.times("grad_norm", factor**0.5, a)


def dominated_by_few(c):
    a = c.since(20, 80)
    c.series["advantage_ess"] = c.draw.positive(c.series["advantage_ess"] * (c.between(0.05, 0.2) ** a), 0.1)


def zero_updates(c):
    c.share("zero_std_share", 1.0, c.since(30, 60))
    after = np.arange(c.n) >= c.onset + 60
    c.series["grad_norm"] = np.where(after, 0.0, c.series["grad_norm"])
    c.series["zero_std_share"] = np.where(after, 1.0, c.series["zero_std_share"])
    c.series["reward"] = np.where(after, c.series["reward"][c.onset + 60], c.series["reward"])


# Policy update.


def aggressive_update(c):
    a = c.since(10, 40)
    c.series["approx_kl"] = np.maximum(c.series["approx_kl"], 5e-4)
    c.times("approx_kl", c.between(40, 150), a)
    c.times("kl", c.between(6, 20), a)
    c.share("clip_fraction", c.between(0.85, 0.95) if c.run.algorithm == "gspo" else c.between(0.47, 0.6), a)
    c.times("grad_norm", c.between(1, 4), a)
    c.falls(c.between(0.4, 0.8), a)


def kl_bursts(c):
    rows = c.onset + 25 * np.arange(3)
    for row in rows:
        burst = slice(row, row + int(c.rng.integers(4, 9)))
        c.series["approx_kl"][burst] = c.between(0.05, 0.3)
        c.series["kl"][burst] *= c.between(1, 2)


def silent_exit(c):
    a = c.since(40, 80)
    c.series["approx_kl"] = c.series["approx_kl"] ** (1 - a) * c.draw.positive(c.between(0.08, 0.3), 0.1) ** a
    c.times("kl", c.between(3, 10), a)
    c.times("clip_fraction", c.between(0.5, 1), a)


def mismatch(c):
    a = c.since(20, 120)
    c.times("mismatch_kl", c.between(60, 200), a)
    c.times("logprob_difference", c.between(3, 8), a)
    c.times("logprob_difference_max", c.between(1, 3), a)


def pinned(c):
    c.onset = 0
    c.series["kl"] = c.draw.positive(10 ** c.between(-5, -3.7), 0.15)
    c.series["kl_coefficient"] = np.full(c.n, c.between(0.05, 1))
    c.series["approx_kl"] = c.draw.positive(10 ** c.between(-6, -5), 0.15)


# Critic.


def worse_than_mean(c):
    a = c.since(20, 80)
    c.plus("explained_variance", -c.between(1.2, 2), a)
    c.times("value_loss", c.between(2, 6), a)


def value_explosion(c):
    a = c.since(10, 40)
    c.times("value_loss", c.between(300, 3000), a)
    c.plus("explained_variance", -c.between(0.3, 1.5), a)


def value_scale(c):
    c.onset = 0
    c.times("value_std", c.between(0.02, 0.1), 1.0)
    c.series["explained_variance"] = c.between(0.02, 0.12) + 0.02 * c.draw.noise()


def critic_never_learns(c):
    c.onset = 0
    c.series["explained_variance"] = c.between(-0.02, 0.02) + 0.01 * c.draw.noise()
    c.series["value_loss"] = c.draw.positive(c.between(0.1, 1), 0.1)


# Exploration.


def entropy_collapse(c):
    a = c.since(20, 80)
    c.series["entropy"] = c.series["entropy"] ** (1 - a) * c.draw.positive(c.between(0.005, 0.03), 0.1) ** a
    c.reward(-c.between(0, 0.05), a)


def entropy_eruption(c):
    a = c.since(10, 60)
    c.times("entropy", c.between(6, 12), a)
    c.falls(c.between(0.3, 0.8), a)


def random_walk(c):
    c.onset = 0
    c.series["entropy"] = c.draw.positive(c.between(2.5, 5), 0.03)


def one_tool(c):
    c.series["tool_entropy"] = c.series["tool_entropy"] * (c.between(0.01, 0.06) ** c.since(20, 80))


def frozen(c):
    after = np.arange(c.n) >= c.onset
    for name in ("grad_norm", "approx_kl", "clip_fraction"):
        c.series[name] = np.where(after, c.between(0, 1e-8), c.series[name])
    c.series["kl"] = np.where(after, c.series["kl"][c.onset], c.series["kl"])


# Freshness, numbers, machines.


def stale(c):
    a = c.since(40, 120)
    swing = 1 + 0.25 * c.draw.noise()
    lag = c.between(9, 24) * a * np.clip(swing, 0.2, None)
    c.plus("policy_lag", lag, 1.0)
    c.series["logprob_difference"] = c.series["logprob_difference"] * (1 + 0.2 * lag)
    c.series["clip_fraction"] = np.clip(c.series["clip_fraction"] + 0.01 * lag, 0, 1)


def mixed_versions(c):
    a = c.since(20, 80)
    c.plus("version_span", c.between(5, 15), a)
    c.times("response_length", c.between(1, 1.3), a)


def non_finite(c):
    name = str(c.rng.choice(["loss", "grad_norm"]))
    c.series[name] = np.where(np.arange(c.n) >= c.onset, np.inf, c.series[name])


def gradient_explodes(c):
    c.times("grad_norm", c.between(50, 1000), c.since(1, 30))


def overflow(c):
    falls = np.maximum(np.arange(c.n) - c.onset, 0) // int(c.rng.integers(2, 6))
    c.series["loss_scale"] = np.maximum(65536.0 * 0.5 ** np.minimum(falls, 40), 1e-4)
    c.series["skipped_steps"] = np.minimum(falls, 40).astype(float)


def extreme_logprobs(c):
    after = np.arange(c.n) >= c.onset
    c.series["logprob_difference_max"] = np.where(
        after, np.maximum(20, c.draw.positive(28, 0.1)), c.series["logprob_difference_max"]
    )


def throughput(c):
    c.times("throughput", c.between(0.25, 0.5), c.since(1, 60))
    c.times("step_seconds", c.between(1.8, 3), c.since(1, 60))


def memory(c):
    rows = np.maximum(np.arange(c.n) - c.onset, 0) / (c.n - c.onset)
    reserved = c.series["memory_reserved"]
    c.series["memory_reserved"] = reserved + (79.8 - reserved) * np.clip(rows * c.between(1.15, 2), 0, 1)


def straggler(c):
    c.plus("rank_time_ratio", c.between(0.7, 2), c.since(1, 30))
    c.times("throughput", c.between(0.4, 0.6), c.since(1, 30))


# Fine-tuning and preferences.


def overfitting(c):
    a = c.since(100, 170)
    c.times("loss", c.between(0.3, 0.6), a)
    c.times("eval_loss", c.between(1.4, 2), a)


def stuck_at_random(c):
    c.onset = 0
    s = c.series
    s["loss"] = np.log(2) + 0.002 * c.draw.noise()
    s["eval_loss"] = c.evaluated(np.log(2), 0.001, 10)
    s["reward_margin"] = 0.005 * c.draw.noise()
    s["preference_accuracy"] = c.draw.share(0.5, 0.03)


def margin_collapse(c):
    c.onset += 60  # there has to be a margin
    a = c.since(20, 60)
    c.series["reward_margin"] = c.series["reward_margin"] * (1 - c.between(0.75, 1) * a)
    c.series["preference_accuracy"] = c.draw.share(c.series["preference_accuracy"] * (1 - a) + 0.52 * a, 0.02)
    c.series["loss"] = c.series["loss"] * (1 - a) + 0.72 * a


def labels_swapped(c):
    c.onset = 0
    s = c.series
    s["reward_margin"] = -s["reward_margin"]
    s["preference_accuracy"] = 1 - s["preference_accuracy"]
