"""A tracker of another distribution is heard, written, read, watched and listed as a built-in one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the toy's distribution is installed in, from its own project and without a network."""
    folder = tmp_path_factory.mktemp("toy")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", folder, TOY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [*folder.glob("tracker_diag_toy-1.0.dist-info/entry_points.txt")]
    return folder


@pytest.fixture
def runs(installed, tmp_path):
    """Runs a program, or a command of ours, in a process that has the toy's distribution."""
    environment = os.environ | {"PYTHONPATH": str(installed), "TRACKER_DIAG_DIR": str(tmp_path / "journals")}

    def run(code=None, *arguments, code_expected=0):
        command = ["-c", code] if code else ["-c", "from tracker_diag.cli.app import app; app()", *arguments]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command], capture_output=True, text=True, check=False,
            env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code_expected, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


TRAIN = """
import math, toylog, tracker_diag as td
run = toylog.start("run")
assert td.wrap(WRAPPED) is WRAPPED
diag = WRAPPED.diag
for step in range(30):
    run.track({"reward": 0.5, "loss": math.nan if step == 20 else 0.1}, step)
run.stop()
assert diag.summary().steps == 30
assert diag.summary().first_break.rule.id == "NUM004"
assert diag.failures == [], diag.failures
read = td.read_run("toy:run")
assert (len(read.rows), read.rows[3]["reward"]) == (30, 0.5)
"""


@pytest.mark.by_day("run")
@pytest.mark.parametrize("wrapped", ["run", "toylog"])
def test_it_is_heard_written_and_read(wrapped, runs, tmp_path):
    runs(TRAIN.replace("WRAPPED", wrapped))
    folder = tmp_path / "run"
    rows = lines(folder / "rows.jsonl")
    own = [row for row in rows if "reward" in row]
    assert [row["step"] for row in own] == [*range(30)]
    assert all(row.keys() == {"step", "reward", "loss"} for row in own)
    assert any("diag/rule/NUM004" in row for row in rows)
    assert any("NaN or infinity" in alert["title"] for alert in lines(folder / "alerts.jsonl"))
    assert {file["name"] for file in lines(folder / "files.jsonl")} >= {"context.json"}
    assert lines(folder / "end.jsonl") == [{"steps": 30}]
    assert not [*(tmp_path / "journals").glob("toy-*")]  # all was delivered
    output = json.loads(runs(None, "diagnose", "toy:run", "--json"))
    assert output["first_break"]["rule"] == "NUM004"


@pytest.mark.nightly
def test_watch_finds_a_run_that_begins(runs, tmp_path):
    code = """
import tracker_diag as td
watcher = td.watch()
import toylog
run = toylog.start("run")
for step in range(3):
    run.track({"reward": 0.5}, step)
assert watcher.diag.step == 2
run.stop()
assert watcher.diag is None
from tracker_diag.trackers.listing import list_runs
(listed,) = list_runs("toy:run")
assert (listed.source, listed.mark) == ("toy:run", "3 2 None")
watcher.close()
"""
    runs(code)


@pytest.mark.nightly
def test_what_a_killed_process_left_is_flushed_to_it(runs, tmp_path):
    runs("""
import os, toylog, tracker_diag as td
from tracker_diag_toy import ToyTracker
def down(self, step, entries, at):
    raise ConnectionError("down")
ToyTracker.write = down
run = td.wrap(toylog.start("run"))
run.track({"loss": float("nan")}, 0)
os._exit(0)
""")
    runs(None, "flush")
    assert any("NaN" in alert["title"] for alert in lines(tmp_path / "run" / "alerts.jsonl"))


@pytest.mark.nightly
def test_the_contract_is_kept(runs):
    runs("""
import toylog
from tracker_diag.testing import check_tracker
from tracker_diag_toy import ToyTracker
from tracker_diag.trackers.open import read_run
def scalars(name):
    return {step: row[name] for step, row in read_run("toy:run").rows.items() if name in row}
wrong = check_tracker(ToyTracker(toylog.start("run")), scalars)
assert wrong == [], wrong
""")


METHODS = ["find", "watch", "listen", "write", "flush", "close", "address", "config", "page", "source", "key"]


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_one_that_raises_in_a_method_is_counted_and_named_and_the_others_continue(method, runs):
    runs(f"""
import toylog, tracker_diag as td
from tracker_diag.testing import CapturingTracker
from tracker_diag_toy import ToyTracker
def fails(*arguments, **named):
    raise RuntimeError("a fault in toy's {method}")
kind = {{"find": classmethod, "watch": classmethod}}.get("{method}", property if "{method}" in
    ("address", "config", "page", "source", "key") else lambda call: call)
setattr(ToyTracker, "{method}", kind(fails))
seen = CapturingTracker()
logged = []
target = (lambda metrics, step: logged.append(step)) if "{method}" in ("find", "watch") else toylog.start("run")
watcher = td.watch() if "{method}" == "watch" else None
wrapped = td.wrap(target, also=[seen])
log = wrapped if "{method}" in ("find", "watch") else wrapped.track
for step in range(3):
    log({{"loss": 0.5}}, step)
wrapped.diag.log({{"loss": 0.5}}, 3)
wrapped.diag.close()
assert list(seen.own)[-1] == 3 and seen.summary is not None
failures = " ".join(wrapped.diag.failures)
if "{method}" != "watch":  # a log line says it: there is no run to count it for
    assert wrapped.diag.health["tracker_errors"] >= 1, wrapped.diag.health
    assert "a fault in toy's {method}" in failures, failures
""")


@pytest.mark.nightly
def test_one_that_cannot_be_imported_or_read_says_so_and_the_others_continue(runs):
    output = runs("""
import sys, tracker_diag as td
sys.modules["tracker_diag_toy"] = None
wrapped = td.wrap(lambda metrics, step: None)
wrapped({"loss": 0.5}, 0)
assert wrapped.diag.health["tracker_errors"] == 1
assert "tracker toy (tracker_diag_toy:ToyTracker): cannot be loaded" in wrapped.diag.failures[0]
try:
    td.read_run("toy:run")
except td.DiagError as error:
    assert "toy:run: tracker toy" in str(error) and "cannot be loaded" in str(error), error
""")
    assert "tracker toy (tracker_diag_toy:ToyTracker): cannot be loaded" in output
    runs("""
import tracker_diag as td
from tracker_diag_toy import ToyTracker
def fails(*arguments, **named):
    raise RuntimeError("a fault")
ToyTracker.read = classmethod(fails)
try:
    td.read_run("toy:run")
except td.DiagError as error:
    assert str(error) == "toy:run: toy raised RuntimeError: a fault", error
""")
