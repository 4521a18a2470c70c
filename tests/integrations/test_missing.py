"""Where a framework is not installed, attaching names the extra that brings it."""

import sys
from importlib import import_module

import pytest

from tracker_diag.errors import MissingExtra

EXTRAS = {
    "areal": r"tracker-diag\[areal\]", "openrlhf": r"tracker-diag\[openrlhf\]", "skyrl": r"tracker-diag\[skyrl\]",
    "verl": r"tracker-diag\[verl\]", "nemo_rl": "nemo-rl", "prime_rl": "prime-rl",
    "roll": "roll", "slime": "slime",
}  # fmt: skip
"""By framework; of the last four no index has a package, so the error names the framework alone."""


@pytest.mark.parametrize("name", EXTRAS)
def test_without_the_framework_the_extra_is_named(name):
    assert name not in sys.modules
    given = () if name == "prime_rl" else (None,)
    with pytest.raises(MissingExtra, match=EXTRAS[name]):
        import_module(f"tracker_diag_{name}").attach(*given)
