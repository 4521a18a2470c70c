"""False alarms and delays of the tail-growth alert, simulated: what DESIGN's table promises of it.

The alert is a pair of growth detectors, on one series, log p95 of post-tool tokens, and on that series over
the same of text-only tokens; it is raised at a step at which both hold. Noise of each slice is AR(1) with a
standard deviation of 0.10, independent of the other's. The detectors are those that the rules use, with
their default settings, told how long the run is meant to be, and fed step by step.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.detect.cusum import CusumSettings
from tracker_diag.detect.esr import EsrSettings
from tracker_diag.detect.growth import GrowthDetector, GrowthSettings

SEED = 20
SIGMA = 0.10
HOLD_OFF = 200
"""Steps within which a second alarm of one run is the same one."""

Slices = tuple[np.ndarray, np.ndarray]
"""Logarithms of post-tool and of text-only p95, (runs, steps) each."""


@dataclass(frozen=True)
class Null:
    """Runs in which nothing grows in one slice alone."""

    case: str
    phi: float
    heavy: bool = False
    disturb: Callable[[np.random.Generator, Slices], Slices] | None = None
    aim: float | None = None
    told: bool = True
    """Whether the detectors know how long the run is meant to be."""


@dataclass(frozen=True)
class Growth:
    """What post-tool grows by, over how many steps."""

    case: str
    factor: float
    over: int
    aim: int


@dataclass(frozen=True)
class Length:
    """Short or long runs."""

    name: str
    steps: int
    phi: float
    """Autocorrelation of the noise under which growth is to be found."""
    block: int
    onset: int
    """Step at which growth begins: a while after the baseline, and, as where the aims are from, with a block."""
    nulls: tuple[Null, ...]
    growths: tuple[Growth, ...]


def common_walk(rng: np.random.Generator, both: Slices) -> Slices:
    """Both slices share a random walk, as when the whole run drifts."""
    walk = np.cumsum(rng.normal(0, 0.005, both[0].shape), axis=1)
    return both[0] + walk, both[1] + walk


def common_step(_: np.random.Generator, both: Slices) -> Slices:
    """Both slices rise by half early in the run, as after a change of the learning rate."""
    steps = both[0].shape[1]
    rise = (np.arange(steps) >= steps * 3 // 20) * math.log(1.5)
    return both[0] + rise, both[1] + rise


_SHORT, _LONG = CusumSettings(), EsrSettings()
SHORT = Length(
    "short",
    steps=1000,
    phi=0.8,
    block=_SHORT.block,
    onset=_SHORT.burn_in + _SHORT.baseline + 50,
    nulls=(  # DESIGN's aim is for AR(.8); the others show what it costs to be wrong about that
        Null("AR(.5)", 0.5),
        Null("AR(.8)", 0.8, aim=0.01),
        Null("AR(.8), t4 noise", 0.8, heavy=True, aim=0.01),
        Null("AR(.9)", 0.9),
        Null("AR(.8), common random walk", 0.8, disturb=common_walk),
        Null("AR(.8), common step ×1.5", 0.8, disturb=common_step),
    ),
    growths=(Growth("×2 over 100 steps", 2, 100, 70), Growth("×2 at once", 2, 1, 15), Growth("×4 at once", 4, 1, 9)),
)
LONG = Length(
    "long",
    steps=20_000,
    phi=0.9,
    block=_LONG.block,
    onset=_LONG.burn_in + _LONG.baseline + 800,
    nulls=(
        Null("AR(.9)", 0.9, aim=0.0),
        Null("AR(.9), t4 noise", 0.9, heavy=True, aim=0.0),
        Null("AR(.9), common random walk", 0.9, disturb=common_walk, aim=0.0),
        Null("AR(.9), common step ×1.5", 0.9, disturb=common_step, aim=0.0),
        Null("AR(.9), length unknown", 0.9, told=False),
    ),
    growths=(
        Growth("×2 over 500 steps", 2, 500, 320),
        Growth("×2 over 2000 steps", 2, 2000, 880),
        Growth("×2 at once", 2, 1, 60),
        Growth("×4 at once", 4, 1, 20),
    ),
)


def simulate(share: float = 1.0) -> list[dict[str, Any]]:
    """A row for each kind of run, with DESIGN's aim where it has one; on `share` of the full number of runs.

    `value` of false alarms is, for short runs, the share of runs with one; for long runs their number in
    10,000 steps. `value` of a delay is the median over runs, in steps, the first step of growth counted.
    """
    rows: list[dict[str, Any]] = []
    for length, null_runs in ((SHORT, 2000), (LONG, 50)):
        rows += [false_alarms(length, null, round(null_runs * share)) for null in length.nulls]
        for heavy in (False, True):
            rows += [delays(length, growth, heavy, round(500 * share)) for growth in length.growths]
    return rows


def false_alarms(length: Length, null: Null, runs: int) -> dict[str, Any]:
    """How often the alert is raised where nothing grows: 2,000 short runs, or 50 long ones, which are 1M steps."""
    both = slices(null.case, null.phi, null.heavy, (runs, length.steps))
    if null.disturb:
        both = null.disturb(np.random.default_rng(SEED), both)
    expected = length.steps if null.told else None
    counts = [_events(alarms(expected, post, text)) for post, text in zip(*both, strict=True)]
    if length is SHORT:
        unit, value = "share of runs", float(np.mean([count > 0 for count in counts]))
    else:
        unit, value = "per 10k steps", sum(counts) / (runs * length.steps / 10_000)
    return {
        "run": length.name,
        "what": "false alarms",
        "case": null.case,
        "unit": unit,
        "value": value,
        "aim": null.aim,
        "met": None if null.aim is None else value <= null.aim,
        "runs": runs,
        "steps": length.steps,
        "seed": SEED,
    }


def delays(length: Length, growth: Growth, heavy: bool, runs: int) -> dict[str, Any]:
    """How long growth goes on until the alert is raised: 500 runs of growth that begins with a block.

    `any_step` is the median where it begins at any step of a block, on the same noise.
    """
    case = f"AR({length.phi:.1f}){', t4 noise' * heavy}, {growth.case}".replace("0.", ".")
    steps = length.onset + growth.over + 1000
    both = slices(case, length.phi, heavy, (runs, steps))
    found = [_delay(length, growth, length.onset, *pair) for pair in zip(*both, strict=True)]
    shifted = [
        _delay(length, growth, length.onset + i % length.block, *pair) for i, pair in enumerate(zip(*both, strict=True))
    ]
    value = _quantile(found, 0.5)
    return {
        "run": length.name,
        "what": "delay",
        "case": case,
        "unit": "steps, median",
        "value": value,
        "aim": growth.aim,
        "met": value is not None and value <= growth.aim,
        "p90": _quantile(found, 0.9),
        "any_step": _quantile(shifted, 0.5),
        "missed": float(np.mean(np.isinf(found))),
        "runs": runs,
        "steps": steps,
        "seed": SEED,
    }


def slices(case: str, phi: float, heavy: bool, shape: tuple[int, int]) -> Slices:
    """Noise of both slices in (runs, steps); each case has its own, whatever else is simulated."""
    rng = np.random.default_rng([SEED, *case.encode()])
    return autoregressive(rng, phi, heavy, shape), autoregressive(rng, phi, heavy, shape)


def autoregressive(rng: np.random.Generator, phi: float, heavy: bool, shape: tuple[int, int]) -> np.ndarray:
    """AR(1) noise of standard deviation SIGMA and autocorrelation `phi`; innovations normal, or t with 4 df."""
    runs, steps = shape
    before = 200
    size = (steps + before, runs)
    z = rng.standard_t(4, size) / math.sqrt(2) if heavy else rng.normal(size=size)
    e = np.zeros(size)
    for t in range(1, len(e)):
        e[t] = phi * e[t - 1] + math.sqrt(1 - phi**2) * z[t]
    return SIGMA * e[before:].T


def alarms(expected_steps: int | None, post: np.ndarray, text: np.ndarray) -> Iterator[bool]:
    """Of one run, whether the alert is raised, step by step."""
    settings = GrowthSettings(expected_steps=expected_steps)
    own, relative = GrowthDetector(settings), GrowthDetector(settings)
    for step, (p95, ratio) in enumerate(zip(np.exp(post).tolist(), np.exp(post - text).tolist(), strict=True)):
        own.update(step, p95)
        relative.update(step, ratio)
        yield bool(own.holds and relative.holds)


def _events(raised: Iterator[bool]) -> int:
    """How often the alert is raised anew, HOLD_OFF steps or more after it last was."""
    count, last = 0, -HOLD_OFF
    for step, now in enumerate(raised):
        if now:
            count += step - last >= HOLD_OFF
            last = step
    return count


def _delay(length: Length, growth: Growth, onset: int, post: np.ndarray, text: np.ndarray) -> float:
    """Steps of growth until the alert is raised, the first included; infinite where it never is."""
    grown = post + np.clip((np.arange(len(post)) - onset + 1) / growth.over, 0, 1) * math.log(growth.factor)
    raised = enumerate(alarms(length.steps, grown, text))
    return next((float(step - onset + 1) for step, now in raised if now and step >= onset), math.inf)


def _quantile(found: list[float], level: float) -> float | None:
    """Quantile by rank, None where it lies among the runs that were missed."""
    value = float(np.quantile(found, level, method="inverted_cdf"))
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    for row in simulate():
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
