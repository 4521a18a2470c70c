"""Simulated healthy runs: what training logs by algorithm when nothing is wrong, and what the rules make of a run.

A run holds canonical series, one value a row, NaN where nothing is logged. Everything that differs between real runs
is drawn: length and logging interval, the reward's scale and the way it is learnt, what is logged at all, noise that
is AR(1) with its own φ and size. Transients are those of real runs: a KL that rises from zero, a reward that takes
off, an entropy that falls while reward is gained, a critic that starts worse than the mean, an evaluation on a cadence
of its own, responses that grow because they pay.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.incidents import connected
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.observed import Observed

ALGORITHMS = ("ppo", "grpo", "gspo", "dpo", "sft")
ROWS = 400


@dataclass
class Run:
    algorithm: str
    steps: np.ndarray
    """(n,) the training step of each row."""
    series: dict[str, np.ndarray]
    learnt: np.ndarray
    """(n,) how much of what there is to learn has been learnt, from 0 to 1."""
    config: dict[int, dict[str, object]] = field(default_factory=dict)
    """Settings, by the row from which on they are so."""
    mastered: bool = False
    """Whether the model could do nearly all of it before; such a run logs what share it solves."""

    def __len__(self):
        return len(self.steps)


def noise(rng, n, phi=0.8, heavy=False):
    """AR(1) noise of standard deviation 1, stationary from the start."""
    z = rng.standard_t(4, n) / np.sqrt(2) if heavy else rng.normal(size=n)
    e = np.zeros(n)
    e[0] = z[0]
    for t in range(1, n):
        e[t] = phi * e[t - 1] + np.sqrt(1 - phi**2) * z[t]
    return e


def every(values, rows, start=0):
    """`values` at every so many rows, NaN between."""
    kept = np.full(len(values), np.nan)
    kept[start::rows] = values[start::rows]
    return kept


class Draw:
    """The noise of one run: each series gets its own, with the run's φ and a size about the given one."""

    def __init__(self, rng, n, stalled=False, from_zero=False):
        self.rng, self.n, self.stalled, self.from_zero = rng, n, stalled, from_zero
        self.mastered = False
        """Whether the model could do nearly all of it before."""
        self.phi, self.size = rng.uniform(0.3, 0.9), rng.uniform(0.6, 1.4)

    def noise(self, heavy=False):
        return self.size * noise(self.rng, self.n, self.phi, heavy)

    def positive(self, level, spread=0.1, heavy=False):
        """`level`, a number or (n,), times log-normal noise."""
        return np.broadcast_to(level, self.n) * np.exp(spread * self.noise(heavy))

    def share(self, level, spread=0.1):
        """`level` with the noise of a share: small where it is near 0 or 1."""
        level = np.clip(np.broadcast_to(level, self.n), 0, 1)
        return np.clip(level + spread * np.sqrt(level * (1 - level) + 1e-4) * self.noise(), 0, 1)

    def between(self, low, high):
        return self.rng.uniform(low, high)

    def chance(self, p):
        return self.rng.random() < p


def healthy(algorithm, rng, rows=ROWS):
    """What a run of `algorithm` logs when nothing is wrong: some are short, some log every ten steps, few log all."""
    rows = int(rng.integers(60, 150)) if rng.random() < 0.3 else rows
    interval = 10 if rng.random() < 0.25 else 1
    run = whole(algorithm, rng, interval * np.arange(rows))
    always = {"reward", "loss", "grad_norm", "kl", "entropy"}
    if run.mastered:  # where the ceiling is only the author's knowledge OUT003 speaks, and should
        always |= {"success_rate"}
    run.series = {name: values for name, values in run.series.items() if name in always or rng.random() < 0.75}
    if rng.random() < 0.2:
        for values in run.series.values():
            values[rng.random(rows) < 0.02] = np.nan  # rows that were lost on the way
    return run


def whole(algorithm, rng, steps, stalled=False, from_zero=False):
    """A healthy run that logs everything, so that a failure has something to show in.

    Args:
        stalled: nearly nothing is learnt.
        from_zero: the least reward is 0.
    """
    draw = Draw(rng, len(steps), stalled, from_zero)
    make = _preferences if algorithm == "dpo" else _fine_tuning if algorithm == "sft" else _reinforcement
    run = Run(algorithm, steps, *make(draw, steps, algorithm))
    run.mastered = draw.mastered
    return run


def _progress(draw, t):
    """(n,) from 0 to 1: a take-off, steady progress, two stages, or a model that could do nearly all before."""
    kind, end = 3 if draw.stalled else draw.rng.integers(4), max(t[-1], 1)
    draw.mastered = kind == 3 and not draw.stalled
    if kind == 0:
        return 1 / (1 + np.exp(-(t - draw.between(20, 20 + 0.4 * end)) / draw.between(8, 60)))
    if kind == 1:
        return 1 - np.exp(-t / draw.between(60, 0.8 * end + 60))
    if kind == 2:
        first, second = draw.between(15, 15 + 0.25 * end), draw.between(0.4, 0.8) * end
        return 0.6 / (1 + np.exp(-(t - first) / 15)) + 0.4 / (1 + np.exp(-(t - second) / 25))
    return 0.1 * (1 - np.exp(-t / 60))


def _reinforcement(draw, t, algorithm):
    learnt, n = _progress(draw, t), draw.n
    low = draw.between(0.8, 0.9) if draw.mastered else draw.between(0.05, 0.4)
    high = low + (0.08 if draw.mastered else draw.between(0.2, 0.55))
    solved = low + (high - low) * learnt
    scale, offset = [(1, 0), (10, 0), (2, -1), (4, -2)][draw.rng.integers(2 if draw.from_zero else 4)]
    grows = 1 + draw.between(-0.2, 0.9) * learnt
    length = draw.between(150, 2000) * grows * (1 - draw.between(0, 0.25) * np.exp(-(((t - 40) / 25) ** 2)))
    spread = np.sqrt(solved * (1 - solved))
    calls = draw.between(1, 5) * (1 + draw.between(-0.1, 0.4) * learnt)
    seconds = draw.between(20, 200)
    cadence = int(draw.rng.choice([5, 10, 20]))
    tasks = draw.between(100, 1000)
    scores = low - 0.03 + draw.between(0.6, 0.95) * (high - low) * learnt
    loading = 1 - np.exp(-t / 30)
    series = {
        "reward": offset + scale * (solved + 0.02 * draw.noise()),
        "reward_std": draw.positive(scale * spread, 0.06),
        "group_reward_std": draw.positive(scale * 0.6 * spread, 0.08),
        "reward_max": np.full(n, float(offset + scale)),
        "reward_min": np.full(n, float(offset)),
        "reward_zero_share": draw.share(0.8 * (1 - solved), 0.08),
        "success_rate": draw.share(solved, 0.04),
        "eval_score": every(np.clip(scores + np.sqrt(0.2 / tasks) * draw.rng.normal(size=n), 0, 1), cadence),
        "kl": draw.positive(draw.between(0.01, 0.08) * ((1 - np.exp(-t / 80)) + 0.5 * t / (t[-1] + 1)) + 1e-6, 0.15),
        "approx_kl": draw.positive(10 ** draw.between(-4, -2.3), 0.15),
        "entropy": draw.positive(draw.between(0.25, 1.2) * (1 - draw.between(0, 0.65) * learnt), 0.05),
        "loss": 0.02 * draw.noise(),
        "grad_norm": _spiky(draw, draw.positive(draw.between(0.1, 1) * (1 + np.exp(-t / 40)), 0.2, heavy=True)),
        "clip_fraction": draw.share({"ppo": 0.08, "grpo": 0.01, "gspo": 0.2}[algorithm], 0.06),
        "response_length": draw.positive(length, 0.05),
        "truncated_share": draw.share(draw.between(0.01, 0.06) * grows, 0.06),
        "repeat_ratio": draw.share(draw.between(0.02, 0.06), 0.05),
        "refusal_rate": draw.share(draw.between(0.005, 0.03), 0.05),
        "diversity": draw.share(0.8 - 0.3 * learnt, 0.05),
        "tool_calls": draw.positive(calls, 0.07),
        "turns": draw.positive(calls + 1, 0.06),
        "tool_failure_rate": draw.share(draw.between(0.01, 0.1) * (1 - 0.4 * learnt), 0.06),
        "malformed_call_rate": draw.share(0.01 + draw.between(0, 0.06) * np.exp(-t / 50), 0.05),
        "tool_seconds": draw.positive(draw.between(0.3, 3), 0.1),
        "tool_timeouts": draw.share(0.005, 0.03),
        "tool_entropy": draw.positive(draw.between(0.7, 1.4) * (1 - 0.3 * learnt), 0.05),
        "concurrency": draw.positive(draw.between(30, 300), 0.06),
        "reward_after_tool_success": offset + scale * (solved + 0.05 + 0.03 * draw.noise()),
        "reward_after_tool_failure": offset + scale * (0.4 * solved + 0.03 * draw.noise()),
        "advantage_std": draw.positive(draw.between(0.7, 1.0), 0.05),
        "advantage_ess": draw.share(draw.between(0.4, 0.7), 0.05),
        "logprob_difference": draw.positive(draw.between(0.005, 0.05), 0.1),
        "mismatch_kl": draw.positive(draw.between(2e-4, 3e-3), 0.2),
        "logprob_difference_max": draw.positive(draw.between(1, 4), 0.3, heavy=True),
        "policy_lag": np.clip(draw.between(0.3, 2.5) + 0.2 * draw.noise(), 0, None),
        "version_span": np.clip(draw.between(0.1, 1.2) + 0.15 * draw.noise(), 0, None),
        "throughput": _hiccups(draw, draw.positive(draw.between(500, 20000), 0.05), 0.5),
        "step_seconds": _hiccups(draw, draw.positive(seconds * np.sqrt(grows), 0.05), 2.0),
        "rollout_seconds": draw.positive(draw.between(0.3, 0.65) * seconds * np.sqrt(grows), 0.05),
        "wait_share": draw.share(draw.between(0.1, 0.35), 0.08),
        "memory_reserved": 80 * draw.between(0.6, 0.93) * (0.9 + 0.1 * loading) + 0.1 * draw.noise(),
        "memory_limit": np.full(n, 80.0),
        "utilisation": draw.share(draw.between(0.45, 0.85), 0.05),
        "rank_time_ratio": 1 + draw.positive(draw.between(0.03, 0.15), 0.2),
        "learning_rate": 1e-6 * np.minimum(1, (t + 1) / 20),
    }
    return series | (_critic(draw, t, series, learnt) if algorithm == "ppo" else _groups(draw, solved)), learnt


def _critic(draw, t, series, learnt):
    fits = 1 - np.exp(-t / draw.between(10, 50))
    returns = series["reward"] + 0.02 * draw.noise()
    return {
        "value_loss": draw.positive(draw.between(0.02, 0.2) * (1 + 5 * (1 - fits)), 0.15),
        "explained_variance": np.clip(-0.3 + draw.between(0.8, 1.15) * fits + 0.05 * draw.noise(), -1, 1),
        "value_mean": returns * fits,
        "return_mean": returns,
        "value_std": series["reward_std"] * (0.05 + draw.between(0.5, 0.85) * fits),
        "return_std": series["reward_std"],
    }


def _groups(draw, solved):
    """Groups whose samples are all right or all wrong are many where tasks are too hard, or too easy."""
    return {"zero_std_share": draw.share(draw.between(0.1, 0.25) + draw.between(0.5, 1.2) * (solved - 0.5) ** 2, 0.1)}


def _spiky(draw, values):
    """Single steps, about one in 150, at several times the norm."""
    spikes = draw.rng.random(draw.n) < 1 / 150
    return values * np.where(spikes, draw.rng.uniform(2, 6, draw.n), 1)


def _hiccups(draw, values, factor):
    """A checkpoint or an evaluation every so many rows."""
    interval = int(draw.rng.choice([10, 25, 50]))
    return values * np.where(np.arange(draw.n) % interval == interval - 1, factor, 1)


def _supervised(draw, t):
    end = max(t[-1], 1)
    warm = draw.between(0.02, 0.1) * end + 1
    decay = 0.5 * (1 + np.cos(np.pi * np.clip((t - warm) / end, 0, 1)))
    return {
        "grad_norm": _spiky(draw, draw.positive(draw.between(0.3, 2) * (1 + np.exp(-t / 30)), 0.15, heavy=True)),
        "learning_rate": 1e-5 * np.minimum((t + 1) / warm, 1) * decay,
        "throughput": _hiccups(draw, draw.positive(draw.between(2000, 20000), 0.04), 0.5),
        "step_seconds": _hiccups(draw, draw.positive(draw.between(1, 20), 0.04), 2.0),
        "memory_reserved": 80 * draw.between(0.6, 0.93) + 0.1 * draw.noise(),
        "memory_limit": np.full(draw.n, 80.0),
        "utilisation": draw.share(draw.between(0.45, 0.9), 0.04),
    }


def _fine_tuning(draw, t, algorithm):
    """A loss that falls fast, then slowly, and by a step at each new epoch, which the held-out loss does not follow."""
    learnt = 1 - np.exp(-t / draw.between(20, 150))
    floor = draw.between(0.4, 1.6)
    loss = floor * (1 + draw.between(0.3, 1.2) * (1 - learnt))
    epochs = np.floor(draw.between(1, 3) * t / (t[-1] + 1))
    held_out = loss * (1.02 + draw.between(0, 0.02) * epochs)
    return _supervised(draw, t) | {
        "loss": draw.positive(loss * (1 - draw.between(0.02, 0.1)) ** epochs, 0.04),
        "eval_loss": every(held_out * np.exp(0.004 * draw.rng.normal(size=draw.n)), int(draw.rng.choice([10, 20]))),
    }, learnt


def _preferences(draw, t, algorithm):
    learnt = 1 - np.exp(-t / draw.between(40, 200))
    margin = draw.between(0.4, 2.5) * learnt
    loss = np.log(2) * (1 - draw.between(0.2, 0.6) * learnt)
    down = draw.between(0, 15)
    return _supervised(draw, t) | {
        "loss": draw.positive(loss, 0.05),
        "eval_loss": every(loss * np.exp(0.02 + 0.005 * draw.rng.normal(size=draw.n)), int(draw.rng.choice([10, 20]))),
        "reward_margin": margin + 0.06 * draw.noise(),
        "preference_accuracy": draw.share(0.5 + draw.between(0.12, 0.35) * learnt, 0.08),
        "chosen_reward": 0.4 * margin - 0.1 * down * learnt + 0.05 * draw.noise(),
        "rejected_reward": -0.6 * margin - 0.1 * down * learnt + 0.05 * draw.noise(),
        "chosen_logprob": draw.between(-300, -60) - down * learnt + 1.5 * draw.noise(),
        "rejected_logprob": draw.between(-300, -60) - (down + 8) * learnt + 1.5 * draw.noise(),
    }, learnt


def diagnose(run):
    """The findings that fired, and what broke first; both as loud as the rules are, whatever record these have."""
    engine = Engine(catalog(), GrowthSettings(expected_steps=len(run)), run.algorithm)
    config = {}
    columns = {name: values.tolist() for name, values in run.series.items()}
    for row, step in enumerate(run.steps.tolist()):
        config = {**config, **run.config[row]} if row in run.config else config
        values = {name: column[row] for name, column in columns.items()}
        now = {name: Scalar(name, value) for name, value in values.items() if math.isfinite(value)}
        bad = tuple(name for name, value in values.items() if math.isinf(value))
        engine.evaluate(Observed(step, now, bad, config=config))
    first = next((incident.cause for incident in connected(engine.findings) if incident.severity != "info"), None)
    return [finding for finding in engine.findings if finding.fired is not None], first


def loud(findings):
    """The rules that fired at warn or above."""
    return {finding.rule.id for finding in findings if finding.severity != "info"}
