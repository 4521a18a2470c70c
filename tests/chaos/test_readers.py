"""Readers raise what they document and nothing else, whatever anybody has written: 1,000 inputs each, 50,000 by night.

An input is a whole one that was changed: by type, where a value of a document becomes another one, or by its bytes.
A failing one is made again by its number.
"""

import atexit
import copy
import json
import os
import random
import runpy
import traceback
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import batch
from tests.trackers.files.test_hostile import FILES, ROWS, damaged, events, framed
from tracker_diag import Monitor, read_run
from tracker_diag.errors import DiagError, RuleError, SourceError
from tracker_diag.guards.policy import guards_of
from tracker_diag.preflight import files as preflight_files
from tracker_diag.rules.loader import catalog, load_rule
from tracker_diag.runs.watch import WatchState
from tracker_diag.samples.audit.audit import audit
from tracker_diag.samples.traces.report import read_traces
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.delivery.deliver import deliver
from tracker_diag.trackers.delivery.journal import VERSION, Journal, _line  # private: whole lines that hold no entry
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.files.read import read_metrics
from tracker_diag.trackers.tokens.log import read_tokens

pytestmark = pytest.mark.slow

TRACES = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "samples" / "traces" / "made.py")))

ODD = (
    None, True, False, 0, -1, 3.5, 10**30, 1e308, float("nan"), float("-inf"), "", "x", "nan", "1e999", "all", "\ud800",
    "9" * 5000, [], [[]], [None], ["x", 1], {}, {"a": 1}, {"": None}, {"step": {"a": [1]}},
)  # fmt: skip
"""Values of every type."""


def retyped(document, chance):
    """`document` with one to four of its values, at any depth, changed, taken out or put in."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, way = document, chance.randint(1, 7)
        for _ in range(way):
            deeper = [
                value for value in (at.values() if isinstance(at, dict) else at) if isinstance(value, dict | list)
            ]
            if not deeper:
                break
            at = chance.choice(deeper)
        keys = list(at) if isinstance(at, dict) else range(len(at))
        if not keys:
            continue
        key, odd = chance.choice(keys), copy.deepcopy(chance.choice(ODD))
        what = chance.random()
        if what < 0.15:
            del at[key]
        elif what < 0.25 and isinstance(at, dict):
            at[chance.choice(("step", "x", "", "kind", "role"))] = odd
        elif what < 0.35:
            at[key] = [at[key], odd] if chance.random() < 0.5 else {"x": at[key]}
        else:
            at[key] = odd
    return document


def as_lines(documents):
    return "\n".join(map(json.dumps, documents)).encode()


def as_json(document):
    return json.dumps(document).encode()


def as_yaml(document):
    return yaml.safe_dump(document, allow_unicode=False).encode() if len(str(document)) < 3000 else as_json(document)


def as_notebook(cells):
    return as_json({"nbformat": 4, "cells": cells})


def a_monitor():
    monitor = Monitor(rules=catalog()[::6], catalog=False)
    atexit.unregister(monitor.close)
    return monitor


@cache
def state():
    """Of a monitor that has seen tensors, samples, a finding and a checkpoint."""
    rng = np.random.default_rng(0)
    monitor = a_monitor()
    for step in range(12):
        monitor.observe(**batch(rng, size=4, width=16))
        monitor.samples(reward=rng.normal(size=4), text=["a"] * 4, group=[0, 0, 1, 1])
        monitor.log({"loss": float("nan") if step == 10 else 0.5, "reward": 1.0}, step)
    return json.loads(json.dumps(monitor.state_dict()))


HTML = "<table><tr><th>Step</th><th>Training Loss</th></tr><tr><td>1</td><td>0.5</td></tr></table>"
CELLS = [{"cell_type": "code", "outputs": [{"data": {"text/html": [HTML]}}, {"text": ["{'loss': 0.5, 'epoch': 1}"]}]}]
SAMPLES = [
    {"reward": i % 2, "success": i % 2, "prompt": f"q{i % 3}", "completion": [{"role": "assistant", "content": "yes"}],
     "group": i % 3, "step": i // 4, "components": {"a": 0.5}, "calls": [{"name": "search", "status": "ok"}]}
    for i in range(12)
]  # fmt: skip
PAIRS = [{"prompt": "a", "chosen": "b", "rejected": "c", "reward": 0.5, "group": 1, "success": True} for _ in range(4)]
SPANS = [{"messages": messages, "reward": 1.0, "step": 3}
         for messages in (TRACES.OPENAI, TRACES.ANTHROPIC, TRACES.RESPONSES, TRACES.GEN_AI)]  # fmt: skip
LINES = [
    {"scalars": {"diag/x": 1.0}, "step": 0, "at": 0.0, "n": 1}, {"metrics": {"values": {"loss": 1}}, "step": 0, "n": 2},
    {"alert": {"step": 0, "level": "warn", "title": "t", "text": "x"}, "step": 0, "at": 0.0, "n": 3}, {"sent": 90},
    {"event": {"text": "x"}, "step": 1, "at": 0.0, "n": 4}, {"file": {"name": "a", "text": "b"}, "step": 1, "n": 5},
]  # fmt: skip
HEAD = {"version": VERSION, "tracker": "x", "address": {"run": "1"}, "kind": "", "host": "h", "pid": 1, "start": 2}
GUARDS = {
    "guards": [{"do": "kl_cap", "on": {"rules": ["POL001"], "severity": "warn"}, "bounds": [0.1, 1.0], "target": 1}]
}
WATCH = {"source": "s", "project": False, "runs": {"a": {"underway": True, "mark": "x", "sent": {"log": ["1"]}}}}
MEMORY = {"device_gib": 80, "actor": {"parameters": 7e9, "bytes": 2}}


def restored(file):
    try:
        given = json.loads(file.read_bytes())
    except (ValueError, RecursionError):  # the process that kept the state reads it
        return
    monitor = a_monitor()
    monitor.load_state_dict(given)
    monitor.log({"loss": 0.5, "reward": 1.0}, 1000)  # whatever was taken for good raises nothing later


def delivered(file):
    file.chmod(0o600)
    os.utime(file, (0, 0))  # a machine that is off wrote it
    file.rename(file.with_suffix(".journal"))
    [*deliver(file.parent, 5.0)]  # no such tracker
    try:
        for left in file.parent.glob("*.journal"):  # none if a line says that all was delivered
            Outbox(CapturingTracker(), Journal.taken(left)).drain(5.0)
    finally:
        for left in file.parent.glob("*.journal"):
            left.unlink()


def watched(file):
    file.rename(file.with_name("watch.json"))
    WatchState.kept_in(file.parent, "s", project=False)


@cache
def tokens():
    return pq.read_table(pa.BufferReader(FILES["tokens.parquet"]()))


def parquet(chance):
    """A token table with a column of another type, or without one."""
    table = tokens().slice(0, 24)
    name, n = chance.choice(table.column_names), table.num_rows
    values = chance.choice(
        (["x"] * n, [None] * n, [[1]] * n, [-1] * n, [1.5] * n, [True] * n, [{"a": 1}] * n, [2**40] * n)
    )
    table = table.drop_columns([name])
    out = pa.BufferOutputStream()
    pq.write_table(table.append_column(name, pa.array(values)) if chance.random() < 0.8 else table, out)
    return out.getvalue().to_pybytes()


def changed_events(chance):
    records = events()
    at = chance.randrange(1, len(records))
    records[at] = damaged(records[at], chance)
    return framed(records)


def journal_lines(documents):
    return b"".join(map(_line, documents))


def of_rule(chance):
    rule = chance.choice(catalog()).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return as_json(retyped(rule, chance))


def by_bytes(name):
    whole = cache(FILES[name])
    return lambda chance: damaged(whole(), chance)


def by_type(document, encode):
    def made(chance):
        data = encode(retyped(document() if callable(document) else document, chance))
        return damaged(data, chance) if chance.random() < 0.2 else data

    return made


OF_RUNS = (
    "metrics.jsonl", "verl.jsonl", "progress.csv", "mlflow.csv", "monitor.csv", "verl.log", "trl.log",
    "evaluations.npz",
)  # fmt: skip
READERS = {
    **{name: (read_run, SourceError, by_bytes(name)) for name in OF_RUNS},
    "rows.jsonl": (read_run, SourceError, by_type([{"config": {"lr": 1.0}}, *ROWS], as_lines)),
    "replay.jsonl": (read_metrics, SourceError, by_type(ROWS, as_lines)),
    "trainer_state.json": (read_run, SourceError, by_type({"log_history": ROWS, "max_steps": 3}, as_json)),
    "run.ipynb": (read_run, SourceError, by_type(CELLS, as_notebook)),
    "events.out.tfevents.1": (read_run, SourceError, changed_events),
    "tokens.parquet": (lambda file: [*read_tokens(file)], SourceError, parquet),
    "rule.yaml": (load_rule, RuleError, of_rule),
    "guards.yaml": (lambda file: guards_of(file, ("POL001",)), DiagError, by_type(GUARDS, as_yaml)),
    "state.json": (restored, SourceError, by_type(state, as_json)),
    "journal": (delivered, DiagError, by_type([HEAD, *LINES], journal_lines)),
    "samples.jsonl": (
        lambda file: audit(file, rules=catalog()[::12], catalog=False),
        SourceError,
        by_type(SAMPLES, as_lines),
    ),
    "traces.jsonl": (lambda file: read_traces(str(file), catalog=False), SourceError, by_type(SPANS, as_lines)),
    "pairs.jsonl": (preflight_files.samples, SourceError, by_type(PAIRS, as_lines)),
    "settings.yaml": (preflight_files.settings, SourceError, by_type({"trainer": {"beta": 0.1}, "lr": 1e-6}, as_yaml)),
    "memory.yaml": (preflight_files.plan, SourceError, by_type(MEMORY, as_yaml)),
    "watch.json": (watched, DiagError, by_type(WATCH, as_json)),
}
"""What reads it, what that may raise, and what makes an input."""


def wrong(name, numbers, folder):
    """The inputs of these numbers that made the reader raise something else, and what that was."""
    read, allowed, made = READERS[name]
    kinds = {}
    for number in numbers:
        data = made(random.Random(f"{name} {number}"))
        file = folder / name
        file.write_bytes(data)
        try:
            read(file)
        except allowed:
            pass
        except Exception as error:  # that is what is looked for
            last = traceback.extract_tb(error.__traceback__)[-1]
            kinds.setdefault(f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {error}"[:200], number)
    return kinds


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_reader_raises_what_it_documents(name, tmp_path):
    assert wrong(name, range(1000), tmp_path) == {}


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_reader_raises_what_it_documents_50_000_times(name, tmp_path):
    assert wrong(name, range(1000, 51_000), tmp_path) == {}
