"""A verdict never contradicts its own numbers: invariants over every planted run and its prefixes."""

import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from contradictions import of_run  # its own folder
from dataset import read_runs

pytestmark = pytest.mark.slow


def reported(runs):
    """Everything that contradicts itself in the verdicts on `runs`."""
    rows = ((run.name, {int(row.pop("step")): row for row in run.rows()}) for run in runs)
    return [what for name, values in rows for what in of_run(name, values)]


def test_no_verdict_contradicts_itself_on_some_planted_runs():
    assert reported(itertools.islice(read_runs(), 0, None, 60)) == []


@pytest.mark.nightly
def test_no_verdict_contradicts_itself_on_any_planted_run():
    assert reported(read_runs()) == []
