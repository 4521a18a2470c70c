"""Run: what has come of a run becomes statistics, a verdict, and what is written to the trackers.

    tensors, samples, metrics → windows → statistics → Judge → findings and notices → guards → trackers

A `Monitor` calls it, under its guard and with its lock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import RenderableType

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.guards.guards import Action, Decision, Guards
from tracker_diag.health import Health
from tracker_diag.metrics.own import key_of
from tracker_diag.monitor import readout
from tracker_diag.monitor.worst import WorstSequences
from tracker_diag.records import Record, Scalar, Table
from tracker_diag.report.console import announce, plain
from tracker_diag.report.history import History
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.judge import Judge, StepInputs, Verdict
from tracker_diag.rules.triage import LIVE, Summary
from tracker_diag.samples.columns import Columns
from tracker_diag.samples.intake import SampleIntake
from tracker_diag.tensors.batch import Tensors
from tracker_diag.tensors.decode import Decode
from tracker_diag.tensors.intake import Intake
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.step import Progress, Step
from tracker_diag.tensors.suspicions import Silence
from tracker_diag.tensors.windows import PairWindows
from tracker_diag.trackers.fan_out import FanOut
from tracker_diag.trackers.tracker import Standing


class Request(NamedTuple):
    """What is asked for between two steps: a new baseline, or that the incidents of `rule` are kept quiet."""

    reason: str
    rule: str = ""
    """Empty for a new baseline."""
    steps: int | None = None


class Run:
    """All that is known of one run, step by step.

    Args:
        judge: has the rules in force.
        guards: are held against each step.
        out: writes to the trackers.
        settings: those of `judge`, for the length of the baselines.
        source: what the run is called; LIVE is a training that must not wait for us.
    """

    def __init__(
        self, judge: Judge, guards: Guards, out: FanOut, health: Health, *,
        settings: GrowthSettings, window: int, clip: tuple[float, float], ranks: Ranks | None,
        essential_tools: Sequence[str], texts: bool, decode: Decode | None, source: str,
    ) -> None:  # fmt: skip
        self.judge, self._guards, self._out, self._health = judge, guards, out, health
        self._source = source
        self.windows = PairWindows(window, clip, settings.short.burn_in, settings.short.baseline)
        self.intake = Intake(health, ranks, clip)
        self.samples = SampleIntake(health, ranks, essential_tools, texts=texts)
        self._worst = WorstSequences(health, decode, live=source == LIVE)
        self.history, self.progress, self.silence = History(), Progress(), Silence()
        self.measured: dict[str, Scalar] = {}
        """By the canary since the last step."""
        self.requests: list[Request] = []
        self._wanted = readout.wanted(judge.engine.rules)
        self._open: Step | None = None
        self._evaluating = False

    def restart(self, settings: GrowthSettings) -> None:
        """Start over with other `settings`; nothing may have come yet."""
        self.judge.restarted(settings)
        self.windows.burn_in, self.windows.baseline = settings.short.burn_in, settings.short.baseline

    def observe(self, tensors: Tensors, step: int | None, seconds: float | None) -> None:
        """Take in the tensors of a batch, of `step` or of the next `log`; see `Monitor.observe`."""
        self._finish_other(step)
        if not tensors and seconds is not None:
            self.intake.came(step, seconds)
            return
        self.intake.observe(tensors, step, seconds)
        self._health.strict = False
        self.warn(self.silence.observed(step))

    def put_columns(self, columns: Columns, step: int | None) -> None:
        """Take in what is known of each sequence of a batch, of `step` or of that of the tensors."""
        at = self.intake.step if step is None else step
        self._finish_other(at)
        self.samples.put_columns(columns)
        self.intake.step, self.intake.says_step = at, at is not None

    def log(self, own: Mapping[str, float], step: int | None) -> None:
        """Judge and write the trainer's `own` metrics and what has come before them; see `Monitor.log`."""
        last = self.progress.last
        at = next(known for known in (step, self.intake.step, 0 if last is None else last + 1) if known is not None)
        self._finish_other(at)
        warning = self.silence.logged(at, self.progress.last_with_tensors)
        self._take(own, at)
        self.warn(warning)

    def _finish_other(self, step: int | None) -> None:
        """Judge and write what has come of a step of its own, if that is not `step`."""
        if self.intake.step not in (None, step):
            self._take({}, self.intake.step)

    def _take(self, own: Mapping[str, float], at: int) -> None:
        """Judge and write what has come, and the trainer's `own` metrics, as a part of step `at`."""
        with self._health.guard("internal_errors"):
            gathered = self.intake.gather(at)
            self.samples.gather()
            if self._open is None or at != self._open.step:
                self.progress.begin(at, with_tensors=bool(gathered))
                self._fulfil(at)
                self._open = Step(at)
            if self._evaluating:  # a signal handler logs in the middle of a step
                self._health.counts["interrupted_steps"] += 1
                return
            self._evaluating = True
            try:
                self._evaluate(self._open, own)
            finally:
                self._evaluating = False

    def _evaluate(self, step: Step, own: Mapping[str, float]) -> None:
        observed, records, verdict, fresh = self.intake.taken(), list[Record](), Verdict((), ()), False
        with self._health.guard("internal_errors"):  # the trainer's own metrics are written all the same
            counted = self.windows.push(observed, step.pairs)
            if observed:
                self.progress.observed(step.step)
            statistics = readout.statistics(self.windows, counted, self.intake.names, self._wanted)
            step.pairs.update(observed)
            self.silence.judged(observed)
            sampled = self.samples.taken(step.step)
            measured, self.measured = self.measured, {}
            inputs = replace(
                self._inputs(own),
                statistics=readout.series(statistics, self.intake.time_ratio),
                samples={**sampled.series, **measured},
                non_finite=[*readout.nonfinite(own, observed, self._health.counts), *sampled.broken],
                checked=bool(own or observed or sampled.series or measured),
            )
            verdict = self.judge.step(step.step, inputs)
            fresh = True
            records += [*readout.scalars(statistics), *readout.histograms(self.windows, counted), *sampled.records]
            records += [Scalar(key_of(name), scalar.value) for name, scalar in measured.items()]
            self.history.add_step(step.step, self.judge.series, records)
        records += readout.states(self.judge.engine, self._health.counts, self.intake.time_ratio)
        noticed = bool(verdict.notices)
        records += self.samples.tables(noticed=noticed, step=step.step)
        records += self._worst.step(step.step, self.judge.engine.open, self.windows, self.intake, alerted=noticed)
        advice = self._guards.step(step.step, self.judge.series, self.judge, fresh=fresh)
        records += self._guards.tables()
        self._out.step(step.step, own, step.unsent(records), self._news(verdict), verdict.notices, so_far=self.summary)
        self._write_guards(step.step, advice)
        if self._out.tells and self.silence.first_look_is_due(
            self.progress.steps, bool(observed), self.windows.settled
        ):
            announce(seen := self.first_look(whole=False))
            self._out.events(step.step, [plain(seen)], (), ())

    def _inputs(self, own: Mapping[str, float]) -> StepInputs:
        """The metrics of a step, and what else is known of its tensors."""
        names = self.intake.names
        return StepInputs(
            own,
            absent=readout.absent(self.windows, self.silence.reach),
            lacking=readout.lacking(self.windows),
            missing=self.intake.missing,
            carriers=lambda pair, name: self.windows[pair].carriers(name, names) if pair in self.windows else (),
        )

    def _fulfil(self, step: int) -> None:
        """Do what was asked for before `step`, and write so."""
        requests, self.requests = self.requests, []
        rules = {rule.id for rule in self.judge.engine.rules} if requests else ()
        for reason, rule, steps in requests:
            if not rule:
                self.windows.rebaseline()
                self._write_events(step, [f"new baseline: {reason}"], self.judge.rebaseline(step))
            elif rule in rules:
                self.judge.acknowledge(rule, reason, steps)
                until = "" if steps is None else f" for {steps} steps"
                self._write_events(step, [f"{rule} is acknowledged{until}: {reason}"])
            else:
                self.warn(f"acknowledge: {rule!r} is no rule in force; nothing is quiet. See `tracker-diag rules list`")

    def decide(self, step: int, can: Collection[Action]) -> Decision:
        """What the guards decide at `step`, which is written."""
        decision, lines = self._guards.decide(step, self.judge, can)
        self._write_guards(step, lines, decision.notices(step, lines))
        return decision

    def _write_guards(self, step: int, lines: Sequence[str], done: Sequence[Notice] = ()) -> None:
        """Keep, write and warn of what guards have said at `step`; `done` are notices for people."""
        noticed = {notice.text for notice in done}
        self._health.warn(line for line in lines if line not in noticed)
        self._write_events(step, lines, notices=done)

    def _write_events(
        self, step: int, events: Sequence[str], verdict: Verdict | None = None, notices: Sequence[Notice] = ()
    ) -> None:
        """Keep and write what was done on purpose at `step`, what that has changed, and further `notices`."""
        news, raised = (self._news(verdict), verdict.notices) if verdict else ([], ())
        if events or news:
            self.history.events += [(step, event) for event in events]
            self._out.events(step, events, news, [*notices, *raised])

    def _news(self, verdict: Verdict) -> list[Finding | Standing]:
        """The findings that have changed; with one that has fired come all that have."""
        if not any(finding.fired is not None for finding in verdict.changed):
            return [*verdict.changed]
        fired = tuple(finding for finding in self.judge.findings if finding.fired is not None)
        return [*verdict.changed, Standing(fired)]

    def warn(self, warning: str | None) -> None:
        """Warn in the log and in the tracker."""
        if warning:
            self._health.warn([warning])
            self._out.events(self.progress.last or 0, [warning], (), ())

    def end(self) -> None:
        """Take in what has come since the last step; no further one comes."""
        last = self.progress.last or 0
        if self.intake.close() | self.samples.gather():  # of other ranks
            self._take({}, last)
        self._fulfil(last)
        self._worst.close()

    def last_tables(self) -> list[Table]:
        """What is written once the run has ended."""
        with self._health.guard("internal_errors"):
            samples, worst = self.samples.tables(last=True), self._worst.tables()
            return [self.slices_table(), *samples, *worst, *self._guards.close()]
        return []

    def summary(self) -> Summary:
        """What the run adds up to so far."""
        now, guards, engine = self.progress, self._guards, self.judge.engine
        lacking = readout.caveats(self.windows, self.silence.reach, self._health.counts, now, engine)
        return self.history.included_in(
            replace(
                self.judge.summary(self._source, now.steps, now.first, now.last),
                caveats=(*guards.caveats, *lacking),
                tails=readout.tails(self.windows),
                worst=self._worst.shown(),
                stopped=bool(guards.stopped),
            )
        )

    def first_look(self, *, whole: bool) -> RenderableType:
        """What is seen of the run, and what would let more rules see; `whole` as in `report.first_look`."""
        reach, by, engine = self.silence.reach, self.intake.shown_by, self.judge.engine
        return readout.seen(self.progress.last, self.windows, reach, by, engine, whole=whole)

    def slices_table(self) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        return readout.slices_table(self.windows, self.intake.names)

    def _parts(self) -> dict[str, Any]:
        """What is saved and restored by itself, in this order."""
        return {
            "windows": self.windows, "intake": self.intake, "samples": self.samples, "health": self._health,
            "history": self.history, "progress": self.progress, "guards": self._guards,
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """All that a run that continues with the next step needs, in JSON values."""
        return {name: part.state_dict() for name, part in self._parts().items()} | {
            "judge": self.judge.state_dict(),
            "open": self._open.state_dict() if self._open else None,
            "requests": [list(request) for request in self.requests],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self._open = Step.of_state(state["open"]) if state["open"] else None
        self.judge.load_state_dict(state["judge"], self._inputs({}))
        self.requests = [Request(*request) for request in state["requests"]]
