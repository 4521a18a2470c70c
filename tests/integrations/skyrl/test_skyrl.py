import pytest
from tracker_diag_skyrl import from_rollout


@pytest.mark.parametrize(
    ("loss", "anchor", "on_rollout"),
    [("cispo", "rollout", True), ("cispo", "old", False), ("dppo", "old", True), ("regular", "rollout", False)],
)
def test_the_settings_say_on_whose_log_probabilities_the_loss_is(loss, anchor, on_rollout):
    prefix = "trainer.algorithm."
    config = {f"{prefix}policy_loss_type": loss, f"{prefix}cispo.cispo_anchor": anchor}
    assert from_rollout(config) is on_rollout


@pytest.mark.nightly
@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [None, "skyrl-0.4"])
def test_in_skyrls_own_modules(run_checks, release):
    run_checks("skyrl", folders=[f"{release or 'skyrl'}/skyrl-gym"], release=release)


@pytest.mark.nightly
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_policy_pair_of_remote_workers(run_checks):
    """A Ray job of two workers, in a process of its own: Ray changes the methods of whatever it makes remote."""
    run_checks("skyrl", folders=["skyrl/skyrl-gym"], files=["workers.py"])
