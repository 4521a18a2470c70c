"""Monitor: the whole flow on one screen. Read this first.

    observe:  tensors → TokenBatch → slices → sketch and sums of each ratio pair
    log:      → windows → statistics → records → rules → findings → backends

Nothing here raises into training after the first observation has gone well: what fails is counted
in `diag/health/*`, warned of once, and kept in `Monitor.failures`.
"""

import atexit
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tracker_diag import readout
from tracker_diag.backends.base import Backend
from tracker_diag.backends.fan_out import FanOut
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import DiagError, StateError, StepError
from tracker_diag.health import Health
from tracker_diag.metrics.aliases import key_map
from tracker_diag.metrics.series import CONTEXT, PAIRS, Pair, Rank, StatKey
from tracker_diag.records import Record, Scalar, Table
from tracker_diag.rules.alerts import Alerts
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import Own, in_force
from tracker_diag.rules.nodes import Algorithm
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary
from tracker_diag.stats.tails import Estimate
from tracker_diag.tensors.batch import Tensors, TokenBatch
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.step import Progress, Step, add_observation, numbers, on_host, packed, unpacked
from tracker_diag.tensors.suspicions import suspicions
from tracker_diag.tensors.windows import Observation, PairWindow

if TYPE_CHECKING:
    from typing_extensions import Unpack

STATE_VERSION = 1


class Monitor:
    """Watches one training run: give it tensors with `observe`, and the step's metrics with `log`.

    Args:
        backends: where records and findings go.
        rules: your own, or their folder; they stand beside the catalogue and the folder that TRACKER_DIAG_RULES names.
        catalog: False looks for `rules` alone.
        window: steps that each statistic is taken over. More suits small batches.
        settings: of the change detectors, among them how many steps the run is expected to have.
        clip: how far below and above 1 the trainer clips the ratio, for `clip_fraction`.
        ranks: how the observations of several ranks come together; this process alone by default.
        config: settings of the run by dotted name, for the rules that look at them; also `Monitor.config`.
        algorithm: what is trained with, for the limits that depend on it; what `config` tells by default.
    """

    def __init__(
        self,
        backends: Sequence[Backend] = (),
        *,
        rules: Own = (),
        catalog: bool = True,
        window: int = 8,
        settings: GrowthSettings | None = None,
        clip: tuple[float, float] = (0.2, 0.2),
        ranks: Ranks | None = None,
        config: Mapping[str, object] | None = None,
        algorithm: Algorithm | None = None,
        source: str = "live",
    ) -> None:
        self._state = Health()
        self.health, self.failures, self.guard = self._state.counts, self._state.failures, self._state.guard
        self._out = FanOut(self._state)
        self._alerts = Alerts()
        self.events: list[tuple[int, str]] = []
        """What was done on purpose, by step: baselines that were taken anew."""
        self._names = Names()
        self._settings = settings or GrowthSettings()
        self.config: Mapping[str, object] = dict(config or {})
        self.algorithm = algorithm or algorithm_of(self.config)
        self._engine = Engine(in_force(rules, with_catalog=catalog), self._settings, self.algorithm)
        self._wanted = readout.wanted(self._engine.rules)
        if window < 1:
            raise ValueError(f"window: {window} given, expected at least 1 step")
        if not (0 < clip[0] < 1 and clip[1] > 0):
            raise ValueError(f"clip: {clip} given, expected a share below 1 and one above 0")
        self._clip, self._ranks = clip, ranks
        self._window_steps = window
        self._keys = key_map(())
        self._windows: dict[Pair, PairWindow] = {}
        self._incoming: dict[Pair, Observation] = {}
        """Tensors that came since the last `log`; they belong to the step of the next one."""
        self._waiting: dict[Pair, Observation] = {}
        """The same, of all ranks, if their step could not be begun."""
        self._asked = False
        self._rebaseline: list[str] = []
        self._seconds: float | None = None
        self._time_ratio: float | None = None
        self._missing: Mapping[Rank, int] | None = None
        self._open: Step | None = None
        self._progress = Progress()
        self._source = source
        self._summary: Summary | None = None
        for backend in backends:
            self.add(backend)
        atexit.register(self.close)

    def add(self, backend: Backend) -> None:
        """Write to `backend` as well, from the next step on; for runs that a framework starts later."""
        self._out.add(backend)

    @property
    def backends(self) -> tuple[Backend, ...]:
        return self._out.backends

    @property
    def step(self) -> int | None:
        """The step that is underway; None before the first `log`."""
        return self._open.step if self._open else self._progress.last

    @property
    def observed(self) -> bool:
        """Whether tensors have come since the last `log`."""
        return bool(self._incoming or self._waiting)

    def observe(self, *, seconds: float | None = None, **tensors: "Unpack[Tensors]") -> None:
        """Take in the per-token tensors of a batch; they belong to the step of the next `log`.

        Several calls before a `log`, for micro-batches say, add up. See `Tensors` for shapes,
        units and dtypes. `seconds` is this rank's own time for the step, without what it waited for others; where
        ranks come together, a straggler is told by it. Tensors on a device stay there, and from the second call
        on nothing waits for it.

        Raises:
            BatchError: on the first call, if the tensors do not fit together or hold NaN or inf.
                From then on such a batch is counted in `diag/health/rejected_batches` instead.
        """
        if self._over():
            return
        with self.guard("rejected_batches"):
            self._progress.observations += 1
            self._asked, self._seconds = True, seconds
            batch = TokenBatch.of(check=self._state.strict, **tensors)
            labels = label(batch, self._names)
            if self._state.strict:
                batch.require_finite()
                self._state.tell(suspicions(tensors, labels))
            for pair in batch.pairs:
                add_observation(self._incoming, pair, Observation.of(batch, pair, labels, self._progress.observations))
            self._state.strict = False

    def log(self, metrics: Mapping[str, object], step: int | None = None, *, last: bool = False) -> None:
        """Give the trainer's `metrics` of `step`, and with them the step of what was observed before.

        Several calls of one step add up. A step is evaluated when the next one begins, at `close`, or at
        once with `last=True`. Without `step` the next one is meant, and it is evaluated at once. What is
        not a number is ignored; a step that goes backwards is counted in `diag/health/late_steps`, its
        metrics are left out and its tensors wait for the next step.
        """
        if self._over():
            return
        with self.guard("internal_errors"):
            own = numbers(metrics)
            if step is None:
                last, step = True, 0 if self.step is None else self.step + 1
            step = index(step)
            self._gather(step)
            if self._open is None or step != self._open.step:
                self._begin(step)
            if self._open:
                self._open.metrics.update(own)
                self._open.time_ratio, self._open.missing = self._time_ratio, self._missing
                self._open.take(self._waiting)
                self._waiting = {}
                if last:
                    self._evaluate_open()

    def close(self) -> Summary:
        """Write what is still to be written, to all backends; the tracker's run goes on. Idempotent."""
        if self._state.elsewhere():
            return self._result()
        with self._state.turn:
            if self._summary is not None:
                return self._summary
            with self.guard("internal_errors"):
                self._evaluate_open()
                if self._asked or self.observed:  # but no `log` came any more
                    self.log({})
                self._record_baselines(self._progress.last or 0)
            self._summary = self._result()
        tables: tuple[Table, ...] = ()
        with self.guard("internal_errors"):
            tables = (self.slices_table(),)
        self._out.close(self._summary, tables)
        if self._ranks:
            with self.guard("rank_errors"):
                self._ranks.close()
        atexit.unregister(self.close)
        return self._summary

    def rebaseline(self, reason: str) -> None:
        """Take what comes from the next step on as the new normal, after a planned change of tools, say.

        Windows and detectors begin a new baseline, findings that are firing end, and `reason` is written into
        the tracker.
        """
        self._rebaseline.append(reason)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to raise the same alerts as an unbroken one.

        Strings, numbers, lists and dictionaries alone: it goes into any checkpoint, and into JSON.
        """
        with self._state.turn:
            return {
                "version": STATE_VERSION,
                "names": [self._shown.state_dict(), self._names.state_dict()],
                "windows": {pair: window.state_dict() for pair, window in self._windows.items()},
                "engine": self._engine.state_dict(),
                "alerts": self._alerts.state_dict(),
                "open": self._open.state_dict() if self._open else None,
                "incoming": [packed(self._incoming), packed(self._waiting)],
                "asked": self._asked,
                "strict": self._state.strict,
                "health": dict(self.health),
                "failures": list(self.failures),
                "events": [list(event) for event in self.events],
                "progress": asdict(self._progress),
                "rebaseline": list(self._rebaseline),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Rules that are new since then begin anew.

        Raises:
            StateError: if `state` is of another version, or is damaged; the monitor is then to be made anew.
        """
        if state.get("version") != STATE_VERSION:
            given = f"version {state.get('version')} given, expected {STATE_VERSION}"
            raise StateError(f"state: {given}; leave it out, and the diagnostics begin anew")
        try:
            windows: dict[Pair, PairWindow] = {p: self._window(p) for p in PAIRS if p in state["windows"]}
            for pair, window in windows.items():
                window.load_state_dict(state["windows"][pair])
            self._windows = windows
            shown, local = (Names.of_state(part) for part in state["names"])
            self._incoming, self._waiting = (unpacked(part) for part in state["incoming"])
            if self._ranks:
                self._ranks.names, self._names = shown, local
            else:  # saved with several ranks, perhaps: what is one rank's own goes by its own names
                self._incoming = {pair: one.renamed(local, shown) for pair, one in self._incoming.items()}
                self._names = shown
            self._asked, self._state.strict = state["asked"], state["strict"]
            self._engine.load_state_dict(state["engine"])
            self._alerts.load_state_dict(state["alerts"])
            self._open = Step.of_state(state["open"]) if state["open"] else None
            self.health.clear()
            self.health.update(state["health"])
            self.failures[:] = state["failures"]
            self.events = [(step, event) for step, event in state["events"]]
            self._progress = Progress(**state["progress"])
            self._rebaseline = list(state["rebaseline"])
        except StateError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"state: {type(error).__name__}: {error}; expected what state_dict gave") from error

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def summary(self) -> Summary:
        """What the run adds up to so far: findings, first break, blind and healthy rules."""
        with self._state.turn:
            return self._result()

    def slices_table(self) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        with self._state.turn:
            return readout.slices_table(self._windows, self._shown)

    def _result(self) -> Summary:
        return Summary.of(self._engine, self._source, self._progress.steps, self._progress.first, self._progress.last)

    def _over(self) -> bool:
        """Whether a call is left out: in a fork of the process, and after the end, which is counted."""
        if self._state.elsewhere():
            return True
        if self._summary is None:
            return False
        ended = DiagError("the diagnostics have ended, at `close`; attach or wrap anew for what comes after")
        self._state.record("after_close", ended)
        return True

    def _begin(self, step: int) -> None:
        """Evaluate the step that is underway and open `step`; StepError if it lies before that."""
        # The axis is that of the tensors: metrics alone, on an axis of their own, do not push it on.
        limit = self._progress.last_with_tensors if self._waiting else self.step
        if self._waiting and self._open and self._open.has_tensors:
            limit = self._open.step
        if limit is not None and step <= limit:
            raise StepError(f"step: {step} given, expected more than {limit}; its metrics are left out")
        with self.guard("internal_errors"):
            self._evaluate_open()
        self._open = Step(step)
        self._record_baselines(step)

    def _record_baselines(self, step: int) -> None:
        """Take the new baselines that were asked for, and say so."""
        if not self._rebaseline:
            return
        events, self._rebaseline = [f"new baseline: {reason}" for reason in self._rebaseline], []
        for window in self._windows.values():
            window.rebaseline()
        ended = self._engine.rebaseline(step)
        self.events += [(step, event) for event in events]
        self._out.events(step, events, ended, self._alerts.notices(step, ended))

    def _evaluate_open(self) -> None:
        """Put the step that is underway through windows, statistics and rules, and tell the backends."""
        if self._open is None:
            return
        done, self._open = self._open, None
        step, own = done.step, done.metrics
        self._progress.evaluated(step)
        records: list[Record] = []
        changed: list[Finding] = []
        with self.guard("internal_errors"):  # the trainer's own metrics go to the backends all the same
            observed = done.observed()
            if observed:
                self._progress.last_with_tensors = step
            for pair, one in observed.items():
                if pair not in self._windows:
                    self._windows[pair] = self._window(pair)
                self._windows[pair].push(one)
            statistics = readout.statistics(self._windows, observed, self._shown, self._wanted)
            changed = self._engine.evaluate(self._observed(done, statistics, observed))
            records += [*readout.scalars(statistics), *readout.histograms(self._windows, observed)]
        records += readout.states(self._engine, self.health)
        if done.time_ratio is not None:
            records.append(Scalar("diag/health/rank_time_ratio", done.time_ratio))
        self._out.step(step, own, records, changed, self._alerts.notices(step, changed))

    @property
    def _shown(self) -> Names:
        """The names that the windows' rows go by."""
        return self._ranks.names if self._ranks else self._names

    def _gather(self, step: int) -> None:
        """Move what was observed on to `_waiting`, that of all ranks where there are several.

        Every rank comes here with its first `log` after an `observe`, whatever else it logs.
        """
        asked, self._asked = self._asked, False
        observed, self._incoming = self._incoming, {}
        if self._ranks is not None and asked:
            with self.guard("rank_errors"):
                merged = self._ranks.merge(step, on_host(observed), self._names, self._seconds)
                observed, self._missing = merged.observed, merged.missing
                self.health["lost_rank_steps"] += merged.lost
                self._time_ratio = merged.time_ratio
            for error in self._ranks.errors():
                self._state.record("rank_errors", error)
        for pair, one in observed.items():
            add_observation(self._waiting, pair, one)

    def _window(self, pair: Pair) -> PairWindow:
        short = self._settings.short
        return PairWindow(pair, self._window_steps, short.burn_in, short.baseline, self._clip)

    def _observed(
        self, done: Step, statistics: Mapping[StatKey, Estimate], pending: Mapping[Pair, Observation]
    ) -> Observed:
        """What the rules see: the statistics, and the trainer's metrics under their canonical names."""
        own, (series, bad) = done.metrics, readout.finite(statistics)
        if done.time_ratio is not None:
            series["rank_time_ratio"] = Scalar("rank_time_ratio", done.time_ratio)
        if not self._keys.covers(own):
            self._keys = key_map([*self._keys.mapped, *self._keys.unmapped, *own])
        for name, value in self._keys.values(own).items():
            series.setdefault(name, Scalar(name, value))
        broken = [key for key, value in own.items() if not math.isfinite(value)]
        bad += broken
        self.health["nonfinite_metrics"] += len(broken)
        for pair, observed in pending.items():
            self.health["nonfinite_tokens"] += int(observed.nonfinite.sum())
            bad += [StatKey(pair, CONTEXT[i], "nonfinite") for i in np.flatnonzero(observed.nonfinite)]
        absent, lacking = readout.absent(self._windows), readout.lacking(self._windows)
        checked = bool(own or pending)
        return Observed(done.step, series, tuple(bad), absent, lacking, checked, done.missing, self.config)
