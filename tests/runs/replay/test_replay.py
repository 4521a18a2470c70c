"""Live, one process, several and a cluster give the same verdict to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracker_diag import Monitor
from tracker_diag.errors import SourceError
from tracker_diag.runs.replay import engines
from tracker_diag.runs.replay.fold import Folded, fold, merge
from tracker_diag.runs.replay.replay import replay
from tracker_diag.trackers.tokens import plan

STEPS, SEQUENCES, WIDTH = 130, 12, 24


def batch(step):
    """A step whose tail after tools grows from step 60 on; a third tool comes late, and names change their order."""
    rng = np.random.default_rng(step)
    shape = (SEQUENCES, WIDTH)
    position = np.broadcast_to(np.arange(WIDTH), shape)
    new = rng.uniform(-3, -0.1, shape).astype(np.float32)
    scale = np.where(position > 12, 0.02 * np.exp(max(0, step - 60) * 0.06), 0.02)
    tools = np.array(["search", "code", "shell"])[:: 1 if step % 2 else -1]
    names = np.where(position > 12, tools[np.arange(SEQUENCES)[:, None] % (2 if step < 80 else 3)], "")
    return {
        "logprobs": new,
        "old_logprobs": (new - scale * rng.normal(size=shape)).astype(np.float32),
        "model_mask": (position > 1) & (position != 12),
        "tool": names.astype(object),
        "env": np.array([f"env{i % 2}" for i in range(SEQUENCES)], object),
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The same steps as Parquet, in row groups that no step begins with."""
    file = tmp_path_factory.mktemp("log") / "tokens.parquet"
    parts = []
    for step in range(STEPS):
        arrays = batch(step)
        columns = {"logprobs": "logprob", "old_logprobs": "old_logprob", "model_mask": "is_model", "tool": "tool"}
        own = {column: arrays[name].reshape(-1) for name, column in columns.items()}
        own |= {"env": np.repeat(arrays["env"], WIDTH), "step": np.full(SEQUENCES * WIDTH, step)}
        own |= {"sequence": np.repeat(np.arange(SEQUENCES), WIDTH), "position": np.tile(np.arange(WIDTH), SEQUENCES)}
        parts.append(pa.table(own))
    pq.write_table(pa.concat_tables(parts), file, row_group_size=1000)
    return file


def rounded(summary):
    return {name: part for name, part in summary.to_json().items() if name != "run"}


@pytest.fixture(scope="module")
def live():
    with Monitor(source="live elsewhere") as monitor:
        for step in range(STEPS):
            arrays = batch(step)
            # As a token table has it: which tokens follow a tool is what the tool's name says.
            monitor.observe(**arrays, after_tool=(arrays["tool"] != "") & arrays["model_mask"])
            monitor.log({}, step)
        return monitor.close()


@pytest.fixture(scope="module")
def replayed(log):
    return replay(log)


@pytest.mark.slow
def test_a_replay_gives_the_verdict_of_the_live_run_and_its_worst_sequences(live, replayed):
    assert rounded(replayed)["findings"] == rounded(live)["findings"]
    assert rounded(replayed) == rounded(live)
    assert any(finding.fired is not None and finding.slice == "post_tool" for finding in live.findings)
    assert len(replayed.worst) == len(live.worst) > 0
    for mine, theirs in zip(replayed.worst, live.worst, strict=True):
        assert (mine.step, mine.sequence, mine.slice, mine.tool) == (
            theirs.step,
            theirs.sequence,
            theirs.slice,
            theirs.tool,
        )


@pytest.mark.slow
def test_parts_in_several_processes_and_rows_in_any_order_give_the_same(log, replayed, monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "AT_ONCE", 4000)
    assert rounded(replay(log, workers=2)) == rounded(replayed)
    whole = pq.read_table(log)
    shuffled = tmp_path / "shuffled.parquet"
    pq.write_table(whole.take(np.random.default_rng(0).permutation(len(whole))), shuffled, row_group_size=3000)
    assert rounded(replay(shuffled)) == rounded(replayed)


@pytest.mark.slow
def test_a_replay_that_broke_off_continues_from_its_states(log, replayed, monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "AT_ONCE", 4000)
    count = []

    def breaks_off(work, parts):
        for folded in engines.processes(1)(work, parts):
            count.append(folded)
            if len(count) == 4:
                raise KeyboardInterrupt
            yield folded

    with pytest.raises(KeyboardInterrupt):
        replay(log, engine=breaks_off, states=tmp_path)
    assert len([*tmp_path.glob("*.json")]) == 3

    def counted(work, parts):
        count.extend(parts)
        yield from engines.processes(1)(work, parts)

    count.clear()
    assert rounded(replay(log, engine=counted, states=tmp_path)) == rounded(replayed)
    states = [*tmp_path.glob("*.json")]
    assert len(count) == len(states) - 3
    count.clear()
    assert rounded(replay(log, engine=counted, states=tmp_path)) == rounded(replayed)
    assert count == []


def test_batches_of_a_step_merge_to_the_counts_of_the_step():
    arrays = batch(3)
    whole = fold(arrays)
    parts = [fold({name: values[at] for name, values in arrays.items()}) for at in (slice(0, 5), slice(5, 12))]
    merged = merge([Folded.of_state(json.loads(json.dumps(part.state_dict()))) for part in parts])
    assert merged.names.rows == whole.names.rows
    (pair,) = whole.observed
    for dimension in ("tool", "env", "turn"):
        ours, wanted = merged.observed[pair].sketches[dimension], whole.observed[pair].sketches[dimension]
        np.testing.assert_array_equal(ours.counts, wanted.counts)
    np.testing.assert_allclose(merged.observed[pair].tokens.array(), whole.observed[pair].tokens.array(), rtol=1e-12)


def test_a_batch_that_cannot_be_taken_is_counted_and_the_first_is_refused(tmp_path):
    steps = np.repeat(np.arange(3), 4)
    columns = {"step": steps, "sequence": steps, "position": np.tile(np.arange(4), 3), "logprob": np.full(12, -1.0)}
    table, file = pa.table({**columns, "is_model": steps != 1}), tmp_path / "t.parquet"
    pq.write_table(table, file)
    with pytest.raises(
        SourceError, match=r"t\.parquet: no columns that form a ratio pair, expected logprob and old_logprob, or "
    ):
        replay(file)
    pq.write_table(table.append_column("old_logprob", table["logprob"]), file)
    assert replay(file).to_json()["run"]["steps"] == 3  # step 1 has no token of the model


DRIVER = """
import json, sys
from ray.cluster_utils import Cluster
from tracker_diag.runs.replay import engines
from tracker_diag.runs.replay.replay import replay
from tracker_diag.trackers.tokens import plan

plan.AT_ONCE = 4000
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
lost = cluster.add_node(num_cpus=1)
on_ray = engines.on_ray(cluster.address)


def loses_a_node(work, parts):
    for number, folded in enumerate(on_ray(work, parts)):
        if number == 1:
            cluster.remove_node(lost, allow_graceful=False)
        yield folded


summary = replay(sys.argv[1], engine=loses_a_node)
print(json.dumps({name: part for name, part in summary.to_json().items() if name != "run"}), flush=True)
"""


@pytest.mark.nightly
def test_a_ray_cluster_that_loses_a_node_gives_the_same(log, replayed):
    root = Path(__file__).parents[3]
    frameworks = root / "build" / "frameworks"
    assert (frameworks / "shared" / "ray").is_dir(), "`make nightly` installs Ray there"
    folders = (root, root / "integrations", frameworks / "rllib", frameworks / "shared")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    quiet["RAY_worker_niceness"] = "0"  # at 15, as usual, workers hardly run
    environment = os.environ | quiet | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", DRIVER, str(log)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(json.dumps(rounded(replayed)))
