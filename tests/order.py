"""Which tests are run, in what order, and by which worker. conftest.py hands these hooks to pytest."""

import re

import pytest

LONGEST = (
    "test_rllib",
    "test_demo.py",
    "test_live.py",
    "a_run_of_the_evidence",
    "test_openrlhf",
    "test_monitor.py",
    "test_catalog.py",
    "test_trl.py",
    "test_gone.py",
    "test_lessons.py",
    "test_conformance.py",
    "test_growth.py",
)
"""What takes longest begins first, or the other worker would wait for it in the end."""

ALONE = re.compile(
    r"/test_(conformance|examples|mlflow|openrlhf|simulated|skyrl|verl|wandb_server)\.py"
    r"|/test_demo\.py::test_findings_survive"
    r"|/test_faults\.py::test_flush"
    r"|/test_trl\.py::test_ppo_is_seen|/test_live\.py::test_both"
)
"""Long tests that share nothing with the rest of their file; any worker may have them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """To each worker whole files, as what a module's fixtures make is made once; and tests that are `ALONE`.

    By their names: xdist's groups by mark do nothing with this pytest.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return nodeid if ALONE.search(nodeid) else super()._split_scope(nodeid)

    return Scheduling(config, log)


LEFT_OUT = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(slow|nightly)", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Files that are left out as a whole are not even imported: some import a trainer for seconds."""
    expression = config.option.markexpr
    if expression.startswith("not ") and collection_path.suffix == ".py":
        mark = LEFT_OUT.search(collection_path.read_text(encoding="utf-8"))
        return (mark is not None and f"not {mark[1]}" in expression) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of a test with the mark `by_day` only the parameters that it names are in `make test`; the others are nightly."""
    absent = {}
    for item in items:
        if mark := item.get_closest_marker("by_day"):
            absent.setdefault(item.nodeid.partition("[")[0], {*mark.args}).discard(item.callspec.id)
            if item.callspec.id not in mark.args:
                item.add_marker("nightly")
    wrong = {test: ids for test, ids in absent.items() if ids}
    if wrong and not any("::" in argument for argument in config.args):  # of a single test not all are collected
        raise pytest.UsageError(f"by_day: expected ids of parameters, given {wrong}")
    items.sort(key=_turn)  # otherwise in the order in which they were shuffled


def _turn(item):
    first = next((place for place, name in enumerate(LONGEST) if name in item.nodeid), len(LONGEST))
    return item.get_closest_marker("slow") is None, first
