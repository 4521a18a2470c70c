"""Monitor: the whole flow on one screen. Read this first.

    observe:  tensors → TokenBatch → slices → sketch and sums of each ratio pair
    log:      → windows → statistics → records → rules → findings → backends

Nothing here raises into training after the first observation has gone well: what fails is counted
in `diag/health/*`, warned of once, and kept in `Monitor.failures`.
"""

import atexit
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

import tracker_diag.report.notebook  # noqa: F401  # a notebook then shows a Summary as its page
from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.errors import restoring
from tracker_diag.guards.guards import ACTIONS, Action, Decision, Guarded, Guards, OnIncident
from tracker_diag.health import Health, whole
from tracker_diag.metrics.aliases import key_map
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import Pair, Rank
from tracker_diag.monitor import readout
from tracker_diag.monitor.worst import WorstSequences
from tracker_diag.records import Record, Table
from tracker_diag.report.console import plain, say, show
from tracker_diag.report.history import History
from tracker_diag.rules.alerts import Alerts, Notice
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.rules.earlier import Earlier, EarlierRun
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import Own, in_force
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary
from tracker_diag.samples.columns import Columns
from tracker_diag.samples.intake import SampleIntake
from tracker_diag.tensors.batch import Tensors
from tracker_diag.tensors.decode import Decode
from tracker_diag.tensors.intake import Intake
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.pairs import PairWindows
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.step import Progress, Step, numbers, step_of
from tracker_diag.tensors.suspicions import Silence
from tracker_diag.trackers.fan_out import FanOut
from tracker_diag.trackers.tracker import Backend

if TYPE_CHECKING:
    from typing_extensions import Unpack

STATE_VERSION = 12


class Monitor(AbstractContextManager["Monitor"]):
    """Watches one training run: give it tensors with `observe`, and the step's metrics with `log`.

    Args:
        backends: where records and findings go.
        rules: your own, or their folder; they stand beside the catalogue and the folder that TRACKER_DIAG_RULES names.
        catalog: False looks for `rules` alone.
        window: steps that each statistic is taken over. More suits small batches.
        settings: of the change detectors, among them how many steps the run is expected to have; see `expect`.
        expected_runs_between_false_alarms: healthy runs, about, until one is alarmed; the more, the later and surer.
        clip: how far below and above 1 the trainer clips the ratio, for `clip_fraction`.
        ranks: how the observations of several ranks come together; this process alone by default.
        config: settings of the run by dotted name, for the rules that look at them; also `Monitor.config`.
        algorithm: what is trained with, for the limits that depend on it; what `config` or the metrics' names tell by
            default.
        essential_tools: tools without which tasks cannot be solved, for ENV002.
        baseline: finished runs that went well, of `read_run`; beyond their tails growth counts from the first step on.
        texts: whether completions given to `samples` may be shown in the tracker.
        decode: makes text of token ids, as `tokenizer.decode` does, for what the tracker and the report show of the
            worst sequences; without it they show no text. A secret that a tool has returned would be shown as well.
        guards: what to do when something goes wrong, or their YAML file; see `decide`.
        on_incident: called with each `Incident` when it begins and when it becomes an error, in a thread of its own.
    """

    def __init__(
        self,
        backends: Sequence[Backend] = (),
        *,
        rules: Own = (),
        catalog: bool = True,
        window: int = 8,
        settings: GrowthSettings | None = None,
        expected_runs_between_false_alarms: float = USUAL,
        clip: tuple[float, float] = (0.2, 0.2),
        ranks: Ranks | None = None,
        config: Mapping[str, object] | None = None,
        algorithm: Algorithm | None = None,
        essential_tools: Sequence[str] = (),
        baseline: Sequence[EarlierRun] = (),
        texts: bool = False,
        decode: Decode | None = None,
        guards: Guarded = (),
        on_incident: OnIncident | None = None,
        source: str = "live",
    ) -> None:
        self._state = Health()
        self.health, self.failures = self._state.counts, self._state.failures
        self.guard, self.record = self._state.guard, self._state.record
        self._out = FanOut(self._state, log=source == "live")
        self._alerts = Alerts()
        self._dial, self._given = expected_runs_between_false_alarms, settings is not None
        self._settings = (settings or GrowthSettings()).dialled(self._dial)
        self.config: Mapping[str, object] = dict(config or {})
        self.algorithm: Algorithm | None = algorithm or algorithm_of(self.config)
        self._engine = Engine(in_force(rules, with_catalog=catalog), self._settings, self.algorithm, Earlier(baseline))
        self.guards = Guards(guards, [rule.id for rule in self._engine.rules], self._state, on_incident, ranks)
        self._wanted = readout.wanted(self._engine.rules)
        self._keys = key_map(())
        self._windows = PairWindows(window, clip, self._settings.short.burn_in, self._settings.short.baseline)
        self._intake = Intake(self._state, ranks, clip)
        self._samples = SampleIntake(self._state, ranks, essential_tools, texts=texts)
        self._worst = WorstSequences(self._state, decode, live=source == "live")
        self._history, self._progress, self.silence = History(), Progress(), Silence()
        self.events = self._history.events
        """What was done on purpose, by step: baselines that were taken anew, and what guards have said."""
        self._open: Step | None = None
        self._source, self._rebaseline = source, list[str]()
        self._summary: Summary | None = None
        self._at_close = ExitStack()
        if ranks is None:  # else the rank that writes to a tracker does, and not each of them
            self._out.tell_people()
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
    def clip(self) -> tuple[float, float]:
        """How far below and above 1 the ratio is taken to be clipped."""
        return self._windows.clip

    @property
    def step(self) -> int | None:
        """The step that is underway; None before the first `log`."""
        return self._progress.last

    @property
    def observed(self) -> bool:
        """Whether tensors have come since the last `log`."""
        return bool(self._intake)

    @property
    def tensors_say_step(self) -> bool:
        """Whether `observe` is given steps: what is logged without one is then of theirs."""
        return self._intake.says_step

    def at_close(self, call: Callable[[], object]) -> None:
        """Have `call` called at the end, as what lets go of the tracker; the last one first."""
        self._at_close.callback(call)

    def expect(self, rows: int | None) -> None:
        """Say how many rows the run is meant to log, before the first: a short run is judged by shorter horizons.

        Nothing changes where `settings` were given, or where nobody knows: for 0 and None. What comes too late is told.
        """
        if not rows or self._given:
            return
        if self.step is not None:
            self._state.tell([readout.LATE.format(rows)] if rows != self._settings.expected_steps else ())
        else:
            self._settings = GrowthSettings.for_run(rows).dialled(self._dial)
            self._engine = Engine(self._engine.rules, self._settings, self.algorithm, self._engine.earlier)
            self._windows.burn_in, self._windows.baseline = self._settings.short.burn_in, self._settings.short.baseline

    def observe(self, *, step: int | None = None, seconds: float | None = None, **tensors: "Unpack[Tensors]") -> None:
        """Take in the per-token tensors of a batch; they belong to the step of the next `log`, or to `step`.

        Several calls before a `log`, for micro-batches say, add up, and so do several of one `step`. See `Tensors` for
        shapes, units and dtypes. `seconds` is this rank's own time for the step, without waiting for others: among
        ranks it tells a straggler. Tensors on a device stay there, and from the second call on nothing waits for it.

        Raises:
            BatchError: on the first call, if the tensors do not fit together or hold NaN or inf.
                From then on such a batch is counted in `diag/health/rejected_batches` instead.
        """
        if self._over():
            return
        with self.guard("rejected_batches"):
            at = None if step is None else step_of(step)
            if self._intake.step is not None and self._intake.step != at:
                self._take({}, self._intake.step)
            with whole():
                self._intake.observe(tensors, at, seconds)
            self._state.strict = False
            self._say(self.silence.observed(at))

    def observe_parts(
        self, observed: Mapping[Pair, Observation], names: Names, *, missing: Mapping[Rank, int], lost: int = 0
    ) -> None:
        """Take in what other processes have reduced already, on the host, as a part of the step of the next `log`.

        `names` are those that their rows of tools and environments go by; `missing` says of each rank that is late how
        many updates ago it was heard of, `lost` of how many updates nothing will come.
        """
        if not self._over():
            with self.guard("rank_errors"), whole():
                self._intake.add(observed, names, missing, lost)
                if observed:
                    self._say(self.silence.observed(None))

    def samples(self, *, step: int | None = None, **columns: "Unpack[Columns]") -> None:
        """Take in what is known of each sequence of a batch, see `Columns`; as `observe` does, with its errors."""
        if not self._over():
            with self.guard("rejected_samples", strict=self._samples.strict):
                at = self._intake.step if step is None else step_of(step)
                if self._intake.step not in (None, at):
                    self._take({}, self._intake.step)
                self._samples.add(columns)
                self._intake.step, self._intake.says_step = at, at is not None

    def log(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        """Give the trainer's `metrics` of `step`, and with them the step of what was observed before.

        Several calls of one step add up: each is evaluated at once, for what is new in it; of a metric that comes twice
        the first value counts. Without `step` that of the tensors is meant, or the next. What is no number is ignored;
        a step that goes back is counted in `diag/health/late_steps`: metrics are left out, tensors wait for the next.
        """
        if not self._over():
            with self.guard("internal_errors"):
                own, of_tensors = numbers(metrics), self._intake.step
                upcoming = 0 if self.step is None else self.step + 1
                at = step_of(step) if step is not None else upcoming if of_tensors is None else of_tensors
                if of_tensors is not None and of_tensors != at:
                    self._take({}, of_tensors)
                warning = self.silence.logged(at, self._progress.last_with_tensors)
                self._take(own, at)
                self._say(warning)

    def decide(self, can: Collection[Action] = ACTIONS) -> Decision:
        """What `guards` say is to be done now; ask once a step after `log`, on every rank, and do it.

        Args:
            can: what the caller can do; the rest is told, and not done.
        """
        decision = Decision()
        if not self._over() and (step := self.step) is not None:
            with self.guard("internal_errors"):
                decision, told = self.guards.decide(step, self._engine, can)
                self._tell_guards(step, told, decision.notices(step, told))
                if decision.refresh_reference:
                    self.rebaseline("the reference was refreshed, and what is measured against it begins anew")
        return decision

    def checkpoint(self, path: str | PathLike[str], step: int | None = None) -> None:
        """Say that a checkpoint lies at `path`, a file or a folder, whole: for `rollback`. Of this step by default."""
        if not self._over():
            with self.guard("checkpoint_errors"):
                at = step_of(step) if step is not None else self.step or 0
                self.guards.checkpoint(Path(path), at, self._engine)

    def close(self) -> Summary:
        """Write what is still to be written, to all backends; the tracker's run goes on. Idempotent."""
        if self._state.elsewhere():
            return self._result()
        with self._state.turn:
            if self._summary is not None:
                return self._summary
            with self.guard("internal_errors"):
                if self._intake.asked or self.observed or self._samples:  # but no `log` came any more
                    self.log({})
                if self._intake.close() | self._samples.gather():  # what other ranks have sent since
                    self._take({}, self.step or 0)
                self._record_baselines(self._progress.last or 0)
                self._worst.close()
            self._summary = self._result()
        tables: list[Table] = []
        with self.guard("internal_errors"):
            tables += [self.slices_table(), *self._samples.tables(last=True), *self._worst.tables()]
            tables += self.guards.close()
        self._out.close(self._summary, tables)
        with self.guard("internal_errors"):
            self._at_close.close()
        atexit.unregister(self.close)
        return self._summary

    def rebaseline(self, reason: str) -> None:
        """Take what comes from the next step on as the new normal, after a planned change of tools, say.

        All baselines begin anew, findings that are firing end, and `reason` is written into the tracker.
        """
        self._rebaseline.append(reason)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to raise the same alerts as an unbroken one.

        Strings, numbers, lists and dictionaries alone: it goes into any checkpoint, and into JSON.
        """
        with self._state.turn:
            return {name: part.state_dict() for name, part in self._parts().items()} | {
                "version": STATE_VERSION,
                "rows": self._settings.expected_steps,
                "engine": self._engine.state_dict(),
                "open": self._open.state_dict() if self._open else None,
                "rebaseline": list(self._rebaseline),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Rules that are new since then begin anew.

        Raises:
            SourceError: if `state` is of another version, or is damaged; the monitor is then to be made anew.
        """
        with restoring(state, STATE_VERSION):
            self.expect(state.get("rows"))  # as it was begun, it goes on
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self._open = Step.of_state(state["open"]) if state["open"] else None
            self._engine.load_state_dict(state["engine"], self._observed(self._open) if self._open else None)
            self._rebaseline = list(state["rebaseline"])

    def _parts(self) -> dict[str, Any]:
        """What is saved and restored by itself, in this order."""
        return {
            "windows": self._windows, "intake": self._intake, "samples": self._samples, "health": self._state,
            "alerts": self._alerts, "history": self._history, "progress": self._progress, "guards": self.guards,
        }  # fmt: skip

    def __exit__(self, *raised: object) -> None:
        self.close()

    def summary(self) -> Summary:
        """What the run adds up to so far: findings, first break, blind and healthy rules."""
        with self._state.turn:
            return self._result()

    def explain(self) -> None:
        """Show what is seen of the run, by which tensors and metrics, and what would open the eyes of more rules."""
        show(self._first_look())

    def _first_look(self) -> RenderableType:
        with self._state.turn:
            return readout.seen(self.step, self._windows, self.silence.reach, self._intake.told_by, self._engine)

    def slices_table(self) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        with self._state.turn:
            return readout.slices_table(self._windows, self._intake.names)

    def _result(self) -> Summary:
        now = self._progress
        found = Summary.of(self._engine, self._source, now.steps, now.first, now.last)
        reach = self.silence.reach
        caveats = (*self.guards.caveats, *readout.caveats(self._windows, reach, self.health, now, self._engine))
        tails, worst = readout.tails(self._windows), self._worst.shown()
        stopped = bool(self.guards.stopped)
        return self._history.beside(replace(found, caveats=caveats, tails=tails, worst=worst, stopped=stopped))

    def _over(self) -> bool:
        """Whether a call is left out: in a fork of the process, and after the end, which is counted."""
        return self._state.over(ended=self._summary is not None)

    def _take(self, own: Mapping[str, float], at: int) -> None:
        """Evaluate what has come, as a part of step `at`."""
        with self.guard("internal_errors"):
            gathered = self._intake.gather(at)
            self._samples.gather()
            if self._open is None or at != self._open.step:
                self._progress.begin(at, with_tensors=bool(gathered))
                self._record_baselines(at)
                self._open = Step(at)
            self._evaluate(self._open, own)

    def _record_baselines(self, step: int) -> None:
        """Take the new baselines that were asked for, and say so."""
        if self._rebaseline:
            events, self._rebaseline = [f"new baseline: {reason}" for reason in self._rebaseline], []
            self._windows.rebaseline()
            self._tell_events(step, events, self._engine.rebaseline(step))

    def _tell_events(
        self, step: int, events: Sequence[str], ended: Sequence[Finding] = (), notices: Sequence[Notice] = ()
    ) -> None:
        """Keep and write what was done on purpose at `step`, and the findings that `ended` by it; tell `notices`."""
        if events or ended:
            self.events += [(step, event) for event in events]
            over = self._alerts.notices(step, ended, self._engine)
            self._out.events(step, events, ended, [*notices, *over])

    def _tell_guards(self, step: int, said: Sequence[str], done: Sequence[Notice] = ()) -> None:
        """Keep, write and say what guards have said at `step`; of what is `done` people are told."""
        told = {notice.text for notice in done}
        self._state.tell(one for one in said if one not in told)
        self._tell_events(step, said, notices=done)

    def _evaluate(self, step: Step, own: Mapping[str, float]) -> None:
        """Put what has come of `step` through windows, statistics and rules, and tell the backends."""
        observed, records, changed = self._intake.taken(), list[Record](), list[Finding]()
        with whole(), self.guard("internal_errors"):  # the trainer's own metrics go to the backends all the same
            self._windows.take(observed, step.pairs)
            if observed:
                self._progress.observed(step.step)
            statistics = readout.statistics(self._windows, observed, self._intake.names, self._wanted)
            step.pairs.update(observed)
            self._say(self.silence.judged(observed))
            self._keys, sampled = self._keys.covering(own), self._samples.taken(step.step)
            self.algorithm = self.algorithm or self._keys.algorithm
            self._engine = self._engine.with_algorithm(self.algorithm)
            series = readout.series(statistics, self._keys, own, self._intake.time_ratio, sampled.series)
            broken = [*readout.nonfinite(own, observed, self.health), *sampled.broken]
            step.add(series, broken, checked=bool(own or observed or sampled.series))
            changed = self._engine.evaluate(self._observed(step))
            records += [*readout.scalars(statistics), *readout.histograms(self._windows, observed), *sampled.records]
            self._history.add(step.step, step.series, records)
        records += readout.states(self._engine, self.health, self._intake.time_ratio)
        told = self._alerts.notices(step.step, changed, self._engine)
        records += self._samples.tables(told=bool(told), step=step.step)
        records += self._worst.step(step.step, self._engine.open, self._windows, self._intake, told=bool(told))
        advice = self.guards.step(step.step, step.series, self._engine)
        records += self.guards.tables()
        self._out.step(step.step, own, step.unsent(records), changed, told, so_far=self._result)
        self._tell_guards(step.step, advice)
        if self._out.tells and self.silence.look(self._progress.steps, bool(observed), self._windows.settled):
            say(seen := self._first_look())
            self._out.events(step.step, [plain(seen)], (), ())

    def _observed(self, step: Step) -> Observed:
        """What the rules see of `step` so far."""
        missing, reach = self._intake.missing, self.silence.reach
        return readout.observed(step, self._windows, reach, self._intake.names, missing=missing, config=self.config)

    def _say(self, warning: str | None) -> None:
        """Say it to whoever reads the log or the tracker."""
        if warning:
            self._state.tell([warning])
            self._out.events(self.step or 0, [warning], (), ())
