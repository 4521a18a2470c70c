"""A value far outside the range of all before it; the same after a restart."""

import json

import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.series import Place, SeriesTable
from tracker_diag.rules.signals.out_of_range import FEWEST, OutOfRange

LEAVES = OutOfRange(series=SeriesRef(metric="reward"), ranges=30, change=3)


def played(values, resumed=None):
    """What the signal says at each of `values`; it is restored from its state before value number `resumed`."""
    at = Place(None, "all", GrowthSettings(), SeriesTable(GrowthSettings()))
    signal, held = LEAVES.start(at), []
    for step, value in enumerate(values):
        if step == resumed:
            kept, signal = json.loads(json.dumps(signal.state_dict())), LEAVES.start(at)
            signal.load_state_dict(kept)
        observed = Observed(step, {"reward": Scalar("reward", value)})
        at.table.update(observed, again=False)
        signal.update(observed)
        held.append(signal.holds)
    return held, signal.reading()


@pytest.mark.parametrize("resumed", [None, 25])
@pytest.mark.parametrize("outlier", [40.0, -40.0])
def test_a_value_counts_once_it_is_far_outside_on_either_side(outlier, resumed):
    held, reading = played([0.0, 1.0] * 15 + [outlier, outlier], resumed)
    assert held == [None] * FEWEST + [False] * (30 - FEWEST) + [True, False]
    assert (reading.value, reading.baseline) == (outlier, outlier)


@pytest.mark.parametrize("values", [
    [0.0, 1.0] * 15 + [30.9],  # within 30 ranges
    [0.0, 0.01] * 15 + [2.9],  # within three units
    [0.5] * 30 + [100.0],  # no range
    [2.0**n for n in range(40)],
])  # fmt: skip
def test_learning_does_not_count(values):
    assert True not in played(values)[0]
