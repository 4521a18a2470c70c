import pytest

pytestmark = pytest.mark.nightly

PLUGINS = "[verl.plugins]\ntracker_diag = tracker_diag_verl.plugin\n"


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_verls_own_modules(run_checks):
    """The plugin is found by verl's own discovery, through an entry point as the package has one."""
    run_checks("verl", plugins=PLUGINS, files=["checks.py", "agent_loop.py", "rllm_rows.py"])


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_policy_pair_of_remote_workers(run_checks):
    """A Ray job of two actors with verl's own loss."""
    run_checks("verl", plugins=PLUGINS, files=["workers.py"])


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["0.7", "0.8"])
def test_in_the_own_modules_of_releases_without_plugins(run_checks, version):
    setting = {"VERL_USE_EXTERNAL_MODULES": "tracker_diag_verl.plugin", "VERL": version}
    run_checks("verl", files=["earlier.py"], release=f"verl-{version}", **setting)
