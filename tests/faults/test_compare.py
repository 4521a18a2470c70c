"""How often healthy runs of the benchmark part though only their seed differs, and how often faulty ones do not.

On the tuned half alone, by which the margins were set.
"""

import runpy
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from tracker_diag.runs.compare import compare
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun

pytestmark = pytest.mark.nightly

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def groups():
    """The runs of the tuned half by trainer and task: those without a fault that did not collapse, and the faulty."""
    sys.path.insert(0, str(HERE))
    try:
        result = runpy.run_path(str(HERE / "dataset.py"))["read_runs"]()
        by_task = defaultdict(lambda: ([], []))
        for run in result:
            if run.half == "tuned" and not (run.collapsed and not run.fault):
                by_task[run.trainer, run.task][bool(run.fault)].append(run)
        return dict(by_task)
    finally:
        sys.path.remove(str(HERE))


def judged(run):
    """Its series; no rule is asked."""
    rows = {row.pop("step"): row for row in run.rows()}
    return diagnose(FinishedRun(run.name, rows, {}, {}, ()), catalog=False)


def parts(reference, other):
    return any(item.parted for item in compare(reference, other).others)


def rates(groups, most_healthy, most_faulty, each):
    """Pairs that part, and all of them: of healthy runs, then of a healthy and a faulty one."""
    false, healthy, result, faulty = 0, 0, 0, 0
    for calm, ill in groups.values():
        known = [judged(run) for run in calm[:most_healthy]]
        outcomes = [parts(*pair) for pair in combinations(known, 2)]
        false, healthy = false + sum(outcomes), healthy + len(outcomes)
        for run in ill[:most_faulty]:
            other = judged(run)
            outcomes = [parts(item, other) for item in known[:each]]
            result, faulty = result + sum(outcomes), faulty + len(outcomes)
    return false, healthy, result, faulty


def test_of_all_pairs_at_most_five_per_cent_part_and_of_faulty_ones_four_in_five(groups):
    false, healthy, result, faulty = rates(groups, 99, 99, 4)
    assert (healthy, faulty) == (240, 320)
    assert false <= 0.05 * healthy
    assert result >= 0.8 * faulty
