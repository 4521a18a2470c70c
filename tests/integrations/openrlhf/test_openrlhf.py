import pytest
import tracker_diag_openrlhf

from tracker_diag.errors import MissingExtra


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [None, pytest.param("openrlhf-0.10", marks=pytest.mark.nightly)])
def test_in_openrlhfs_own_modules(run_checks, release):
    stand_ins, files = ["flash_attn", "deepspeed", "vllm"], ["checks.py", "workers.py"]
    run_checks("openrlhf", stand_ins=stand_ins, files=files, release=release)


def test_without_it_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"tracker-diag\[openrlhf\]"):
        tracker_diag_openrlhf.attach(None)
