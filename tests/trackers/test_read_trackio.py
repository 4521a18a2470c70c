"""The store is one that Trackio wrote; Trackio itself needs another pillow than the other libraries here."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.trackio.read import read_trackio


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    with closing(sqlite3.connect(tmp_path / "agents.db")) as connection:
        connection.executescript((Path(__file__).parent / "trackio_0_43.sql").read_text())
    return tmp_path


def run_of(name):
    return read_trackio(name, f"trackio:{name}")


def test_a_run_of_trackio(store):
    run = run_of("agents/run-a")
    rows = {
        0: {"reward": 0.0, "kl": 0.1, "nested/a": 1.0},
        1: {"reward": 0.5, "kl": math.nan, "nested/a": 1.0},
        2: {"reward": 1.0, "kl": math.inf, "nested/a": 1.0, "eval/score": 0.25},
        3: {"reward": 1.5, "kl": -math.inf, "nested/a": 1.0},
    }
    assert repr(run.rows) == repr(rows)
    assert run.config == {"lr": 1e-4, "algo.name": "grpo"}
    assert run.seconds[0] == 0.0
    assert run.notes == ("values that are no numbers, left out: 4, first 'note' at step 0",)
    assert run_of("a.gents/run-b").rows == {0: {"reward": 1.0}}, "the file's name has letters and digits only"


def test_of_runs_with_one_name_the_last_is_read(store):
    with closing(sqlite3.connect(store / "agents.db")) as connection:
        connection.execute("UPDATE metrics SET run_name = 'run-a'")
        connection.commit()
    run = run_of("agents/run-a")
    assert run.rows == {0: {"reward": 1.0}}
    assert run.notes == ("2 runs have this name; the last was read, the others by their ids",)
    with closing(sqlite3.connect(store / "agents.db")) as connection:
        (first,) = connection.execute("SELECT run_id FROM metrics WHERE id = 1").fetchone()
    assert len(run_of(f"agents/{first}").rows) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("agents", "expected trackio:<project>/<run>"),
        ("agents/none", "no run 'none' in project 'agents'; it has run-a, run-b"),
        ("none/run-a", "no project 'none' in Trackio's folder"),
        ("broken/run-a", "no store of Trackio in .*: file is not a database"),
        ("empty/run-a", "no store of Trackio in .*: no such table: metrics"),
    ],
)
def test_what_cannot_be_read(store, name, message):
    (store / "broken.db").write_text("not a database, but a text of some length " * 20)
    (store / "empty.db").write_bytes(b"")
    with pytest.raises(SourceError, match=f"^trackio:{name}: {message}"):
        run_of(name)
