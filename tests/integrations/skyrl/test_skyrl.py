import pytest


@pytest.mark.nightly
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_skyrls_own_modules(run_checks, nightly):
    run_checks("skyrl", folders=["skyrl/skyrl-gym"], nightly=nightly)


@pytest.mark.nightly
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_policy_pair_of_remote_workers(run_checks):
    """A Ray job of two workers, in a process of its own: Ray changes the methods of whatever it makes remote."""
    run_checks("skyrl", folders=["skyrl/skyrl-gym"], files=["workers.py"])
