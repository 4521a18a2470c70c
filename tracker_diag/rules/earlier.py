"""Earlier runs of the same setting that went well: what the tails of a run are held against from its first step on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from tracker_diag.errors import DiagError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import Pair, StatKey
from tracker_diag.stats.arrays import Float64Array

JUDGED: tuple[Pair, ...] = ("policy", "mismatch")
"""The reference pair is 0 at the first step of every run, and rises with what is learnt: no level of it is normal."""
INSTEAD = {"p95_step": "p95"}
"""What is read of a run that has not logged a statistic: the same over a window."""
FEWEST = 20
"""Steps of an earlier run, at least: four blocks, of which its level and its noise are taken."""


class EarlierRun(Protocol):
    """A finished run, as `read_run` gives it."""

    @property
    def source(self) -> str: ...
    @property
    def rows(self) -> Mapping[int, Mapping[str, float]]: ...


class Earlier:
    """The statistics of slices of earlier runs, step by step.

    Raises:
        DiagError: a run is given twice, or has no statistics of pairs that can be held against it.
    """

    def __init__(self, runs: Sequence[EarlierRun] = ()) -> None:
        self.sources = tuple(run.source for run in runs)
        if twice := {source for source in self.sources if self.sources.count(source) > 1}:
            raise DiagError(f"baseline: {min(twice)} given twice, expected different runs; give each once")
        self._runs = [_columns(run) for run in runs]

    @property
    def pairs(self) -> set[Pair]:
        """Those that all or some of the runs have statistics of."""
        return {key.pair for run in self._runs for key in run}

    def values(self, keys: Iterable[str]) -> list[list[float]]:
        """For each run that has it, the series of a key, or the ratio of two, step by step."""
        series = []
        for run in self._runs:
            columns = [_column(run, key) for key in keys]
            if all(column is not None for column in columns):
                over, *under = (column for column in columns if column is not None)
                with np.errstate(divide="ignore", invalid="ignore"):  # on-policy steps are 0 on both slices
                    values = over / under[0] if under else over
                series.append(values[np.isfinite(values) & (values > 0)].tolist())
        return [values for values in series if len(values) >= FEWEST]


def _column(run: Mapping[StatKey, Float64Array], key: str) -> Float64Array | None:
    if not isinstance(key, StatKey):
        return None
    instead = INSTEAD.get(key.stat)
    return run.get(key, run.get(StatKey(key.pair, key.slice, instead)) if instead else None)


def _columns(run: EarlierRun) -> dict[StatKey, Float64Array]:
    """The values of each statistic at each step, NaN where there is none."""
    parsed = {name: StatKey.parse(name.removeprefix(PREFIX)) for row in run.rows.values() for name in row}
    known = {name: key for name, key in parsed.items() if key is not None and name.startswith(PREFIX)}
    judged = {name: key for name, key in known.items() if key.pair in JUDGED}
    if not judged:
        has = f"has such series of {min(known.values()).pair} alone, which is 0 at first in every run" if known else ""
        raise DiagError(
            f"baseline: {run.source} {has or 'has no series diag/<pair>/<slice>/p95'}; expected a run whose tensors "
            "tracker_diag has observed, with old_logprobs or rollout_logprobs; give one, or leave baseline out"
        )
    columns = {
        key: np.array([row.get(name, np.nan) for row in run.rows.values()], np.float64) for name, key in judged.items()
    }
    most = max(int(np.isfinite(column).sum()) for column in columns.values())
    if most < FEWEST:
        raise DiagError(f"baseline: {run.source} has {most} steps with diagnostics, expected {FEWEST} or more")
    return columns
