"""Monitor: the whole flow on one screen. Read this first.

    observe:  tensors → TokenBatch → slices → sketch and sums of each ratio pair
    log:      → windows → statistics → records → rules → findings → backends

Nothing here raises into training after the first observation has gone well: what fails is counted
in `diag/health/*`, warned of once, and kept in `Monitor.failures`.
"""

import atexit
import logging
import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from types import TracebackType

import numpy as np

from tracker_diag.backends.base import Backend
from tracker_diag.batch import PAIRS, Pair, Tensor, TokenBatch
from tracker_diag.detect.cusum import CusumSettings
from tracker_diag.errors import DiagError, StepError
from tracker_diag.metrics.registry import PREFIX, STATS, canonical
from tracker_diag.records import Histogram, Record, Scalar, Table
from tracker_diag.rules.engine import STATE_VALUES, Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Rule
from tracker_diag.rules.signals import Observed
from tracker_diag.rules.triage import Summary
from tracker_diag.slices import ALL, CONTEXT, label_context
from tracker_diag.stats.histogram import rebin
from tracker_diag.stats.tails import MIN_SEQUENCES, Estimate, slice_statistics, tokens_needed
from tracker_diag.stats.weights import WeightSums
from tracker_diag.windows import Observation, PairWindow, slice_counts

_log = logging.getLogger("tracker_diag")

_OF_A_SLICE = ("p50", "p95", "p99", "ess", "ess_sequence", "pareto_k", "count")
LOGGED: dict[str, tuple[str, ...]] = {
    "text_only": _OF_A_SLICE,
    "post_tool": _OF_A_SLICE,
    ALL: ("p95", "k3"),
}
"""Statistics that go to the tracker, by slice: at most 60 keys a step with all three pairs."""

HISTOGRAM_EDGES = np.array([0.0, *(2.0**e * m for e in range(-14, 8) for m in (1, 1.5)), 256.0])
"""(46,) nats: half octaves of |log-ratio|, the same at every step so that steps can be compared."""


class Monitor:
    """Watches one training run: give it tensors with `observe`, and the step's metrics with `log`.

    Args:
        backends: where records and findings go.
        rules: what to look for; the catalogue that comes with tracker_diag by default.
        window: steps that each statistic is taken over. More suits small batches.
        settings: burn-in, baseline and alarm level of the change detectors.
    """

    def __init__(
        self,
        backends: Sequence[Backend] = (),
        *,
        rules: Sequence[Rule] | None = None,
        window: int = 8,
        settings: CusumSettings | None = None,
        source: str = "live",
    ) -> None:
        self.backends = tuple(backends)
        self.failures: list[str] = []
        """The first message of each kind of failure."""
        self.health: Counter[str] = Counter()
        self._settings = settings or CusumSettings()
        self._engine = Engine(catalog() if rules is None else rules, self._settings)
        if window < 1:
            raise ValueError(f"window: {window} given, expected at least 1 step")
        self._window_steps = window
        self._windows: dict[Pair, PairWindow] = {}
        self._incoming: dict[Pair, Observation] = {}
        """Tensors that came since the last `log`; they belong to the step of the next one."""
        self._open: _Step | None = None
        self._steps = 0
        self._first: int | None = None
        self._last: int | None = None
        self._last_with_tensors: int | None = None
        self._source = source
        self._strict = True  # until one observation has gone well, whatever is wrong raises
        self._summary: Summary | None = None
        atexit.register(self.close)

    @property
    def step(self) -> int | None:
        """The step that is underway; None before the first `log`."""
        return self._open.step if self._open else self._last

    @property
    def observed(self) -> bool:
        """Whether tensors have come since the last `log`."""
        return bool(self._incoming)

    def observe(
        self,
        *,
        logprobs: Tensor = None,
        old_logprobs: Tensor = None,
        rollout_logprobs: Tensor = None,
        ref_logprobs: Tensor = None,
        response_mask: Tensor = None,
        model_mask: Tensor = None,
        after_tool: Tensor = None,
        sequence_ids: Tensor = None,
    ) -> None:
        """Take in the per-token tensors of a batch; they belong to the step of the next `log`.

        Several calls before a `log`, for micro-batches say, add up. See `TokenBatch.of` for shapes,
        units and dtypes.

        Raises:
            BatchError: on the first call, if the tensors do not fit together or hold NaN or inf.
                From then on such a batch is counted in `diag/health/rejected_batches` instead.
        """
        with self._guard("rejected_batches"):
            batch = TokenBatch.of(
                logprobs=logprobs,
                old_logprobs=old_logprobs,
                rollout_logprobs=rollout_logprobs,
                ref_logprobs=ref_logprobs,
                response_mask=response_mask,
                model_mask=model_mask,
                after_tool=after_tool,
                sequence_ids=sequence_ids,
            )
            if self._strict:
                batch.require_finite()
            row = label_context(batch)
            for pair in batch.pairs:
                observed = Observation.of(batch, pair, row)
                _add(self._incoming, pair, observed)
            self._strict = False

    def log(self, metrics: Mapping[str, object], step: int | None = None, *, last: bool = False) -> None:
        """Give the trainer's `metrics` of `step`, and with them the step of what was observed before.

        Several calls of one step add up. A step is evaluated when the next one begins, at `close`, or at
        once with `last=True`. Without `step` the next one is meant, and it is evaluated at once. What is
        not a number is ignored; a step that goes backwards is counted in `diag/health/late_steps`, its
        metrics are left out and its tensors wait for the next step.
        """
        with self._guard("internal_errors"):
            own = _numbers(metrics)
            if step is None:
                last, step = True, 0 if self.step is None else self.step + 1
            step = index(step)
            if self._open is None or step != self._open.step:
                self._begin(step)
            if self._open:
                self._open.metrics.update(own)
                for pair, observed in self._incoming.items():
                    _add(self._open.observed, pair, observed)
                self._incoming = {}
                if last:
                    self._evaluate_open()

    def close(self) -> Summary:
        """Write what is still to be written, to all backends; the tracker's run goes on. Idempotent."""
        if self._summary is None:
            with self._guard("internal_errors"):
                self._evaluate_open()
                if self._incoming:  # observed, but no `log` came any more
                    self.log({})
            self._summary = self.summary()
            tables: tuple[Table, ...] = ()
            with self._guard("internal_errors"):
                tables = (self.slices_table(),)
            for backend in self.backends:
                with self._guard("backend_errors"):
                    backend.close(self._summary, tables)
                self._collect_errors(backend)
            atexit.unregister(self.close)
        return self._summary

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def summary(self) -> Summary:
        """What the run adds up to so far: findings, first break, blind and healthy rules."""
        return Summary.of(self._engine, self._source, self._steps, self._first, self._last)

    def slices_table(self) -> Table:
        """Every pair and slice: its statistics now, and its p95 in the reference period."""
        columns = ("pair", "slice", *(metric.name for metric in STATS), "p95 baseline", "note")
        rows: list[tuple[str | float | int | None, ...]] = []
        absent = self._absent()
        for pair, window in self._windows.items():
            baseline = slice_counts(window.baseline)
            for name, now in window.statistics().items():
                cells = [now[metric.name].value if metric.name in now else None for metric in STATS]
                then = slice_statistics(baseline[name], WeightSums(), WeightSums()).get("p95")
                rows.append((pair, name, *cells, then.value if then else None, absent.get(pair, "")))
        return Table(PREFIX + "slices", columns, tuple(rows))

    def _begin(self, step: int) -> None:
        """Evaluate the step that is underway and open `step`; StepError if it lies before that."""
        # The axis is that of the tensors: metrics alone, on an axis of their own, do not push it on.
        limit = self._last_with_tensors if self._incoming else self.step
        if self._incoming and self._open and self._open.observed:
            limit = self._open.step
        if limit is not None and step <= limit:
            raise StepError(f"step: {step} given, expected more than {limit}; its metrics are left out")
        self._evaluate_open()
        self._open = _Step(step)

    def _evaluate_open(self) -> None:
        """Put the step that is underway through windows, statistics and rules, and tell the backends."""
        if self._open is None:
            return
        done, self._open = self._open, None
        step, own = done.step, done.metrics
        self._first, self._last = step if self._first is None else self._first, step
        self._steps += 1
        if done.observed:
            self._last_with_tensors = step

        for pair, observed in done.observed.items():
            if pair not in self._windows:
                settings = self._settings
                self._windows[pair] = PairWindow(self._window_steps, settings.burn_in, settings.baseline)
            self._windows[pair].push(observed)
        statistics = self._statistics(done.observed)
        changed = self._engine.evaluate(self._observed(step, statistics, own, done.observed))

        records = [*self._scalars(statistics), *self._histograms(done.observed)]
        for backend in self.backends:
            with self._guard("backend_errors"):
                backend.metrics(step, own)
                backend.log(step, records)
            for finding in changed:
                with self._guard("backend_errors"):
                    backend.finding(step, finding)
            self._collect_errors(backend)

    def _collect_errors(self, backend: Backend) -> None:
        for error in backend.errors():
            with self._guard("backend_errors"):
                raise error

    def _statistics(self, pairs: Mapping[Pair, Observation]) -> dict[str, Estimate]:
        """All statistics of the pairs observed at this step, over their windows, by name of the series."""
        found: dict[str, Estimate] = {}
        for pair in pairs:
            window = self._windows[pair]
            if window.signal:
                for name, estimates in window.statistics().items():
                    found |= {f"{pair}/{name}/{stat}": estimate for stat, estimate in estimates.items()}
        return found

    def _observed(
        self,
        step: int,
        statistics: Mapping[str, Estimate],
        own: Mapping[str, float],
        pending: Mapping[Pair, Observation],
    ) -> Observed:
        """What the rules see: the statistics, and the trainer's metrics under their canonical names."""
        series = {key: Scalar(key, estimate.value, estimate.n) for key, estimate in statistics.items()}
        bad = []
        for key, value in own.items():
            if not math.isfinite(value):
                bad.append(key)
            elif name := canonical(key):
                series.setdefault(name, Scalar(name, value))
        self.health["nonfinite_metrics"] += len(bad)
        for pair, observed in pending.items():
            self.health["nonfinite_tokens"] += int(observed.sketch.nonfinite.sum())
            bad += [f"{pair}/{CONTEXT[i]}/nonfinite" for i in np.flatnonzero(observed.sketch.nonfinite)]
        return Observed(step, series, tuple(bad), self._absent(), checked=bool(own or pending))

    def _absent(self) -> dict[str, str]:
        """Why there would be no value of a pair or a series, for the case that there is none."""
        absent: dict[str, str] = {}
        for pair, (new, old) in PAIRS.items():
            if pair not in self._windows:
                absent[pair] = f"no {new} and {old} observed"
            elif not self._windows[pair].signal:
                absent[pair] = "no signal: the ratio is 1 but for float noise, on-policy by construction"
            else:
                for name, counts in slice_counts(self._windows[pair].total).items():
                    n, key = int(counts.sum()), f"{pair}/{name}"
                    absent[f"{key}/ess_sequence"] = f"fewer than {MIN_SEQUENCES} sequences in the window"
                    absent[f"{key}/pareto_k"] = "the weights do not spread enough for a tail to be fitted"
                    for stat in (metric.name for metric in STATS):
                        if n < tokens_needed(stat):
                            absent[f"{key}/{stat}"] = f"{n} tokens in the window, {tokens_needed(stat)} needed"
        return absent

    def _scalars(self, statistics: Mapping[str, Estimate]) -> Iterator[Scalar]:
        for key, estimate in statistics.items():
            _, name, stat = key.split("/")
            if stat in LOGGED[name] and math.isfinite(estimate.value):
                yield Scalar(PREFIX + key, estimate.value, estimate.n)
        for rule, state in self._engine.states().items():
            yield Scalar(f"{PREFIX}rule/{rule}", STATE_VALUES[state])
        for kind, count in self.health.items():
            if count:
                yield Scalar(f"{PREFIX}health/{kind}", count)

    def _histograms(self, pairs: Mapping[Pair, Observation]) -> Iterator[Record]:
        for pair in pairs:
            window = self._windows[pair]
            if window.signal:
                for name, now, then in zip(CONTEXT, window.total.counts, window.baseline.counts, strict=True):
                    counts, baseline = (rebin(c.sum(axis=0), HISTOGRAM_EDGES) for c in (now, then))
                    yield Histogram(f"{PREFIX}{pair}/{name}/hist", counts, HISTOGRAM_EDGES, baseline)

    @contextmanager
    def _guard(self, kind: str) -> Generator[None, None, None]:
        """Count what is raised inside, warn of its first time, and go on; a first batch's error goes through."""
        try:
            yield
        except Exception as error:
            if self._strict and kind == "rejected_batches":
                raise
            if isinstance(error, StepError):
                kind = "late_steps"
            elif kind == "rejected_batches" and not isinstance(error, DiagError):
                kind = "internal_errors"
            self.health[kind] += 1
            if self.health[kind] == 1:
                message = f"{kind}: {type(error).__name__}: {error}"
                self.failures.append(message)
                _log.warning("%s (training goes on; further ones are counted in diag/health/%s)", message, kind)


@dataclass
class _Step:
    """What has come so far of the step that is underway."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    observed: dict[Pair, Observation] = field(default_factory=dict)


def _add(into: dict[Pair, Observation], pair: Pair, observed: Observation) -> None:
    into[pair] = into[pair] + observed if pair in into else observed


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that are single numbers, of whatever library, as floats; taken now, before they change."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        single = hasattr(value, "item") and getattr(value, "ndim", 1) == 0  # a scalar of numpy or torch
        number = value.item() if single else value  # type: ignore[attr-defined]
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                found[key] = float(number)
            except OverflowError:  # an integer beyond floats
                found[key] = math.inf if number > 0 else -math.inf
    return found
