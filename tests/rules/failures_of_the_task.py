"""Simulated failures of the task: what goes wrong in environment, evaluation and reward.

Each takes a `Case` of failures.py and changes what the failure changes in the metrics that a trainer logs, its
consequences included. Nothing here looks at a rule's limit.
"""

import numpy as np

# Environment.


def tools_fail(c):
    a = c.since(1, 40)
    c.share("tool_failure_rate", c.between(0.3, 0.8), a)
    c.reward(-c.between(0.02, 0.2), a)


def malformed_calls(c):
    a = c.since(5, 60)
    c.share("malformed_call_rate", c.between(0.15, 0.6), a)
    c.reward(-c.between(0.02, 0.15), a)


def truncation(c):
    a = c.since(30, 100)
    c.share("truncated_share", c.between(0.93, 1), a)
    c.times("response_length", c.between(1.5, 3), a)
    c.falls(c.between(0.2, 0.6), a)


def tools_slow_under_load(c):
    a = c.since(10, 80)
    c.times("concurrency", c.between(1.6, 4), a)
    c.times("tool_seconds", c.between(2.5, 6), a)
    c.series["tool_seconds"] = np.maximum(c.series["tool_seconds"], 1.0) * (1 + 0.5 * a)
    c.share("tool_timeouts", c.between(0.05, 0.3), a)
    c.times("throughput", c.between(0.4, 0.8), a)


def failures_rewarded(c):
    a = c.since(1, 2)
    success, failure = c.series["reward_after_tool_success"], c.series["reward_after_tool_failure"]
    c.series["reward_after_tool_failure"] = (1 - a) * failure + a * c.between(0.9, 1.0) * success


# Evaluation.


def protocol_changed(c):
    c.run.config = {0: {"eval.temperature": 1.0, "eval.max_new_tokens": 1024}, c.onset: {"eval.temperature": 0.6}}
    c.scores(c.between(-0.1, 0.1), c.since(1, 2))


def memorised(c):
    a = c.since(60, 140)
    c.reward(c.between(0.2, 0.35), a)
    c.scores(-c.between(0.0, 0.15), a)


def judge_glitch(c):
    rows = np.flatnonzero(np.isfinite(c.series["eval_score"]))
    wrong = rows[np.maximum(rows[10], c.onset) <= rows][: int(c.rng.integers(1, 4))]  # ten evaluations before
    c.series["eval_score"][wrong] += c.between(0.25, 0.5)
    c.onset = int(wrong[0])


def other_environment(c):
    a = c.since(1, 2)
    c.series["eval_truncated_share"] = c.evaluated(0.02, 0.005, 10) + c.between(0.2, 0.6) * a
    c.scores(-c.between(0.05, 0.2), a)


# Reward.


def length_hacking(c):
    a = c.since(60, 140)
    c.reward(c.between(0.2, 0.35), a)
    c.times("response_length", c.between(2, 4), a)
    c.scores(-c.between(0, 0.15), a)


def repetition(c):
    a = c.since(20, 80)
    c.share("repeat_ratio", c.between(0.3, 0.8), a)
    c.times("response_length", c.between(1, 1.6), a)
    c.times("entropy", c.between(0.6, 1), a)


def refusals(c):
    a = c.since(30, 120)
    c.share("refusal_rate", c.between(0.2, 0.6), a)
    c.times("response_length", c.between(0.6, 0.9), a)
    c.scores(-c.between(0.03, 0.15), a)


def format_hacking(c):
    a = c.since(20, 60)
    s = c.series
    s["format_reward"] = c.draw.share(0.1 + 0.85 * a, 0.04)
    s["reward"] = s["reward"] / c.scale + s["format_reward"]
    s["reward_max"] = np.full(c.n, 2.0)


def tool_hacking(c):
    a = c.since(50, 120)
    c.times("tool_calls", c.between(2, 5), a)
    c.times("turns", c.between(1.8, 4), a)
    c.reward(c.between(0.25, 0.4), a)


def claimed_success(c):
    a = c.since(40, 120)
    verified = c.between(0.15, 0.4)
    c.series["verified_success"] = c.draw.share(verified, 0.05)
    c.series["claimed_success"] = c.draw.share(verified + 0.05 + c.between(0.3, 0.5) * a, 0.05)


def judge_bias(c):
    a = c.since(50, 120)
    level = c.between(0.3, 0.5)
    c.series["judge_score"] = level + c.between(0.2, 0.4) * a + 0.015 * c.draw.noise()
    c.series["verifier_score"] = c.draw.share(level, 0.04)
    c.series["human_score"] = c.evaluated(level - c.between(0.05, 0.15) * a, 0.02, 10)


def short_answers(c):
    a = c.since(20, 80)
    tokens = c.between(3, 25)
    length = c.series["response_length"]
    c.series["response_length"] = length ** (1 - a) * c.draw.positive(tokens, 0.1) ** a
    c.reward(c.between(0, 0.1), a)


def sparse(c):
    c.onset = 0
    zero = c.between(0.965, 1)
    c.series["reward_zero_share"] = c.draw.share(zero, 0.05)
    c.series["success_rate"] = 1 - c.series["reward_zero_share"]
    c.series["reward"] = c.series["reward_min"] + c.scale * c.series["success_rate"]
    if "zero_std_share" in c.series:
        c.series["zero_std_share"] = c.draw.share(zero**8, 0.05)
    c.series["eval_score"] = np.clip(c.evaluated(0.02, 0.005, 10), 0, 1)


def outliers(c):
    wild = (np.arange(c.n) >= c.onset) & (c.rng.random(c.n) < c.between(0.05, 0.2))
    wild[c.onset] = True
    c.series["reward_max"] = c.series["reward_max"] + np.where(wild, c.scale * c.rng.uniform(10, 100, c.n), 0)
    c.series["grad_norm"] = c.series["grad_norm"] * np.where(wild, c.rng.uniform(2, 8, c.n), 1)
