import pytest
import tracker_diag_areal

from tracker_diag.errors import MissingExtra


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_areals_own_modules(run_checks):
    run_checks("areal", stand_ins=["swanlab", "numba", "openai", "pybase64", "areal.experimental.openai"])


def test_without_it_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"tracker-diag\[areal\]"):
        tracker_diag_areal.attach(None)
