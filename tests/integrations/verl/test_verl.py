import pytest
import tracker_diag_verl

from tracker_diag.errors import MissingExtra

PLUGINS = "[verl.plugins]\ntracker_diag = tracker_diag_verl.plugin\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_verls_own_modules(run_checks):
    """The plugin is found by verl's own discovery, through an entry point as the package has one."""
    run_checks("verl", plugins=PLUGINS)


def test_without_it_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"tracker-diag\[verl\]"):
        tracker_diag_verl.attach(None)
