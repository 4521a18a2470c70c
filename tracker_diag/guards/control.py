"""The numbers that guards set while an incident is ongoing: KL coefficient, learning rate, weights of tools."""

import math
from collections.abc import Mapping

from tracker_diag.metrics.series import CONTEXT, PAIRS, SeriesKey, StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.incidents import Incident

EVERY_TOOL = "*"

KL: tuple[SeriesKey, ...] = ("kl", StatKey("reference", "all", "k3"))
"""KL to the reference: as the trainer logs it, else of the observed tokens."""

ESS: tuple[SeriesKey, ...] = tuple(
    StatKey(pair, slice, "ess") for pair in PAIRS if pair != "reference" for slice in CONTEXT
)
"""Effective sample size of the raw token weights, as a share; of the reference pair it is a mere distance."""


def within(value: float, bounds: tuple[float, float]) -> float:
    """`value`, or the bound that it exceeds."""
    return min(max(value, bounds[0]), bounds[1])


def kl_coefficient(now: float, kl: float | None, target: float, bounds: tuple[float, float]) -> float:
    """The next coefficient: twice as high where the KL is above 1.5 × `target`, half as high where it is below / 1.5.

    The adaptive penalty of PPO (Schulman et al. 2017, section 4), within `bounds`; as it is where no `kl` is known.
    """
    if kl is None or not math.isfinite(kl):
        return now
    factor = 2.0 if kl > 1.5 * target else 0.5 if kl < target / 1.5 else 1.0
    return within(now * factor, bounds)


def lr_factor(ess: float | None, bounds: tuple[float, float]) -> float:
    """√ESS within `bounds`; the lowest where no `ess` (a share, of the slice in which it is least) is known.

    An ESS of a quarter is a batch of a quarter of the size. An adaptive optimiser takes half the learning rate for it
    (the square-root rule of Malladi et al. 2022).
    """
    return bounds[0] if ess is None else within(math.sqrt(max(ess, 0.0)), bounds)


def tool_weights(incident: Incident, last: Mapping[str, float], bounds: tuple[float, float]) -> dict[str, float]:
    """How often tasks that need a tool are to be drawn, by the tools that `incident` names; `*` where it names none.

    Where calls fail, the share of those that do not; else, and where that share is not known, the lowest.

    Args:
        last: the last value of each series.
    """
    cells = [incident.cell, *(finding.slice for finding in incident.findings if finding.state == "firing")]
    tools = dict.fromkeys(cell.partition(":")[2] for cell in cells if cell and cell.startswith("tool:"))
    weights: dict[str, float] = {}
    for tool in tools or {EVERY_TOOL: None}:
        of_tool = "tool_failure_rate" if tool == EVERY_TOOL else f"tool_failure_rate:{tool}"
        fails = last.get(of_tool) if incident.cause.rule.link == "environment" else None
        weights[tool] = bounds[0] if fails is None else within(1.0 - fails, bounds)
    return weights


def remembered(series: Mapping[SeriesKey, Scalar]) -> dict[str, float]:
    """Those of a step's series that the numbers above depend on."""
    return {
        str(key): scalar.value
        for key, scalar in series.items()
        if key in KL or key in ESS or key == "kl_coefficient" or str(key).partition(":")[0] == "tool_failure_rate"
    }
