"""Growth and spikes of a series, value by value."""

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics.series import StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.series import Place, SeriesTable
from tracker_diag.rules.signals.growth import Growth
from tracker_diag.rules.signals.spike import Spike

TAIL = SeriesRef(stat="p95_step")
KEY = StatKey("policy", "post_tool", "p95_step")


def course(signal, values, error=None):
    """Whether `signal` holds at each of `values`."""
    at = Place("policy", "post_tool", GrowthSettings(), SeriesTable(GrowthSettings()))
    started, holds = signal.start(at), []
    for step, value in enumerate(values):
        observed = Observed(step, {KEY: Scalar(KEY, value, 60, error)})
        at.table.update(observed, again=False)
        started.update(observed)
        holds.append(started.holds)
    return holds


def test_what_a_few_odd_sequences_may_make_is_no_spike():
    spike, values = Spike(series=TAIL, factor=2, sure=True), [0.1] * 40 + [0.4]
    assert course(spike, values, error=0.4)[-1] is True  # ln 4 is 1.39
    assert course(spike, values, error=0.5)[-1] is False
    assert course(spike, values)[-1] is None  # a log does not have the error
    assert course(Spike(series=TAIL, factor=2), values)[-1] is True


def test_a_series_that_is_back_between_bursts_has_not_grown_there():
    """Three bursts in seven steps raise the means of two blocks, and these a sum that continues for some more."""
    values = [0.1] * 65 + [0.4, 0.1, 0.1, 0.4, 0.1, 0.1, 0.4] + [0.1] * 8
    assert sum(map(bool, course(Growth(series=TAIL), values))) > 3
    assert [step for step, holds in enumerate(course(Growth(series=TAIL, each=1.2), values)) if holds] == [71]


def test_a_series_that_falls_and_is_back_has_not_fallen_there():
    values = [0.4] * 65 + [0.1] * 4 + [0.4]
    falls = Growth(series=TAIL, direction="falling", each=1.2)
    assert course(falls, values) == [None] * 64 + [False] * 6
    assert course(falls, [*values[:-1], 0.1])[-1] is True


def test_a_spike_below_its_level_is_none():
    values = [0.1] * 40 + [0.9]
    assert course(Spike(series=TAIL, factor=2, above=0.8), values)[-1] is True
    assert course(Spike(series=TAIL, factor=2, above=1), values)[-1] is False


def test_a_spike_beyond_all_that_was_ever_is_as_far_from_the_furthest_value():
    """A schedule that restarts has a peak as high as its last one, or higher by a hair. That is no jump."""
    values = [0.3, 0.2] + [0.1] * 78 + [0.5, 0.1, 0.7, 0.1, 0.65] + [0.1] * 10 + [1.3, 1.5]
    usual, ever = (course(Spike(series=TAIL, factor=2, ever=it), values) for it in (False, True))
    assert usual[80:85] == [True, False, True, False, True]
    assert ever[80:85] == [False, False, True, False, True]  # the last is part of what continues
    assert usual[-2:] == [True, True]
    assert ever[-2:] == [False, True]


def test_the_way_up_to_a_spike_does_not_hide_it():
    values = [0.1] * 40 + [0.15, 0.3, 0.6, 1.2, 2.4]
    assert course(Spike(series=TAIL, factor=20, ever=True), values)[-2:] == [False, True]


def test_an_excursion_below_all_that_was_lasts_until_its_values_are_usual():
    values = [-0.3] + [0.1] * 79 + [-0.9] * 40
    fell = course(Spike(series=TAIL, direction="falling", change=0.5, ever=True), values)
    assert fell[80:105] == [True] * 25
    assert not any(fell[106:])
