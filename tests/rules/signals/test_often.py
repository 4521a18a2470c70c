"""What another signal has said of late, counted; and what is shown of it."""

import json

import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.series import Place, SeriesTable
from tracker_diag.rules.signals.often import Often
from tracker_diag.rules.signals.spike import Spike

NORM = SeriesRef(metric="grad_norm")
JUMPS = Often(signal=Spike(series=NORM, factor=10, above=1), count=3, steps=200)


@pytest.mark.parametrize("resumed", [False, True])
def test_what_is_shown_is_when_it_held_last_and_no_value_since(resumed):
    at = Place(None, "all", GrowthSettings(), SeriesTable(GrowthSettings()))
    often = JUMPS.start(at)
    for step, value in enumerate([1.0] * 40 + [90.0, 1.0, 95.0, 1.0, 97.0, 0.8, 0.8]):
        observed = Observed(step, {"grad_norm": Scalar("grad_norm", value)})
        at.table.update(observed, again=False)
        often.update(observed)
        shown = often.reading()
        if step == 43:
            assert (often.holds, shown.value) == (False, 1.0)
        if resumed and step == 45:
            kept, often = json.loads(json.dumps(often.state_dict())), JUMPS.start(at)
            often.load_state_dict(kept)
    assert often.holds
    assert (shown.value, shown.baseline, shown.onset) == (97.0, 1.0, 40)
    often.rebaseline()
    assert often.reading().value is None
