"""One rank's observation as two flat arrays of fixed size, for collectives, and the observation of all from theirs."""

from collections.abc import Sequence

import numpy as np

from tracker_diag.metrics.series import Dimension
from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import BINS, Sketch
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.observation import FLOAT_SHAPES, Observation, rows_of


def sums_of(observed: Observation | None) -> Float64Array:
    """Whether there is an observation, how many values it has, and its sums, in fixed places."""
    if observed is None:
        return np.zeros(2 + sum(a * b for a, b in FLOAT_SHAPES))
    n = max(float(one.counts.sum() + one.nonfinite.sum()) for one in observed.sketches.values())
    return np.concatenate([[1.0, n], *(part.reshape(-1) for part in observed.floats())])


def counts_of(observed: Observation | None, dimensions: Sequence[Dimension]) -> IntArray:
    """All counts in one array: of `dimensions` in their order, then of the sequences."""
    parts: list[IntArray] = []
    for dimension in dimensions:
        one = observed.sketches.get(dimension) if observed else None
        one = one or Sketch.empty(rows_of(dimension))
        parts += [one.counts.reshape(-1), one.nonfinite]
    of_sequences = observed.sequence_sketch if observed else Sketch.empty(3)
    return np.concatenate([*parts, of_sequences.counts.reshape(-1), of_sequences.nonfinite])


def observation_of(integers: IntArray, sums: Float64Array, dimensions: Sequence[Dimension]) -> Observation:
    """The merge of all ranks: counts summed already, sums (world, …) of `sums_of`."""
    rows = [*(rows_of(dimension) for dimension in dimensions), 3]
    sketches: list[Sketch] = []
    start = 0
    for n in rows:
        middle, end = start + n * 2 * BINS, start + n * 2 * BINS + n
        sketches.append(Sketch(integers[start:middle].reshape(n, 2, BINS), integers[middle:end]))
        start = end
    tokens, sequences = WeightSums.none((3,)), WeightSums.none((3,))
    applied, lengths = (np.zeros(shape) for shape in FLOAT_SHAPES[2:])
    cuts = np.cumsum([a * b for a, b in FLOAT_SHAPES])[:-1]
    for one in sums[sums[:, 0] > 0]:
        parts = [part.reshape(shape) for part, shape in zip(np.split(one[2:], cuts), FLOAT_SHAPES, strict=True)]
        tokens, sequences = tokens + WeightSums.of_array(parts[0]), sequences + WeightSums.of_array(parts[1])
        applied, lengths = applied + parts[2], lengths + parts[3]
    by_dimension = dict(zip(dimensions, sketches[:-1], strict=True))
    return Observation(by_dimension, tokens, sequences, sketches[-1], applied, lengths)
