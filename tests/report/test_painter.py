"""A process that draws is as good as drawing here, and its end is no matter."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tracker_diag.records import Histogram
from tracker_diag.report import painter as module
from tracker_diag.report.figures import pixels, tail_figure
from tracker_diag.report.painter import Painter

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def process():
    """Begun anew: whatever draws for other tests is none of these."""
    found = module._process
    theirs = vars(found).copy()
    found.forget()
    yield found
    found._end()
    vars(found).update(theirs)


@pytest.fixture
def shown():
    rng = np.random.default_rng(0)
    edges = np.geomspace(1e-4, 30, 47)
    return [
        Histogram(f"diag/policy/{name}/hist", "policy", name, rng.integers(0, 99, 46), edges, rng.integers(0, 9, 46))
        for name in ("text_only", "post_tool")
    ]


def test_the_picture_is_the_same_pixel_by_pixel(shown, process):
    painter = Painter()
    here = pixels(tail_figure(shown, "policy pair, step 3"))
    for _ in range(2):
        np.testing.assert_array_equal(painter.tail(shown, "policy pair, step 3"), here)
    running = process._running
    assert running.poll() is None
    painter.close()
    assert running.returncode == 0
    np.testing.assert_array_equal(painter.tail(shown, "policy pair, step 3"), here)  # and so it is after the end
    assert process._running is None


def test_one_process_draws_for_all_until_the_last_is_closed(shown, process):
    one, other, gone = Painter(), Painter(), Painter()
    gone.tail(shown, "a")
    running = process._running
    del gone
    one.tail(shown, "a")
    one.close()
    here = other.tail(shown, "b")
    assert process._running is running
    other.close()
    assert running.returncode == 0
    next_run = Painter()
    np.testing.assert_array_equal(next_run.tail(shown, "b"), here)
    assert process._running not in (None, running)
    next_run.close()


def test_threads_that_draw_at_a_time_each_get_their_own(shown):
    painters = [Painter() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        titles = [str(number) for number in range(4)]
        drawn = list(pool.map(lambda painter, title: painter.tail(shown, title), painters, titles))
    for painter, title, picture in zip(painters, titles, drawn, strict=True):
        np.testing.assert_array_equal(picture, pixels(tail_figure(shown, title)))
        painter.close()


def test_one_that_is_killed_is_done_without_until_the_next_run(shown, process):
    painter, other = Painter(), Painter()
    here = painter.tail(shown, "a")
    os.kill(process._running.pid, signal.SIGKILL)
    for one in (painter, other):
        np.testing.assert_array_equal(one.tail(shown, "a"), here)
        assert process._running is None
        one.close()
    painter = Painter()
    np.testing.assert_array_equal(painter.tail(shown, "a"), here)
    assert process._running.poll() is None
    painter.close()


def test_one_that_cannot_be_started_is_done_without(shown, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert Painter().tail(shown, "a").shape == (700, 700, 3)


def test_it_ends_with_its_parent_and_while_a_fork_of_it_lives(tmp_path):
    code = """
import os, sys
import numpy as np
from tracker_diag.records import Histogram
from tracker_diag.report.painter import Painter, _process
one = np.ones(3, int)
painter = Painter()
painter.tail([Histogram("h", "policy", "text_only", one, np.array([0.1, 0.2, 0.3, 0.4]), one)], "a")
ends, here = os.pipe()
if not os.fork():
    os.close(here)
    os.close(1)
    os.read(ends, 1)  # until its parent has ended
    os._exit(0)
process = _process._running
if sys.argv[1] == "close":
    painter.close()
    print(process.returncode)
else:
    print(process.pid)
sys.stdout.flush()
os._exit(0)
"""
    asked = [sys.executable, "-c", code]
    closed = subprocess.run([*asked, "close"], stdout=subprocess.PIPE, text=True, check=True, start_new_session=True)
    assert closed.stdout == "0\n"


def test_a_fork_leaves_it_alone(shown, process):
    painter = Painter()
    here = painter.tail(shown, "a")
    child = os.fork()
    if not child:
        painter.close()
        os._exit(process._running is not None)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(painter.tail(shown, "a"), here)
    assert process._running.poll() is None
    painter.close()


def test_a_training_process_has_no_matplotlib(tmp_path, new_mlflow_store):
    """To import it takes the interpreter for a second, in which nothing trains."""
    code = """
import sys
import mlflow, numpy as np
import tracker_diag as td
mlflow.set_tracking_uri(sys.argv[1])
loaded = "matplotlib" in sys.modules
rng = np.random.default_rng(0)
with mlflow.start_run() as run:
    watched = td.wrap(mlflow)
    for step in range(5):
        new = rng.normal(-1, 0.1, (40, 16))
        tokens = np.ones(new.shape, bool)
        watched.diag.observe(logprobs=new, old_logprobs=new + 0.1 * rng.normal(size=new.shape), response_mask=tokens)
        mlflow.log_metrics({"loss": 1.0}, step=step)
    import time
    until = time.monotonic() + 60
    client = mlflow.MlflowClient()
    while not client.list_artifacts(run.info.run_id, "images") and time.monotonic() < until:
        time.sleep(0.1)
    print(loaded, bool(client.list_artifacts(run.info.run_id, "images")), "matplotlib" in sys.modules)
    watched.diag.close()
"""
    command = [sys.executable, "-W", "ignore", "-c", code, new_mlflow_store(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "False True False"
