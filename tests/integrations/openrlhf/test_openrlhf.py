import pytest
import tracker_diag_openrlhf

from tracker_diag.errors import MissingExtra


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_in_openrlhfs_own_modules(run_checks):
    run_checks("openrlhf", stand_ins=["flash_attn", "deepspeed", "vllm"], files=["checks.py", "workers.py"])


def test_without_it_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"tracker-diag\[openrlhf\]"):
        tracker_diag_openrlhf.attach(None)
