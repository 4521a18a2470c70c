"""What the panels of a tracker show, and in what order, whichever tracker it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from tracker_diag.metrics.aliases import key_map
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT, PAIRS
from tracker_diag.metrics.statistics import STATISTICS, Section, Statistic

VERSION = 4
"""Of what the panels show; a view of an older one is brought up to date."""

NAME = f"Agent RL diagnostics, version {VERSION}"

OUTCOME = "Reward, evaluation, KL"

OUTCOMES = ("reward", "eval_score", "kl")
"""Canonical names of what a reader looks at first."""

RULES = "Rules: 0 healthy, 1 pending, 2 firing"


@dataclass(frozen=True)
class Chart:
    """One statistic of a ratio pair, of both slices."""

    section: str
    pair: str
    statistic: Statistic

    @property
    def keys(self) -> list[str]:
        """None where it is not logged of the pair."""
        of_pair = (name for name in CONTEXT if self.statistic.is_logged(self.pair, name))
        return [self.statistic.key(self.pair, name) for name in of_pair]

    @property
    def title(self) -> str:
        """It begins with the slices, as trackers cut what is long."""
        return f"{', '.join(reversed(CONTEXT))}: {self.statistic.name}, {self.pair}"


CHARTS = tuple(
    Chart(section, pair, statistic)
    for section in get_args(Section)
    for statistic in STATISTICS.values()
    for pair in PAIRS
    if statistic.chart == section
)


def outcome_keys(keys: Iterable[str]) -> list[str]:
    """Those of the trainer's own keys that stand for an outcome, the best known one for each."""
    mapped = key_map(key for key in keys if not key.startswith(PREFIX)).mapped
    by_name = {name: [key for key, statistic in mapped.items() if statistic.name == name] for name in OUTCOMES}
    return [min(known, key=lambda key: mapped[key].rank) for known in by_name.values() if known]


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys of outcomes, of whatever trainers, in the order of `OUTCOMES`."""
    keys = sorted(keys)
    mapped = key_map(keys).mapped
    places = {name: place for place, name in enumerate(OUTCOMES)}
    return sorted(keys, key=lambda key: places.get(mapped[key].name, len(places)) if key in mapped else len(places))
