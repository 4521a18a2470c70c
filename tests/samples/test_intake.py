"""From calls of `samples` to series, records and the table, at the Monitor's own door."""

import json

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag import Monitor
from tracker_diag.errors import BatchError
from tracker_diag.records import Histogram, Scalar, Table
from tracker_diag.testing import CapturingTracker


def scalars(seen, step):
    return {item.name: item.value for item in seen.records[step] if isinstance(item, Scalar)}


def of_kind(seen, step, kind):
    return [item for item in seen.records[step] if isinstance(item, kind)]


@pytest.fixture
def seen():
    return CapturingTracker()


def test_samples_belong_to_the_next_log_and_several_calls_add_up(seen):
    monitor = Monitor([seen])
    monitor.samples(reward=[1.0, 0.0], success=[1, 0])
    monitor.samples(reward=[1.0, 1.0])
    monitor.log({"loss": 0.1}, 7)
    values = scalars(seen, 7)
    assert values["diag/samples/reward"] == 0.75
    assert values["diag/samples/success_rate"] == 0.5
    (histogram,) = of_kind(seen, 7, Histogram)
    assert histogram.counts.sum() == 4
    assert (histogram.edges[0], histogram.edges[-1]) == (0, 1)
    monitor.log({"loss": 0.1}, 8)
    assert "diag/samples/reward" not in scalars(seen, 8)


def test_what_comes_later_of_a_step_is_counted_with_the_rest(seen):
    monitor = Monitor([seen])
    for reward in (1.0, 0.0):
        monitor.samples(reward=[reward, reward])
        monitor.log({"loss": 0.1}, 3)
    assert scalars(seen, 3)["diag/samples/reward"] == 0.5


@pytest.mark.slow
def test_samples_that_say_their_step_are_of_it(seen):
    monitor = Monitor([seen])
    monitor.samples(reward=[0.0], step=4)
    monitor.samples(reward=[1.0], step=5)
    monitor.close()
    assert scalars(seen, 4)["diag/samples/reward"] == 0.0
    assert scalars(seen, 5)["diag/samples/reward"] == 1.0


def test_the_trainers_own_value_counts_from_its_first_on(seen):
    high = {"kind": "threshold", "series": {"metric": "reward"}, "above": 2}
    rule = td.Rule(id="OWN001", title="High", signals={"high": high}, when=["high"], keep_firing_steps=0,
                   summary="reward {high.value}")  # fmt: skip
    monitor = Monitor([seen], rules=[rule], catalog=False)
    for step, own in enumerate([{}, {"train/reward": 3.0}, {"loss": 0.1}, {"train/reward": 0.5}]):
        monitor.samples(reward=[1.0, 0.0])
        monitor.log(own, step)
    (finding,) = monitor.summary().findings
    assert (finding.fired, finding.resolved) == (1, 3)  # at step 2 there is no value, and not that of the samples
    assert scalars(seen, 2)["diag/samples/reward"] == 0.5  # it is written all the same


def test_calls_that_do_not_fit_are_counted_from_the_first_on(seen, caplog):
    monitor = Monitor([seen])
    monitor.samples(reward=[1.0, 2.0], success=[1])
    assert "success: 1 values given, expected 2" in caplog.text
    monitor.samples(reward=[1.0, 2.0])
    monitor.samples(reward=[1.0, 2.0], success=[1])
    monitor.log({"loss": 0.1}, 0)
    assert monitor.health["rejected_samples"] == 2
    assert scalars(seen, 0)["diag/health/rejected_samples"] == 2
    assert scalars(seen, 0)["diag/samples/reward"] == 1.5
    assert "2 calls of samples were rejected" in " ".join(monitor.close().caveats)


def test_nan_in_a_reward_is_reported_and_a_reward_that_is_not_known_is_not(seen):
    monitor = Monitor([seen])
    monitor.samples(reward=[None, 1.0], components={"a": [float("nan"), 1.0]})
    monitor.log({"loss": 0.1}, 0)
    assert "NUM004" not in {item.rule.id for item in monitor.summary().findings}
    monitor.samples(reward=[float("inf"), 1.0])
    monitor.log({"loss": 0.1}, 1)
    assert "NUM004" in {item.rule.id for item in monitor.summary().findings}
    assert scalars(seen, 1)["diag/samples/reward"] == 1.0
    assert monitor.health["nonfinite_samples"] == 1


def test_sixteen_tools_have_series_and_essential_ones_come_first(seen):
    monitor = Monitor([seen], essential_tools=["tool 29", "never called"])
    calls = [[{"name": f"tool {i}"}] * (40 - i) for i in range(30)]
    monitor.samples(calls=calls)
    monitor.log({"loss": 0.1}, 0)
    shares = {name.partition(":")[2] for name in scalars(seen, 0) if name.startswith("diag/samples/tool_share:")}
    assert len(shares) == 16
    assert {"tool 29", "tool 0", "tool 14"} <= shares
    values = scalars(seen, 0)
    assert values["diag/samples/essential_tool_share:never called"] == 0
    assert values["diag/samples/essential_tool_share"] == 0
    assert values["diag/samples/tool_calls"] == pytest.approx(sum(40 - i for i in range(30)) / 30)


@pytest.mark.slow
def test_the_first_sixteen_environments_have_a_reward_and_one_that_goes_wrong_is_named(seen):
    monitor = Monitor([seen])
    envs = ["web", "code", *(f"env {i}" for i in range(20))]
    for step in range(160):
        good = min(0.01 * step, 0.8)
        rewards = [0.0 if env == "web" and step >= 100 else good for env in envs]
        monitor.samples(reward=rewards, env=envs)
        monitor.log({"loss": 0.1}, step)
    names = {name.partition(":")[2] for name in scalars(seen, 0) if name.startswith("diag/samples/env_reward:")}
    assert len(names) == 16
    assert {"web", "code"} <= names
    (named,) = [item for item in monitor.summary().findings if item.rule.id == "ENV013"]
    assert str(named.slice) == "env:web"
    assert 100 <= named.onset <= 105


def test_hostile_names_of_tools_and_components_become_keys_of_their_own(seen):
    names = ["<script>", "[red]x", "\x1b[2J", "搜索", "天气", "a/b", "x" * 300]
    monitor = Monitor([seen], texts=True)
    monitor.samples(
        calls=[[{"name": name} for name in names]], components={name: [1.0] for name in names}, text=["<b>\x1b[31m"]
    )
    monitor.log({"loss": 0.1}, 0)
    keys = set(scalars(seen, 0))
    assert sum(key.startswith("diag/samples/tool_share:") for key in keys) == len(names)
    assert sum(key.startswith("diag/samples/reward_component:") for key in keys) == len(names)
    assert all(key.isascii() and key.isprintable() and len(key) < 100 for key in keys)
    (table,) = of_kind(seen, 0, Table)
    assert table.rows[0][table.columns.index("text")] == "<b>\ufffd[31m"


def test_the_table_holds_highest_lowest_and_random_sequences_without_texts(seen):
    monitor = Monitor([seen])
    rewards = [float(i) for i in range(40)]
    monitor.samples(reward=rewards, text=["secret"] * 40, env=["web"] * 40)
    monitor.log({"loss": 0.1}, 0)
    (table,) = of_kind(seen, 0, Table)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["reward"] for row in rows if row["kind"] == "highest"] == [39, 38, 37, 36]
    assert [row["reward"] for row in rows if row["kind"] == "lowest"] == [0, 1, 2, 3]
    assert len({row["sequence"] for row in rows}) == 12
    assert {row["env"] for row in rows} == {"web"}
    assert "secret" not in str(table)


def test_texts_are_shown_where_they_were_asked_for(seen):
    monitor = Monitor([seen], texts=True)
    monitor.samples(reward=[1.0, 0.0], text=["good", "x" * 1_000_000])
    monitor.log({"loss": 0.1}, 0)
    (table,) = of_kind(seen, 0, Table)
    shown = [row[table.columns.index("text")] for row in table.rows]
    assert shown[0] == "good"
    assert len(shown[1]) < 2100


@pytest.mark.slow
def test_the_table_comes_every_fifty_steps_with_an_incident_and_at_the_end(seen):
    monitor = Monitor([seen])
    for step in range(70):
        monitor.samples(reward=np.arange(8) / 8, calls=[[{"name": "a", "status": step < 20}]] * 8)
        monitor.log({"loss": 0.1}, step)
    monitor.close()
    fired = next(
        item.fired for item in monitor.summary().findings if item.rule.id == "ENV001" and item.fired is not None
    )
    at = [step for step in range(70) if of_kind(seen, step, Table)]
    assert at == [0, fired, fired + 50] if fired + 50 < 70 else at == [0, fired]
    (last,) = (item for item in seen.tables if item.name == "diag/samples")
    assert last.rows[0][0] == 69


@pytest.mark.slow
def test_a_resumed_run_says_the_same_as_an_unbroken_one():
    rng = np.random.default_rng(0)
    steps = [
        {"reward": rng.random(8), "calls": [[{"name": "a", "status": bool(rng.random() < 0.5)}] for _ in range(8)]}
        for _ in range(60)
    ]
    whole, first, second = CapturingTracker(), CapturingTracker(), CapturingTracker()
    unbroken, begun, resumed = Monitor([whole]), Monitor([first]), Monitor([second])
    for step, columns in enumerate(steps):
        unbroken.samples(**columns)
        unbroken.log({"loss": 0.1}, step)
        (begun if step <= 30 else resumed).samples(**columns)
        if step == 30:  # between the samples and their log
            resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
        (begun if step < 30 else resumed).log({"loss": 0.1}, step)
    assert [str(item) for item in resumed.summary().findings] == [str(item) for item in unbroken.summary().findings]
    assert scalars(second, 30) == scalars(whole, 30)
    assert scalars(second, 59) == scalars(whole, 59)


def test_essential_tools_are_a_list():
    with pytest.raises(BatchError, match="essential_tools: 'search' given, expected a list of names"):
        Monitor(essential_tools="search")


@pytest.mark.nightly
def test_mlflow_shows_all_of_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/m.db"
    client = mlflow.MlflowClient(uri)
    run_id = client.create_run(client.create_experiment("e", f"file://{tmp_path}/artifacts")).info.run_id
    run = td.wrap(client, run_id=run_id, essential_tools=["search"], texts=True)
    rng = np.random.default_rng(0)
    for step in range(30):
        calls = [[{"name": "search", "status": bool(i % 3)}, {"name": "read"}] for i in range(16)]
        run.diag.samples(reward=rng.random(16), text=["<script>alert(1)</script>"] * 16, calls=calls)
        run.log_metric(run_id, "loss", 0.1, step=step)
    run.diag.close()
    data = client.get_run(run_id).data
    assert data.metrics["diag/samples/tool_failure_rate:search"] == pytest.approx(6 / 16)
    assert data.metrics["diag/samples/tool_failure_rate:read"] == 0
    assert len(client.get_metric_history(run_id, "diag/samples/reward")) == 30
    assert "ENV001" in data.tags["diag.alert.rules"]
    files = {item.path for item in client.list_artifacts(run_id, "diag")}
    assert {"diag/samples.json", "diag/report.html"} <= files
    table = json.loads((tmp_path / "artifacts" / run_id / "artifacts/diag/samples.json").read_text())
    kept = [tuple(row[:3]) for row in table["data"]]
    assert len(kept) == len({*kept})
    assert {step: sum(row[0] == step for row in kept) for step, *_ in kept} == dict.fromkeys(
        {row[0] for row in kept}, 12
    )
    assert {0, 29} <= {row[0] for row in kept}
    page = (tmp_path / "artifacts" / run_id / "artifacts/diag/report.html").read_text()
    assert "<script>alert" not in page
    assert [file.path for file in client.list_artifacts(run_id, "diag/samples")] == ["diag/samples/reward.png"]
