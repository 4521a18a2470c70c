"""Evaluation: one step after another through windows, statistics and rules to the backends.

    Step → windows → statistics → records → rules → findings → backends

All that depends on the run so far, but for what waits on the training thread, is here. One thread at a time calls it:
the training thread, or one beside it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracker_diag import readout
from tracker_diag.backends.fan_out import FanOut
from tracker_diag.batch import PAIRS, Pair
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.health import Health
from tracker_diag.metrics.aliases import key_map
from tracker_diag.records import Record, Scalar, Table
from tracker_diag.rules.alerts import Alerts
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Rule
from tracker_diag.rules.nodes import Algorithm
from tracker_diag.rules.readers.base import Observed
from tracker_diag.slices import CONTEXT, Names
from tracker_diag.stats.tails import Estimate
from tracker_diag.step import Step
from tracker_diag.windows import Observation, PairWindow


class Evaluation:
    """Of one run; see `Monitor` for the arguments."""

    def __init__(
        self,
        rules: Sequence[Rule],
        settings: GrowthSettings,
        algorithm: Algorithm | None,
        *,
        window: int,
        clip: tuple[float, float],
        health: Health,
    ) -> None:
        self.engine = Engine(rules, settings, algorithm)
        self.out = FanOut(health)
        self.windows: dict[Pair, PairWindow] = {}
        self._alerts = Alerts()
        self._wanted = readout.wanted(self.engine.rules)
        self._keys = key_map(())
        self._settings, self._window_steps, self._clip, self._health = settings, window, clip, health

    def step(
        self,
        done: Step,
        names: Names,
        config: Mapping[str, object],
        time_ratio: float | None,
        missing: Mapping[str, int] | None,
    ) -> None:
        """Take in a step. Nothing is raised: what fails is counted.

        Args:
            names: those that the rows of the step's tensors go by.
            config: settings of the run, as they are at this step.
            time_ratio: of the slowest rank to the median one, where ranks tell their times.
            missing: steps since a rank was last heard of, by rank, where ranks report through a store.
        """
        step, own = done.step, done.metrics
        records: list[Record] = []
        changed: list[Finding] = []
        with self._health.count("internal_errors"):  # the trainer's own metrics go to the backends all the same
            observed = done.observed()
            for pair, one in observed.items():
                if pair not in self.windows:
                    self.windows[pair] = self._window(pair)
                self.windows[pair].push(one)
            statistics = readout.statistics(self.windows, observed, names, self._wanted)
            series, bad = self._series(statistics, own, observed)
            if time_ratio is not None:
                series["rank_time_ratio"] = Scalar("rank_time_ratio", time_ratio)
            absent = readout.absent(self.windows)
            checked = bool(own or observed)
            changed = self.engine.evaluate(Observed(step, series, bad, absent, checked, missing, config))
            records += [*readout.scalars(statistics), *readout.histograms(self.windows, observed)]
        with self._health.count("internal_errors"):
            records += readout.states(self.engine, dict(self._health.counts))
            if time_ratio is not None:
                records.append(Scalar("diag/health/rank_time_ratio", time_ratio))
            self.out.step(step, own, records, changed, self._alerts.notices(step, changed))

    def rebaseline(self, step: int, events: Sequence[str]) -> None:
        """What comes from `step` on is the new normal; `events` say why."""
        with self._health.count("internal_errors"):
            for window in self.windows.values():
                window.rebaseline()
            ended = self.engine.rebaseline(step)
            self.out.events(step, events, ended, self._alerts.notices(step, ended))

    def slices_table(self, names: Names) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        return readout.slices_table(self.windows, names)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {
            "windows": {pair: window.state_dict() for pair, window in self.windows.items()},
            "engine": self.engine.state_dict(),
            "alerts": self._alerts.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; it may hold more than is needed here."""
        windows: dict[Pair, PairWindow] = {p: self._window(p) for p in PAIRS if p in state["windows"]}
        for pair, window in windows.items():
            window.load_state_dict(state["windows"][pair])
        self.windows = windows
        self.engine.load_state_dict(state["engine"])
        self._alerts.load_state_dict(state["alerts"])

    def _window(self, pair: Pair) -> PairWindow:
        short = self._settings.short
        return PairWindow(pair, self._window_steps, short.burn_in, short.baseline, self._clip)

    def _series(
        self, statistics: Mapping[str, Estimate], own: Mapping[str, float], pending: Mapping[Pair, Observation]
    ) -> tuple[dict[str, Scalar], tuple[str, ...]]:
        """The statistics, and the trainer's metrics under their canonical names; and what of all is not finite."""
        series, bad = readout.finite(statistics)
        if not self._keys.covers(own):
            self._keys = key_map([*self._keys.mapped, *self._keys.unmapped, *own])
        for name, value in self._keys.values(own).items():
            series.setdefault(name, Scalar(name, value))
        broken = [key for key, value in own.items() if not math.isfinite(value)]
        bad += broken
        found = {"nonfinite_metrics": len(broken), "nonfinite_tokens": 0}
        for pair, observed in pending.items():
            found["nonfinite_tokens"] += int(observed.nonfinite.sum())
            bad += [f"{pair}/{CONTEXT[i]}/nonfinite" for i in np.flatnonzero(observed.nonfinite)]
        self._health.add(found)
        return series, tuple(bad)
