"""The whole catalogue on simulated runs: quiet on healthy ones, and the right name on those that fail.

A sample that fits into the tests; the seeds are fixed, so it either holds or does not.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

simulated = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("simulated.py"))))

pytestmark = pytest.mark.slow


def loud(findings):
    return {finding.rule.id for finding in findings if finding.rule.severity != "info"}


@pytest.mark.parametrize("algorithm", simulated.ALGORITHMS)
def test_healthy_runs_raise_nothing(algorithm):
    for seed in range(6):
        run = simulated.healthy(algorithm, np.random.default_rng([seed, *algorithm.encode()]))
        fired, _ = simulated.diagnose(run, algorithm)
        assert loud(fired) == set(), f"seed {seed}"


@pytest.mark.parametrize("name", simulated.FAILURES)
def test_a_failure_is_called_by_its_name(name):
    _, _, right = simulated.FAILURES[name]
    for seed in range(3):
        fired, _ = simulated.diagnose(*simulated.failed(name, seed))
        assert loud(fired) & right, f"seed {seed}: {sorted(loud(fired))}"
