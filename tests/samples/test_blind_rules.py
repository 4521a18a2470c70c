"""Rules that were blind to the logs of LLM trainers see through `samples`: each fires on its fault, and not without.

Those of them that a real training can be given the fault of are in test_training.py.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.nightly

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("made.py"))))
STEPS = 300
RULES = {rule.id: rule for rule in td.catalog()}


def play(fault, *, ill):
    """A run of 300 steps, watched as a user does, to the step at which the fault is found; what it adds up to."""
    rng, seen = np.random.default_rng(5), CapturingTracker()
    settings = {"catalog": False, "essential_tools": ["search"], "config": {"async_training": True}}
    run = td.wrap(lambda metrics, step: None, rules=[RULES[fault.rule]], also=[seen], **settings)
    for step in range(STEPS):
        at = min(1.0, max(0.0, (step - 100) / 60)) if ill else 0.0
        columns = made.healthy(rng)
        fault.plant(columns, at, rng)
        run.diag.samples(**columns)
        run({"loss": 0.1}, step)
        if (fault.rule, fault.slice) in names_of(finding for _, finding in seen.findings):
            break
    summary = run.diag.close()
    assert not run.diag.failures
    return summary


def names_of(findings):
    return {(item.rule.id, item.slice) for item in findings if item.fired is not None}


@pytest.mark.by_day("REW001 all", "ENV001 tool:search", "FRE003 all")
@pytest.mark.parametrize("fault", made.FAULTS, ids=lambda fault: f"{fault.rule} {fault.slice}")
def test_a_planted_fault_is_found_and_its_healthy_twin_is_not(fault):
    assert (fault.rule, fault.slice) in names_of(play(fault, ill=True).findings)
    twin = play(fault, ill=False)
    assert fault.rule not in {item.rule.id for item in twin.findings}
    assert fault.rule not in twin.blind
