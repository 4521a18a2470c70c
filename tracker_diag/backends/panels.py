"""What the panels of a tracker show, and in what order, whichever tracker it is."""

from dataclasses import dataclass
from typing import get_args

from tracker_diag.metrics.series import CONTEXT
from tracker_diag.metrics.statistics import STATISTICS, Section, Statistic

VERSION = 1
"""Of what the panels show; a view of an older one is brought up to date."""

NAME = f"Agent RL diagnostics, version {VERSION}"

RULES = "Rules: 0 healthy, 1 pending, 2 firing"


@dataclass(frozen=True)
class Plot:
    """One statistic of both slices, for each ratio pair."""

    section: str
    title: str
    of: Statistic

    def keys(self, pair: str) -> list[str]:
        """None where it is not logged of `pair`."""
        return [self.of.key(pair, name) for name in CONTEXT if self.of.is_logged(pair, name)]


PLOTS = tuple(
    Plot(section, one.chart.title, one)
    for section in get_args(Section)
    for one in STATISTICS.values()
    if one.chart and one.chart.section == section
)
