"""Simulated runs: what healthy training logs, by algorithm, and what the failures of each family make of it.

A run is a dictionary of canonical series, one value a step, NaN where nothing is logged. Noise is AR(.8), of
about a tenth of a positive metric; transients are those of real runs: a KL that rises from zero, a reward that
takes off, an entropy that falls while reward is gained, an evaluation on a cadence of its own.
"""

from collections.abc import Callable

import numpy as np

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.readers.base import Observed
from tracker_diag.rules.triage import first_break

Run = dict[str, np.ndarray]

ALGORITHMS = ("ppo", "grpo", "gspo", "dpo", "sft")
ONSET = 250
EVAL_EVERY = 20


def noise(rng, n, phi=0.8, heavy=False):
    """AR(1) noise of standard deviation 1."""
    z = rng.standard_t(4, n) / np.sqrt(2) if heavy else rng.normal(size=n)
    e = np.zeros(n)
    e[0] = z[0]
    for t in range(1, n):
        e[t] = phi * e[t - 1] + np.sqrt(1 - phi**2) * z[t]
    return e


def positive(rng, level, spread=0.1, **more):
    """`level` (n,) times log-normal noise."""
    return level * np.exp(spread * noise(rng, len(level), **more))


def sparse(values, every=EVAL_EVERY):
    kept = np.full(len(values), np.nan)
    kept[::every] = values[::every]
    return kept


def healthy(algorithm: str, rng, n: int = 500) -> Run:
    """What a run of `algorithm` logs when nothing is wrong."""
    t = np.arange(n)
    if algorithm in ("dpo", "sft"):
        return _supervised(algorithm, rng, t)
    takeoff, width = rng.uniform(20, 150), rng.uniform(20, 60)
    learnt = 1 / (1 + np.exp(-(t - takeoff) / width))
    ceiling = rng.uniform(0.5, 0.85)
    reward = 0.1 + (ceiling - 0.1) * learnt + 0.02 * noise(rng, n)
    run = {
        "reward": reward,
        "reward_std": positive(rng, 0.25 + 0.15 * (1 - learnt)),
        "kl": positive(rng, 0.03 * rng.uniform(0.5, 2) * (1 - np.exp(-t / 80)) + 1e-5, 0.15),
        "approx_kl": positive(rng, np.full(n, 0.002)),
        "entropy": positive(rng, 0.8 - 0.35 * learnt, 0.04),
        "loss": 0.01 * noise(rng, n),
        "grad_norm": positive(rng, 0.4 + 0.3 * np.exp(-t / 40), 0.2, heavy=True),
        "clip_fraction": positive(rng, np.full(n, {"ppo": 0.08, "grpo": 0.01, "gspo": 0.15}[algorithm]), 0.15),
        "response_length": positive(rng, 300 * (1 + rng.uniform(-0.1, 0.3) * learnt), 0.06),
        "truncated_share": np.clip(0.03 + 0.01 * noise(rng, n), 0, 1),
        "repeat_ratio": np.clip(0.04 + 0.01 * noise(rng, n), 0, 1),
        "eval_score": sparse(0.1 + (ceiling - 0.15) * learnt + 0.015 * noise(rng, n)),
        "tool_calls": positive(rng, 2 + 0.5 * learnt, 0.08),
        "tool_failure_rate": np.clip(0.05 + 0.015 * noise(rng, n), 0, 1),
        "malformed_call_rate": np.clip(0.02 + 0.03 * np.exp(-t / 50) + 0.005 * noise(rng, n), 0, 1),
        "throughput": positive(rng, np.full(n, 5000.0), 0.05),
        "step_seconds": positive(rng, np.full(n, 60.0), 0.05),
        "learning_rate": np.full(n, 1e-6),
    }
    if algorithm == "ppo":
        run |= {
            "value_loss": positive(rng, 0.05 + 0.4 * np.exp(-t / 60), 0.15),
            "explained_variance": np.clip(0.75 - 0.75 * np.exp(-t / 60) + 0.03 * noise(rng, n), -1, 1),
        }
    else:
        run["zero_std_share"] = np.clip(0.35 - 0.15 * learnt + 0.04 * noise(rng, n), 0, 1)
    return run


def _supervised(algorithm: str, rng, t) -> Run:
    n = len(t)
    falls = np.exp(-t / rng.uniform(60, 150))
    run = {
        "grad_norm": positive(rng, 0.6 + 0.6 * np.exp(-t / 30), 0.15, heavy=True),
        "learning_rate": 1e-5 * np.minimum(1, t / 20 + 0.05),
        "throughput": positive(rng, np.full(n, 9000.0), 0.04),
    }
    if algorithm == "sft":
        loss = 1.1 + 0.9 * falls
        return run | {"loss": positive(rng, loss, 0.04), "eval_loss": sparse(positive(rng, loss + 0.03, 0.01))}
    loss = 0.45 + 0.243 * falls
    margin = 1.2 * (1 - falls)
    return run | {
        "loss": positive(rng, loss, 0.04),
        "eval_loss": sparse(positive(rng, loss + 0.02, 0.01)),
        "reward_margin": margin + 0.08 * noise(rng, n),
        "preference_accuracy": np.clip(0.5 + 0.25 * (1 - falls) + 0.03 * noise(rng, n), 0, 1),
        "chosen_reward": 0.4 * margin + 0.05 * noise(rng, n),
        "rejected_reward": -0.6 * margin + 0.05 * noise(rng, n),
        "chosen_logprob": -120 - 3 * (1 - falls) + 1.5 * noise(rng, n),
        "rejected_logprob": -130 - 9 * (1 - falls) + 1.5 * noise(rng, n),
    }


def since(n, over=60):
    """(n,) 0 before `ONSET`, then rising to 1 over `over` steps."""
    return np.clip((np.arange(n) - ONSET) / over, 0, 1)


def _hacking(run, rng):
    a = since(len(run["reward"]), 80)
    run["reward"] = run["reward"] + 0.25 * a
    run["response_length"] = run["response_length"] * (1 + 1.6 * a)
    run["eval_score"] = run["eval_score"] - 0.12 * a


def _entropy(run, rng):
    a = since(len(run["entropy"]), 50)
    run["entropy"] = run["entropy"] * (1 - a) + 0.02 * a
    run["reward"] = run["reward"] - 0.05 * a


def _aggressive(run, rng):
    a = since(len(run["reward"]), 20)
    run["approx_kl"] = run["approx_kl"] * (1 + 60 * a)
    run["kl"] = run["kl"] * (1 + 15 * a)
    run["clip_fraction"] = np.clip(run["clip_fraction"] + 0.5 * a, 0, 1)
    run["reward"] = run["reward"] * (1 - 0.7 * a)


def _no_spread(run, rng):
    a = since(len(run["reward"]), 60)
    run["zero_std_share"] = run["zero_std_share"] * (1 - a) + 0.97 * a
    run["reward_std"] = run["reward_std"] * (1 - 0.9 * a)


def _truncated(run, rng):
    a = since(len(run["reward"]), 60)
    run["truncated_share"] = np.clip(run["truncated_share"] * (1 - a) + 0.97 * a, 0, 1)
    run["response_length"] = run["response_length"] * (1 + 2 * a)


def _set(name: str, level: float, over: int = 40) -> Callable:
    def change(run, rng):
        a = since(len(run[name]), over)
        run[name] = run[name] * (1 - a) + level * a

    return change


def _broken(run, rng):
    run["loss"] = np.where(np.arange(len(run["loss"])) >= ONSET, np.inf, run["loss"])


def _overfit(run, rng):
    a = since(len(run["loss"]), 200)
    run["loss"] = run["loss"] * (1 - 0.6 * a)
    run["eval_loss"] = run["eval_loss"] * (1 + 0.5 * a)


def _stuck(run, rng):
    n = len(run["loss"])
    run["loss"] = np.log(2) + 0.003 * noise(rng, n)
    run["eval_loss"] = sparse(np.log(2) + 0.002 * noise(rng, n))
    run["reward_margin"] = 0.01 * noise(rng, n)
    run["preference_accuracy"] = 0.5 + 0.02 * noise(rng, n)


FAILURES: dict[str, tuple[str, Callable, frozenset[str]]] = {
    "reward hacking": ("grpo", _hacking, frozenset({"REW010", "REW011"})),
    "entropy collapse": ("grpo", _entropy, frozenset({"EXP001"})),
    "aggressive update": ("ppo", _aggressive, frozenset({"POL012", "POL010", "POL011"})),
    "groups without spread": ("grpo", _no_spread, frozenset({"ADV001", "ADV003"})),
    "truncation": ("grpo", _truncated, frozenset({"ENV006", "REW011"})),
    "tools fail": ("grpo", _set("tool_failure_rate", 0.6), frozenset({"ENV001"})),
    "malformed calls": ("grpo", _set("malformed_call_rate", 0.4), frozenset({"ENV003"})),
    "repetition": ("grpo", _set("repeat_ratio", 0.5), frozenset({"REW012", "REW010"})),
    "critic breaks": ("ppo", _set("explained_variance", -0.5), frozenset({"CRI002", "CRI004"})),
    "non-finite": ("gspo", _broken, frozenset({"NUM004"})),
    "throughput halves": ("gspo", _set("throughput", 1800.0), frozenset({"RES001"})),
    "overfitting": ("sft", _overfit, frozenset({"SFT003"})),
    "stuck at random": ("dpo", _stuck, frozenset({"SFT001"})),
}
"""By name: the algorithm, what happens from step ONSET on, and the rules that name it rightly."""


def diagnose(run: Run, algorithm: str):
    """The findings that fired, and the first break."""
    n = len(next(iter(run.values())))
    engine = Engine(catalog(), GrowthSettings(expected_steps=n), algorithm)
    for step in range(n):
        now, bad = {}, []
        for name, values in run.items():
            value = float(values[step])
            if np.isfinite(value):
                now[name] = Scalar(name, value)
            elif np.isinf(value):
                bad.append(name)
        engine.evaluate(Observed(step, now, tuple(bad)))
    fired = [finding for finding in engine.findings if finding.fired is not None]
    return fired, first_break(engine.findings)


def failed(name: str, seed: int):
    """A run of failure `name`."""
    algorithm, change, _ = FAILURES[name]
    rng = np.random.default_rng([seed, *name.encode()])
    run = healthy(algorithm, rng)
    change(run, rng)
    return run, algorithm
