import pytest

pytestmark = pytest.mark.nightly

STAND_INS = ["flash_attn", "deepspeed", "vllm"]


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_openrlhfs_own_modules(run_checks):
    run_checks("openrlhf", stand_ins=STAND_INS)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_the_policy_pair_of_remote_actors(run_checks):
    run_checks("openrlhf", stand_ins=STAND_INS, files=["workers.py"])


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_the_own_modules_of_an_earlier_release(run_checks):
    run_checks("openrlhf", stand_ins=STAND_INS, files=["checks.py", "workers.py"], release="openrlhf-0.10")
