import pytest

pytestmark = pytest.mark.nightly


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_areals_own_modules(run_checks):
    run_checks("areal", stand_ins=["swanlab", "numba", "openai", "pybase64", "areal.experimental.openai"])
