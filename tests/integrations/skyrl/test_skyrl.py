import pytest
import tracker_diag_skyrl

from tracker_diag.errors import MissingExtra


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_skyrls_own_modules(run_checks):
    run_checks("skyrl", folders=["skyrl/skyrl-gym"])


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_policy_pair_of_remote_workers(run_checks):
    """A Ray job of two workers, in a process of its own: Ray changes the methods of whatever it makes remote."""
    run_checks("skyrl", folders=["skyrl/skyrl-gym"], files=["workers.py"])


def test_without_it_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"tracker-diag\[skyrl\]"):
        tracker_diag_skyrl.attach(None)
