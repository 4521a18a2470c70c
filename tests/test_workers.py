"""`--workers`: each test runs once in a fork, and whatever ends a worker is a failure that names the test."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.workers import pytest_addoption, pytest_runtestloop
"""
TESTS = """
import os

def test_passes(tmp_path):
    print(os.getpid())

def test_fails():
    print("sh" + "own")
    assert 1 == 2

def test_ends_its_worker():
    os._exit(3)

def test_after_it():
    pass
"""


def test_each_test_is_reported_and_a_worker_that_dies_is_a_failure(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hard.py").write_text(TESTS)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_it():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--workers", "2", "-p", "no:randomly", "-v", "-rN", "--rootdir", "."]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "3 failed, 4 passed" in out  # and no summary (-rN): with CI in the environment it repeats the texts
    assert out.count("shown") == 1
    died = "not run to its end: its worker ended with 3, in test_hard.py::test_ends_its_worker"
    assert out.count(died) == 2, "the test that ended it, and the one that it had taken"
    assert all(f"test_{name}.py::test_it PASSED" in out for name in "abc")
