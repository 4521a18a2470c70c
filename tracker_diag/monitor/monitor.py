"""Monitor: what a training loop calls. Read this first, and then `run.py`.

    observe:  tensors → TokenBatch → slices → sketch and sums of each ratio pair
    log:      → `Run`: windows → statistics → Judge → findings and notices → guards → trackers

After the first `observe` nothing here raises into training. A failure is counted in `diag/health/*`, warned of once,
and kept in `Monitor.failures`.
"""

import atexit
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tracker_diag.report.html  # noqa: F401  # pyright: ignore[reportUnusedImport]  # a Summary shows as its page
from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.errors import DiagError, restoring
from tracker_diag.guards.guards import ACTIONS, Action, Decision, Guarded, Guards
from tracker_diag.health import Health, bare_if_off
from tracker_diag.metrics.registry import Algorithm, training
from tracker_diag.metrics.series import Pair, Rank
from tracker_diag.monitor import readout
from tracker_diag.monitor.run import Request, Run
from tracker_diag.records import Scalar, Table
from tracker_diag.report.console import Terminal
from tracker_diag.rules.earlier import Earlier, EarlierRun
from tracker_diag.rules.judge import Judge
from tracker_diag.rules.loader import Own, in_force
from tracker_diag.rules.triage import LIVE, Summary
from tracker_diag.samples.columns import Columns
from tracker_diag.scrub import learnt, without_secrets
from tracker_diag.stats.kernel import kernel
from tracker_diag.tensors.batch import Tensors
from tracker_diag.tensors.decode import Decode
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.step import numbers, step_of
from tracker_diag.trackers.fan_out import BeforeSend, FanOut
from tracker_diag.trackers.tracker import Entry, Tracker

if TYPE_CHECKING:
    from typing_extensions import Unpack

STATE_VERSION = 27


class Monitor(AbstractContextManager["Monitor"]):
    """Watches one training run: give it tensors with `observe`, and the step's metrics with `log`.

    Args:
        trackers: where records and findings go.
        rules: your own rules, or their folder. The catalogue and the folder in TRACKER_DIAG_RULES are used as well.
        catalog: False uses `rules` alone.
        window: steps that each statistic is taken over. More suits small batches.
        settings: of the change detectors, among them how many steps the run is expected to have; see `expect`.
        expected_runs_between_false_alarms: about how many healthy runs pass per false alarm. Higher means fewer and
            later alarms.
        clip: how far below and above 1 the trainer clips the ratio, for `clip_fraction`.
        ranks: how the observations of several ranks come together; this process alone by default.
        config: settings of the run by dotted name, for the rules that look at them; also `Monitor.config`.
        algorithm: what is trained with, for the limits that depend on it; what `config` or the metrics' names tell by
            default.
        evaluation: key of the evaluation that counts, where several are logged; by default one that is no
            mean reward, in the order of the framework's table.
        essential_tools: tools without which tasks cannot be solved, for ENV002.
        baseline: finished runs that went well, of `read_run`; beyond their tails growth counts from the first step on.
        texts: whether completions given to `samples` may be shown in the tracker.
        decode: makes text of token ids, as `tokenizer.decode` does, for what the tracker and the report show of the
            worst sequences; without it they show no text. A secret that a tool has returned would be shown as well.
        guards: what to do when something goes wrong, or their YAML file; see `decide`.
        before_send: called with each entry that is to leave for a tracker; gives what is sent, or None for nothing.
    """

    @bare_if_off
    def __init__(
        self,
        trackers: Sequence[Tracker] = (),
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
        evaluation: str = "",
        essential_tools: Sequence[str] = (),
        baseline: Sequence[EarlierRun] = (),
        texts: bool = False,
        decode: Decode | None = None,
        guards: Guarded = (),
        before_send: BeforeSend | None = None,
        source: str = LIVE,
    ) -> None:
        self._state = Health()
        self.health, self.failures = self._state.counts, self._state.failures
        self.guard, self.record = self._state.guard, self._state.record
        self._out = FanOut(self._state, log=source == LIVE, before_send=before_send)
        self._dial, self._given = expected_runs_between_false_alarms, settings is not None
        self._settings = (settings or GrowthSettings()).dialled(self._dial)
        self._promised: dict[str, object] = {}
        """What `expect` was given, as settings that rules read."""
        in_use = in_force(rules, with_catalog=catalog)
        config = learnt(config or {})
        judge = Judge(
            in_use, self._settings, config=config, algorithm=algorithm, earlier=Earlier(baseline), evaluation=evaluation
        )
        self.guards = Guards(guards, [rule.id for rule in in_use], self._state, ranks)
        self._run = Run(
            judge, self.guards, self._out, self._state, settings=self._settings, window=window, clip=clip, ranks=ranks,
            essential_tools=essential_tools, texts=texts, decode=decode, source=source,
        )  # fmt: skip
        self.silence, self.events = self._run.silence, self._run.history.events
        """`events`: what was done on purpose, by step: new baselines, and what guards have said."""
        self.on_sync: Callable[[], object] | None = None
        """Called by `synced`; a `Canary` puts itself here."""
        self._summary: Summary | None = None
        self._at_close = ExitStack()
        if ranks is None:  # else the rank that writes to a tracker does, and not each of them
            self._out.tell_people()
        if other := [tracker for tracker in trackers if not isinstance(tracker, Tracker)]:
            kind = getattr(other[0], "__name__", type(other[0]).__name__)
            raise DiagError(f"trackers: {kind} given, expected td.Tracker objects; for a run: td.wrap({kind})")
        for tracker in trackers:
            self.add_tracker(tracker)
        atexit.register(self.close)

    def add_tracker(self, tracker: Tracker) -> None:
        """Write to `tracker` as well, from the next step on; for runs that a framework starts later."""
        if not self._state.elsewhere():
            self._out.attach(tracker)

    @property
    def config(self) -> Mapping[str, object]:
        """Settings of the run by dotted name, for the rules that look at them. It may be replaced as they change."""
        return self._run.judge.config

    @config.setter
    def config(self, config: Mapping[str, object]) -> None:
        self._run.judge.config = {**learnt(config), **self._promised}

    @property
    def framework(self) -> str | None:
        """Whose names the metrics have; an integration sets it before the first row. None: recognised by the names."""
        return self._run.judge.framework

    @framework.setter
    def framework(self, framework: str | None) -> None:
        self._run.judge.framework = framework

    @property
    def algorithm(self) -> Algorithm | None:
        """What is trained with; None as long as neither settings nor names of metrics say it."""
        return self._run.judge.algorithm

    @property
    def trackers(self) -> tuple[Tracker, ...]:
        return self._out.trackers

    @property
    def clip(self) -> tuple[float, float]:
        """How far below and above 1 the ratio is taken to be clipped."""
        return self._run.windows.clip

    @property
    def step(self) -> int | None:
        """The step that is underway; None before the first `log`."""
        return self._run.progress.last

    @property
    def observed(self) -> bool:
        """Whether tensors have come since the last `log`."""
        return bool(self._run.intake)

    @property
    def wants_tokens(self) -> bool:
        """Whether the worst sequences of the next step are looked for, which takes its tokens and not their counts."""
        return bool(self._run.intake.worst.limits)

    @property
    def tensors_say_step(self) -> bool:
        """Whether `observe` is given steps: what is logged without one is then of theirs."""
        return self._run.intake.says_step

    def __deepcopy__(self, memo: object) -> "Monitor":
        return self  # a copy of the tracker has it too

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return type(None), ()  # a run is watched in one process; the tracker that is pickled must not fail for it

    def at_close(self, call: Callable[[], object]) -> None:
        """Have `call` called at the end; of several, the last one first. It releases the tracker, for example."""
        self._at_close.callback(call)

    def expect(self, rows: int | None = None, *, mismatch: Literal["zero"] | None = None) -> None:
        """Say before the first row what is known of the run.

        Args:
            rows: that it will log: a short run is judged by shorter horizons. Nothing changes if `settings` were given,
                or for 0 and None. After the first row a warning says it is too late.
            mismatch: "zero" where trainer and sampler are bit-exact: any other mismatch is a finding at once (NUM010).

        Raises:
            DiagError: another `mismatch`.
        """
        if mismatch not in (None, "zero") and not self._state.elsewhere():
            raise DiagError(f"mismatch: {mismatch!r} given, expected 'zero', or nothing where it need not be 0")
        if mismatch:
            self._promised["expect.mismatch"] = mismatch
            self.config = self.config
        if not rows or self._given:
            return
        if self.step is not None:
            self._state.warn([readout.LATE.format(rows)] if rows != self._settings.expected_steps else ())
        else:
            self._settings = GrowthSettings.for_run(rows).dialled(self._dial)
            self._run.restart(self._settings)

    def observe(self, *, step: int | None = None, seconds: float | None = None, **tensors: "Unpack[Tensors]") -> None:
        """Take in the per-token tensors of a batch; they belong to the step of the next `log`, or to `step`.

        Several calls before a `log`, such as one for each micro-batch, add up. So do several calls with one `step`. See
        `Tensors` for shapes, units and dtypes. `seconds` is this rank's own time for the step, without waiting for
        other ranks; with it, also without tensors, a straggler is found. Tensors on a device stay there. From the
        second call on, nothing waits for the device.

        Raises:
            BatchError: on the first call, if the tensors do not fit together.
                Later, and after a resume, such a batch is counted in `diag/health/rejected_batches` instead.
        """
        if not self._over():
            with self.guard("rejected_batches"):
                self._run.observe(tensors, None if step is None else step_of(step), seconds)

    def observe_parts(
        self, observed: Mapping[Pair, Observation], names: Names, *,
        missing: Mapping[Rank, int] | None = None, lost: int = 0,
    ) -> None:  # fmt: skip
        """Take in what other processes have reduced on the host, as a part of the step of the next `log`.

        Args:
            names: of tools and environments, as in the rows of those processes.
            missing: for each rank that is late, how many updates ago it last reported; None where there are no ranks.
            lost: the number of updates of which nothing will come.
        """
        if not self._over():
            with self.guard("rank_errors"):
                self._run.intake.add_observed(observed, names, missing, lost)
                if observed:
                    self._run.warn(self.silence.observed(None))

    def samples(self, *, step: int | None = None, **columns: "Unpack[Columns]") -> None:
        """Take in what is known of each sequence of a batch, see `Columns`; as `observe` does, but it never raises."""
        if not self._over():
            with self.guard("rejected_samples"):
                self._run.put_columns(columns, None if step is None else step_of(step))

    def synced(self) -> None:
        """Say that the sampler has got the newest weights. A `Canary` of this monitor sees whether that is so."""
        if self.on_sync is not None and not self._over():
            self.on_sync()

    def measure(self, series: Mapping[str, float]) -> None:
        """Take in what a `Canary` or an integration measures, by canonical name, for the step of the next `log`.

        What a canary measures is written as `diag/canary/<name>`, all else as `diag/samples/<name>`.
        """
        if not self._over():
            with self.guard("internal_errors"):
                self._run.measured |= {name: Scalar(training(name).name, value) for name, value in series.items()}

    def log(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        """Give the trainer's `metrics` of `step`, and with them the step of what was observed before.

        Several calls of one step add up; each is evaluated at once. Of a metric that comes twice the first value
        counts. Without `step`, that of the tensors is meant, or the next one. Values that are not numbers are ignored.
        A step below an earlier one is counted in `diag/health/late_steps`: its metrics are left out, and its tensors
        count for the next step.
        """
        if not self._over():
            self.guards.forget()
            with self.guard("internal_errors"):
                self._run.log(numbers(metrics), None if step is None else step_of(step))

    def decide(self, can: Collection[Action] = ACTIONS) -> Decision:
        """What `guards` decide. Call it once a step, after `log`, on every rank, and carry the decision out.

        Args:
            can: the actions that the caller can carry out; others are reported as not done.
        """
        decision = Decision()
        if not self._over() and (step := self.step) is not None:
            with self.guard("internal_errors"):
                decision = self._run.decide(step, can)
                if decision.refresh_reference:
                    self.rebaseline("the reference was refreshed, and what is measured against it starts over")
        return decision

    def checkpoint(self, path: str | PathLike[str], step: int | None = None) -> None:
        """Register a complete checkpoint, a file or a folder, for `rollback`; of this step by default.

        Call it right after the save: of a layout that we do not know, the manifest is written by your word.
        """
        if not self._over():
            with self.guard("checkpoint_errors"):
                at = step_of(step) if step is not None else self.step or 0
                self.guards.checkpoint(Path(path), at, self._run.judge)
                self._run.judge.checkpoints.append(at)

    def hand_over(self, *entries: Entry) -> None:
        """Write `entries` to the trackers without secrets, and as `before_send` lets them pass."""
        if not self._state.elsewhere():
            self._out.hand_over(self.step or 0, *entries)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until the trackers have all that was logged, `timeout` seconds at most; whether they have it."""
        return self._state.elsewhere() or self._out.flush(timeout)

    def close(self) -> Summary:
        """Write what is still to be written to all trackers. The tracker's own run stays open. Idempotent."""
        if self._state.elsewhere():
            return self._run.summary()
        with self._state.turn:
            if self._summary is not None:
                return self._summary
            with self.guard("internal_errors"):
                if self._run.intake.asked or self.observed or self._run.samples:  # but no `log` came any more
                    self.log({})
                self._run.end()
            self._summary = self._run.summary()
        self._out.close(self._summary, self._run.last_tables())
        with self.guard("internal_errors"):
            self._at_close.close()
        atexit.unregister(self.close)
        return self._summary

    def rebaseline(self, reason: str) -> None:
        """Take what comes from the next step on as normal, after a planned change such as a new tool.

        All baselines restart, findings that rest on one end, and `reason` is written into the tracker.
        """
        self._run.requests.append(Request(without_secrets(str(reason))))

    def acknowledge(self, rule: str, reason: str, steps: int | None = None) -> None:
        """Keep quiet what you know of: the incidents that `rule` is a part of, from the next step on.

        They stay listed. Alerts, guards and the advice leave them out until they get worse, or for so many `steps`.
        `reason` is written into the tracker.
        """
        self._run.requests.append(Request(without_secrets(str(reason)), rule, steps))

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to raise the same alerts as an unbroken one.

        Strings, numbers, lists and dictionaries alone: it goes into any checkpoint, and into JSON.
        """
        with self._state.turn:
            state = {"version": STATE_VERSION, "rows": self._settings.expected_steps}
            return state | self._run.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Rules that are new since then start from scratch.

        Raises:
            SourceError: `state` is of another version, or is damaged. Make a new monitor then.
        """
        if not self._state.elsewhere():
            with restoring(state, STATE_VERSION):
                self.expect(state.get("rows"))  # it continues as it began
                self._run.load_state_dict(state)

    def __exit__(self, *raised: object) -> None:
        self.close()

    def summary(self) -> Summary:
        """What the run adds up to so far: findings, first break, blind and healthy rules."""
        with self._state.turn:
            return self._run.summary()

    def explain(self) -> None:
        """Show which tensors and metrics the rules see, what to log so that more rules can see, and what counts."""
        with self._state.turn:
            shown = self._run.first_look(whole=True)
        Terminal().print(shown)
        Terminal().print(f"counted by {'the compiled kernel' if kernel() else 'numpy, as no kernel was compiled'}")

    def slices_table(self) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        with self._state.turn:
            return self._run.slices_table()

    def _over(self) -> bool:
        """Whether a call is left out: in a fork of the process, and after the end, which is counted."""
        return self._state.over(ended=self._summary is not None)
