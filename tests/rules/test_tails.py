"""The rules of tails on simulated series of both slices: what they find, how soon, and how often people get alerts.

The statistics of a step are drawn from what a normal log-ratio gives them, so that a run takes a third of a second.
tests/benchmarks/door.py does the same with tensors.
"""

import math
from collections import deque

import numpy as np
import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics.series import StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.judge import Judge, StepInputs
from tracker_diag.rules.loader import catalog

pytestmark = pytest.mark.slow

TAILS = [rule for rule in catalog() if rule.id in ("POL001", "POL003", "POL016", "POL017", "POL018")]
ERROR = 0.08
"""Of a p95 of some hundred tokens."""


def play(scales, steps, seed, until=None):
    """The loud findings as (rule, slice, step), and how many notices there were.

    Args:
        scales: of a step, the scales of text_only and of post_tool; 0 where a slice has no tokens or no signal.
        until: a step after which the run ends with the first finding.
    """
    rng, judge, window = np.random.default_rng(seed), Judge(TAILS, GrowthSettings()), deque(maxlen=8)
    drift, fired, notices = 0.1 * rng.normal(size=2), [], 0
    for step in range(steps):
        drift = 0.8 * drift + 0.06 * rng.normal(size=2)
        now = 0.05 * np.array(scales(step)) * np.exp(drift)
        statistics = {}
        if now.any():
            window.append(now)
        for i, name in enumerate(("text_only", "post_tool")):
            values = [item[i] for item in window if item[i]]
            if values and now.any():
                whole = math.sqrt(np.mean(np.square(values))) * math.exp(0.03 * rng.normal())
                statistics |= {(name, "p95"): 1.96 * whole, (name, "p99"): 2.58 * whole, (name, "p50"): 0.67 * whole}
            if now[i]:
                statistics[name, "p95_step"] = 1.96 * now[i] * math.exp(ERROR * rng.normal())
        series = {StatKey("policy", *key): value for key, value in statistics.items()}
        inputs = StepInputs(statistics={key: Scalar(key, value, 300, ERROR) for key, value in series.items()})
        verdict = judge.step(step, inputs)
        notices += len(verdict.notices)
        loud = [item for item in verdict.changed if item.state == "firing" and item.severity != "info"]
        fired += [(item.rule.id, item.slice, step) for item in loud if item.inhibited_by is None]
        if fired and until is not None and step >= until:
            break
    return fired, notices


def warm_up(step):
    return min(1.0, (step + 1) / 100)


def wave(step):
    return math.exp(0.3 * math.sin(step / 37) + 0.1 * math.sin(step / 11))


def swing(step):
    return 3.0 if (step // 20) % 2 else 1.0


FOUND = {
    "two updates, ×4": (lambda t: (t % 2, t % 2 * (4 if t >= 120 else 1)), 120, 24),
    "two updates, ×2": (lambda t: (t % 2, t % 2 * (2 if t >= 120 else 1)), 120, 40),
    "one step of ten, ×4": (lambda t: (1, (t % 10 == 0) * (4 if t >= 120 else 1)), 120, 130),
    "warm-up, ×2": (lambda t: (warm_up(t), warm_up(t) * (2 if t >= 150 else 1)), 150, 25),
    "warm-up, ×4": (lambda t: (warm_up(t), warm_up(t) * (4 if t >= 150 else 1)), 150, 15),
    "both swing, ×2": (lambda t: (swing(t), swing(t) * (2 if t >= 150 else 1)), 150, 40),
    "both in waves, ×2": (lambda t: (wave(t), wave(t) * (2 if t >= 300 else 1)), 300, 40),
}


@pytest.mark.parametrize("kind", FOUND)
def test_growth_after_tools_is_found_and_named(kind):
    scales, onset, delay = FOUND[kind]
    for seed in range(3):
        fired, _ = play(scales, onset + delay, seed, until=onset)
        assert fired, kind
        assert fired[0][:2] == ("POL001", "post_tool")
        assert onset <= fired[0][2]


CALM = {
    "two updates": (lambda t: (t % 2, t % 2), 500),
    "four updates": (lambda t: ((0, 1, 1.6, 2.2)[t % 4],) * 2, 500),
    "one step of ten": (lambda t: (1, t % 10 == 0), 600),
    "warm-up": (lambda t: (warm_up(t),) * 2, 400),
    "waves": (lambda t: (wave(t),) * 2, 600),
    "one step of five": (lambda t: (1, 2.5 if t % 5 == 0 else 1), 400),
    "text-only calms down sooner": (lambda t: (1 + 1.5 * math.exp(-t / 30), 1 + 1.5 * math.exp(-t / 120)), 400),
    "drift below the limit": (lambda t: (0.15 * 3 ** (t / 1500),) * 2, 1500),
}


@pytest.mark.parametrize("kind", CALM)
def test_what_is_sound_alarms_nobody(kind):
    scales, steps = CALM[kind]
    assert [play(scales, steps, seed)[0] for seed in range(3)] == [[]] * 3


@pytest.mark.parametrize(
    "scales",
    [lambda t: (3 ** (t / 1500),) * 2, lambda t: (1, 1.8 ** (t / 1500)), lambda t: (1, 2 if 120 <= t < 400 else 1)],
    ids=["both drift to ×3", "after tools to ×1.8", "×2 for 280 steps"],
)
def test_people_are_alerted_twice_of_an_incident_at_most(scales):
    assert all(1 <= play(scales, 1500, seed)[1] <= 2 for seed in range(2))
