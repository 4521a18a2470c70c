"""Fold: what the tokens of a step come to, wherever they are read; then all steps in order, as a live run is judged.

    fold(tensors)    → Folded: for each ratio pair the counts and sums of all slices
    merge(parts)     → Folded of a step whose batches were folded one by one
    judge(states)    → Summary

A fold does not depend on other folds, and `judge` takes the steps in their order. So one process, several, and a
cluster give the same result to the bit.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.errors import BatchError, SourceError
from tracker_diag.health import Health
from tracker_diag.metrics.series import Pair
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.rules.triage import Summary
from tracker_diag.stats.histogram import Sketch, sketch
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.intake import Intake
from tracker_diag.tensors.observation import GROUPS, ROWS, Observation, add_observations, packed, renamed, unpacked
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.state import pack_cells, unpack_cells

TensorsOf: TypeAlias = Callable[[int], Mapping[str, Any] | None]
"""Gives the arguments of `observe` of a step once more."""


@dataclass(frozen=True)
class Folded:
    """What the tokens of one step come to."""

    observed: Mapping[Pair, Observation]
    """By ratio pair: counts and sums of every slice; `Observation` says which."""
    names: Names
    """Of tools and environments, as in the rows of `observed`."""
    rejected: str = ""
    """Why the tensors could not be taken; then nothing was observed."""
    grouped: bool = False
    """Whether the tokens say their prompts, which then are the groups of the sampling error."""
    means: Mapping[Pair, Sketch] = field(default_factory=dict[Pair, Sketch])
    """By ratio pair: of each sequence the mean log-ratio of its model tokens, in one row; where they were asked for."""

    def state_dict(self) -> dict[str, Any]:
        """The same in JSON values."""
        return {
            "observed": packed(self.observed), "names": self.names.state_dict(), "rejected": self.rejected,
            "grouped": self.grouped,
            "means": {pair: [*pack_cells(means.cells), means.nonfinite.tolist()] for pair, means in self.means.items()},
        }  # fmt: skip

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Folded":
        """What `state_dict` was taken of."""
        means: dict[Pair, Sketch] = {
            pair: Sketch(unpack_cells(cells, 1), np.array(nonfinite))
            for pair, (*cells, nonfinite) in state["means"].items()
        }
        names = Names.of_state(state["names"])
        return cls(unpacked(state["observed"]), names, state["rejected"], state["grouped"], means)


def fold(tensors: Mapping[str, Any], clip: tuple[float, float] = (0.2, 0.2), *, means: bool = False) -> Folded:
    """What the tokens of a step, or of a batch of one, come to; by the code that a live run goes through.

    Args:
        tensors: arguments of `Monitor.observe`, see `Tensors` for shapes, units and dtypes.
        clip: how far below and above 1 the trainer clips the ratio.
        means: whether to keep the mean of each sequence as well.
    """
    health = Health()
    health.strict = False
    intake = Intake(health, None, clip)
    grouped = tensors.get("prompt") is not None
    try:
        intake.observe(tensors, None, None)  # type: ignore[arg-type]
    except BatchError as error:
        return Folded({}, Names(), str(error), grouped)
    intake.gather(0)
    return Folded(intake.taken(), intake.names, grouped=grouped, means=_means(tensors) if means else {})


def _means(tensors: Mapping[str, Any]) -> dict[Pair, Sketch]:
    batch = TokenBatch.validated(check=False, **tensors)
    n = batch.by_sequence(batch.model_mask)
    some, sketches = n > 0, dict[Pair, Sketch]()
    for pair in batch.pairs:
        with np.errstate(invalid="ignore"):  # NaN and inf are counted separately
            total = batch.by_sequence(np.where(batch.model_mask, batch.log_ratio(pair), 0.0))
        (sketches[pair],) = sketch(total[some] / n[some], [np.zeros(some.sum(), np.int32)], [1])
    return sketches


def merge(parts: Sequence[Folded]) -> Folded:
    """The step of which `parts` are the batches. Counts are exact in any order, sums are added in the order given."""
    names, observed, means = Names(), dict[Pair, Observation](), dict[Pair, Sketch]()
    for number, part in enumerate(parts):
        add_observations(observed, renamed(_turned(part, number), part.names, names))
        means |= {pair: means[pair] + more if pair in means else more for pair, more in part.means.items()}
    rejected = "; ".join(filter(None, (part.rejected for part in parts)))
    return Folded(observed, names, rejected, parts[0].grouped, means)


def judge(
    monitor: Monitor,
    states: Iterable[tuple[int, Folded]],
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    tensors_of: TensorsOf | None = None,
    where: str = "tokens",
) -> Summary:
    """Give `monitor` all steps in order, and close it.

    Args:
        states: each step of the log with what its tokens come to, in rising order.
        metrics: the run's own metrics by step.
        tensors_of: if given, the first step is checked as in a live run, and worst sequences are looked for.
        where: the log's name, for errors.
    """
    own = deque(sorted((metrics or {}).items()))
    with monitor:
        for number, (step, folded) in enumerate(states):
            while own and own[0][0] < step:  # steps with metrics and no tensors
                earlier, row = own.popleft()
                monitor.log(row, earlier)
            try:
                _observe(monitor, number, step, folded, tensors_of)
            except BatchError as error:
                raise SourceError(f"{where}: step {step}: {error}") from error
            monitor.log(own.popleft()[1] if own and own[0][0] == step else {}, step)
        for step, row in own:
            monitor.log(row, step)
        return monitor.close()


def _observe(monitor: Monitor, number: int, step: int, folded: Folded, tensors_of: TensorsOf | None) -> None:
    wanted = number == 0 or monitor.wants_tokens
    if tensors_of and wanted and (tensors := tensors_of(step)) is not None:
        monitor.observe(**tensors)
    elif folded.rejected:
        monitor.record("rejected_batches", BatchError("step", str(step), folded.rejected))
    else:
        monitor.observe_parts(_turned(folded, number), folded.names)


def _turned(folded: Folded, number: int) -> Mapping[Pair, Observation]:
    """The observations of the `number`th batch: a live run begins each batch with the next group of sequences."""
    if folded.grouped or number % GROUPS == 0:
        return folded.observed
    group = np.arange(len(ROWS) * GROUPS)
    to = group // GROUPS * GROUPS + (group + number) % GROUPS
    turned: dict[Pair, Observation] = {}
    for pair, observation in folded.observed.items():
        context = observation.sketches["context"].moved(to, len(group))
        turned[pair] = replace(observation, sketches={**observation.sketches, "context": context})
    return turned
