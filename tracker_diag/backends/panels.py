"""What the panels of a tracker show, and in what order, whichever tracker it is."""

from dataclasses import dataclass
from typing import Literal

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT

VERSION = 1
"""Of what the panels show; a view of an older one is brought up to date."""

NAME = f"Agent RL diagnostics, version {VERSION}"

RULES = "Rules: 0 healthy, 1 pending, 2 firing"


@dataclass(frozen=True)
class Lines:
    """One statistic of both slices in one plot, for each ratio pair."""

    section: Literal["Tails", "ESS", "Shape"]
    title: str
    stat: str
    scale: Literal["log", "linear"]

    def keys(self, pair: str) -> list[str]:
        return [f"{PREFIX}{pair}/{name}/{self.stat}" for name in CONTEXT]


LINES = (
    Lines("Tails", "p95 of |log-ratio| by slice", "p95", "log"),
    Lines("Tails", "p99 of |log-ratio| by slice", "p99", "log"),
    Lines("ESS", "effective sample size of tokens, share of n", "ess", "linear"),
    Lines("ESS", "effective sample size of sequences, share of n", "ess_sequence", "linear"),
    Lines("Shape", "Pareto k of the token weights, 0.5 is infinite variance", "pareto_k", "linear"),
    Lines("Shape", "median of |log-ratio| by slice", "p50", "log"),
)
