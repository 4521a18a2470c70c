"""Ray pins a Gymnasium of its own: what trains with RLlib runs in a process of its own."""

import pytest

pytestmark = pytest.mark.nightly


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_real_runs_of_rllib(run_checks):
    run_checks("rllib")
