import json
import math
import time
import weakref
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest

from tracker_diag import Monitor, diagnose
from tracker_diag.attach import kit
from tracker_diag.attach.own_time import OwnTime
from tracker_diag.errors import DiagError, MissingExtra, require
from tracker_diag.hooks import HookError, after, before
from tracker_diag.metrics.series import PAIRS
from tracker_diag.report.first_look import remedies
from tracker_diag.trackers.files.write import unused_folder
from tracker_diag.trackers.notify import NOTIFY

FIRING = 2
"""As a rule's state is in a tracker."""


class Trainer:
    def loss(self, inputs):
        return inputs

    def log(self, data, step):
        return data


@pytest.fixture
def monitor():
    return Monitor(rules=())


def test_nested_settings_by_dotted_name():
    nested = {"lr": 1e-6, "actor": {"clip": {"low": 0.2, "high": None}, "tools": ["search"]}, "empty": {}}
    assert kit.dotted(nested) == {"lr": 1e-6, "actor.clip.low": 0.2, "actor.clip.high": None, "actor.tools": ["search"]}


def test_plain_settings_are_those_that_rules_look_at():
    given = {
        "name": "grpo",
        "lr": 1e-6,
        "epochs": 2,
        "bf16": True,
        "tools": ["search"],
        "model": Trainer(),
        "seed": None,
    }
    assert kit.plain(given) == {"name": "grpo", "lr": 1e-6, "epochs": 2, "bf16": True}
    assert kit.plain({1: "one"}) == {"1": "one"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "high", "clip"),
    [
        (0.1, 0.3, (0.1, 0.3)),
        (0.1, None, (0.1, 0.1)),
        (None, None, (0.2, 0.2)),
        (None, 0.3, (0.2, 0.3)),
        (0, 0.0, (0.2, 0.2)),
        (-1, "off", (0.2, 0.2)),
        (float("nan"), float("nan"), (0.2, 0.2)),
        (3, 4, (0.999, 4.0)),
        (3, None, (0.999, 3.0)),
    ],
)
def test_every_clip_range_is_one_that_a_monitor_takes(low, high, clip):
    assert kit.clip_range(low, high) == clip
    Monitor(rules=(), clip=clip)


@pytest.mark.slow
def test_without_a_tracker_a_folder_stands_for_it_and_one_line_says_so(monitor, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "of_ours"))
    sees = {"policy, mismatch": "always", "post_tool": "", "not": "reference"}
    assert not kit.add_active(monitor, sees=sees, wait=True)
    assert monitor.trackers == ()
    assert not kit.add_active(monitor, sees=sees)
    assert not kit.add_active(monitor, sees=sees)
    (tracker,) = monitor.trackers
    text = capsys.readouterr().err
    assert text.count("writes to") == 1
    assert f"see it with tracker-diag diagnose {tracker.source}; looks for policy, mismatch (" in " ".join(text.split())
    monitor.log({"reward": 0.5}, 3)
    monitor.close()
    lines = [json.loads(line) for line in (tracker.folder / "metrics.jsonl").read_text().splitlines()]
    assert (lines[0]["step"], lines[0]["reward"]) == (3, 0.5)
    assert tracker.folder.parent == tmp_path / "of_ours"
    assert diagnose(str(tracker.folder)).summary.last_step == 3


@pytest.mark.slow
def test_the_line_says_what_is_blind_and_a_promised_pair_that_does_not_come_is_reported_once(
    monitor, capsys, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    sees = {
        "policy": "with num_iterations above 1",
        "mismatch, reference": "by luck",
        "post_tool": "",
        "env": "its name",
    }
    kit.add_active(monitor, sees=sees, blind={"reference": "set beta above 0"})
    text = " ".join(capsys.readouterr().err.split())
    assert "; looks for policy, mismatch (" in text
    assert "; by post_tool, env; blind for reference: set beta above 0" in text
    for step in range(12):
        old = np.random.default_rng(step).uniform(-3, -1, (8, 8))
        model = np.ones(old.shape, bool)
        monitor.observe(old_logprobs=old, rollout_logprobs=old + 0.1, model_mask=model)
        monitor.log({}, step)
        monitor.log({"reward": 0.5}, step)
        assert len(caplog.records) == (step >= 5)
    (messages,) = (record.message for record in caplog.records)
    assert messages.startswith(
        "5 steps were logged, and no tensors have come of: policy, seen with num_iterations above 1."
    )


def said_by(monitor, capsys):
    """What `explain` shows, in one line."""
    capsys.readouterr()
    monitor.explain()
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_what_the_settings_leave_out_is_seen_by_setting_it(monitor, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    kit.add_active(monitor, sees={"policy, reference": "always"}, blind={"reference": "set beta above 0"})
    monitor.log({"reward": 0.5}, 0)
    text = said_by(monitor, capsys)
    assert "policy no logprobs and old_logprobs observed" in text
    assert "reference not seen with these settings; set beta above 0" in text
    blind = monitor.summary().blind
    assert "reference: not seen with these settings; set beta above 0" in map(str, blind["POL002"])
    opens = dict(remedies(blind))
    assert "POL002" in opens["set beta above 0"]
    assert not any("ref_logprobs" in remedy for remedy in opens)
    rng = np.random.default_rng(0)
    new = rng.uniform(-3, -1, (8, 8))
    monitor.observe(logprobs=new, ref_logprobs=new + 0.1 * rng.normal(size=new.shape), model_mask=new < 0)
    monitor.log({"reward": 0.5}, 1)
    assert "reference 0 tokens after a tool result, 64 before any" in said_by(monitor, capsys)  # given all the same


def test_of_a_trainer_that_has_no_tokens_none_are_asked_for(monitor, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    kit.add_active(monitor, sees={"metrics": "all"}, blind=dict.fromkeys(PAIRS), tools=False)
    text = " ".join(capsys.readouterr().err.split())
    assert "looks for" not in text
    assert "blind" not in text
    monitor.log({"reward": 0.5}, 0)
    text = said_by(monitor, capsys)
    assert text.count("not seen with this trainer") == len(PAIRS)
    assert "observe(" not in text
    (caveat,) = monitor.summary().caveats
    assert caveat.endswith("no rule has seen a tail, as this trainer has none with these settings")


def test_where_there_are_no_tools_none_are_missed(monitor, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    kit.add_active(monitor, sees={"policy": "always"}, blind={"mismatch": None, "reference": None}, tools=False)
    rng = np.random.default_rng(0)
    new = rng.uniform(-3, -1, (8, 8))
    monitor.observe(logprobs=new, old_logprobs=new + 0.1 * rng.normal(size=new.shape), model_mask=new < 0)
    monitor.log({"reward": 0.5}, 0)
    text = said_by(monitor, capsys)
    assert "policy 0 tokens after a tool result, 64 before any" in text
    assert "if the agent calls tools" not in text
    assert not any("tool" in caveat for caveat in monitor.summary().caveats)


@pytest.mark.slow
def test_what_comes_is_not_missed_and_nothing_is_promised_where_settings_are_not_known(
    monitor, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    kit.add_active(monitor, sees={"mismatch": "always"}, blind={})
    unknown = Monitor()
    kit.add_active(unknown, sees={"mismatch": "always"})
    for step in range(12):
        old = np.random.default_rng(step).uniform(-3, -1, (8, 8))
        monitor.observe(old_logprobs=old, rollout_logprobs=old + 0.1, model_mask=np.ones(old.shape, bool))
        monitor.log({"reward": 0.5}, step)
        unknown.log({"reward": 0.5}, step)
    unknown.close()
    assert not caplog.records


def test_two_runs_of_one_second_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    assert len({unused_folder() for _ in range(3)}) == 3


@pytest.mark.slow
def test_a_run_that_is_underway_is_written_to(mlflow_store, monitor):
    import mlflow

    assert not kit.add_active(monitor, sees={}, wait=True)
    with mlflow.start_run() as run:
        assert kit.add_active(monitor, sees={})
        monitor.log({"reward": 0.5}, 0)
        monitor.close()
    assert [tracker.name for tracker in monitor.trackers] == ["mlflow"]
    assert mlflow.get_run(run.info.run_id).data.tags["diag.alert.state"] == "ok"


@pytest.mark.slow
def test_people_are_alerted_and_a_writer_of_the_framework_is_written_to_once_however_often_it_is_found(
    tmp_path, monkeypatch, receive
):
    monkeypatch.setenv(NOTIFY, receive().url)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    monitor, writer = Monitor(), SummaryWriter(str(tmp_path / "run"))
    assert not kit.add_active(monitor, sees={}, wait=True)
    for _ in range(3):
        assert kit.add_active(monitor, None, object(), writer, sees={})
    assert [tracker.name for tracker in monitor.trackers] == ["notify", "tensorboard"]
    for step in range(6):
        monitor.log({"loss": 1.0 if step < 4 else math.nan}, step)
    monitor.close()
    writer.close()
    (messages,) = receive.state.got
    assert (messages["level"], messages["step"]) == ("error", 4)
    events = EventAccumulator(str(tmp_path / "run/diag"))
    events.Reload()
    assert events.Scalars("diag/rule/NUM004")[-1].value == FIRING


def test_an_address_that_cannot_be_used_costs_the_alerts_there_and_nothing_else(monitor, monkeypatch):
    monkeypatch.setenv(NOTIFY, "no-address")
    assert not kit.add_active(monitor, sees={})
    assert "expected scheme://" in monitor.failures[0]


def test_a_tracker_that_cannot_be_reached_is_counted_and_training_continues(monitor, monkeypatch):
    def down():
        raise ConnectionError("no server")

    monkeypatch.setattr(kit, "active_trackers", down)
    assert not kit.add_active(monitor, sees={})
    assert monitor.health["integration_errors"] == 1
    assert "no server" in monitor.failures[0]


def test_of_a_framework_that_has_changed_no_hook_stays_and_it_is_reported_once(monitor, caplog):
    trainer, went_on = Trainer(), []
    with kit.unless_changed("pydantic", "1.10") as hooks:
        hooks.callback(after(trainer, "loss", ("inputs",), lambda *seen: None, monitor))
        hooks.callback(before(trainer, "log", ("metrics",), lambda given: None, monitor))
        went_on.append(True)
    assert not vars(trainer)
    assert not went_on
    (message,) = caplog.messages
    assert message == (
        f"pydantic {version('pydantic')} is not a tested version (1.10): Trainer.log(data, step): takes no metrics, as "
        "the tested versions do. Consequence: nothing of it is watched. Training continues. Install a tested version "
        "to have it watched."
    )


@pytest.mark.parametrize(
    ("touch", "text"),
    [
        (lambda: Trainer().tracker_registry, "AttributeError: 'Trainer' object has no"),
        (lambda: {}["loss_mask"], "KeyError: 'loss_mask'"),
        (lambda: Trainer().loss(batch=1), "TypeError: Trainer.loss() got an unexpected"),
        (lambda: require("json.no_such_part", "json"), "MissingExtra: no module json.no_such_part"),
    ],
)
def test_whatever_is_gone_or_called_otherwise_is_a_change_too(touch, text, caplog):
    with kit.unless_changed("no-such-trainer", "a1b2c3d, read, not run", "no ratios are seen"):
        touch()
    (message,) = caplog.messages
    assert message.startswith(f"no-such-trainer unknown is not a tested version (a1b2c3d, read, not run): {text}")
    assert "Consequence: no ratios are seen." in message


def test_of_several_parts_the_one_that_has_changed_is_off_and_the_others_stay(monitor, caplog):
    trainer, seen = Trainer(), []
    hooks = kit.Hooks("pydantic", "1.10")
    with hooks.part("metrics are not heard") as on:
        on.callback(after(trainer, "log", ("data",), lambda *given: seen.append("log"), monitor))
    with hooks.part("ratios are not seen") as on:
        on.callback(after(trainer, "loss", ("inputs",), lambda *given: seen.append("loss"), monitor))
        on.callback(after(trainer, "no_such_loss", (), lambda *given: None, monitor))
    trainer.log(1, 2), trainer.loss(3)
    assert seen == ["log"]
    assert ["ratios are not seen" in message for message in caplog.messages] == [True]
    hooks.close()
    assert not vars(trainer)


def test_a_monitor_is_made_without_the_settings_where_these_are_not_as_they_were(caplog):
    made = kit.monitor_knowing(lambda: Monitor(config={"lr": {}["lr"]}), "pydantic", "1.10")
    assert made.config == {}
    assert "KeyError: 'lr'. Consequence: the run's settings are not known." in caplog.text
    assert kit.monitor_knowing(lambda: Monitor(clip=(0.1, 0.1)), "pydantic", "1.10").clip == (0.1, 0.1)


def test_another_error_goes_through_with_the_hooks_off(monitor, caplog):
    trainer = Trainer()

    def attach():
        with kit.unless_changed("pydantic", "2") as hooks:
            hooks.callback(after(trainer, "loss", ("inputs",), lambda *seen: None, monitor))
            raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="own"):
        attach()
    assert not vars(trainer)
    assert not caplog.records


def test_a_frameworks_name_is_found_in_upper_and_lower_case(caplog):
    kit.tell_changed("PyDantic", "1", HookError("gone"))
    assert f"PyDantic {version('pydantic')} is not a tested version (1): gone." in caplog.text


@pytest.mark.slow
def test_what_is_watched_is_so_until_its_monitor_is_closed_or_it_is_gone(monitor):
    class Trainer:
        pass

    trainer, unreferenced = Trainer(), SimpleNamespace()
    for item in (trainer, unreferenced):
        assert kit.watching(item, monitor) is None
        kit.watch_once(item, monitor, "TRL")
        assert monitor.framework == "TRL"
        assert kit.watching(item, None) is kit.watching(item, monitor) is monitor
        with pytest.raises(DiagError, match="monitor: another one given"):
            kit.watching(item, Monitor())
    gone = weakref.ref(trainer)
    del trainer, item
    assert gone() is None  # nothing of ours keeps it
    monitor.close()
    assert kit.watching(unreferenced, Monitor()) is None


def test_a_batch_before_its_update_has_two_pairs_and_no_policy(rng):
    monitor = Monitor()
    old = rng.uniform(-3, -0.1, (64, 32))
    mask = np.ones((64, 32), bool)
    kit.observe_before_update(
        monitor,
        old,
        rollout=old - 0.1,
        ref=old - 0.2,
        applied_weights=np.minimum(np.exp(mask * 0.1), 1.05),
        model_mask=mask,
    )
    monitor.log({}, 0)
    table = monitor.slices_table()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    result = {row["pair"]: row for row in rows if row["slice"] == "all"}
    assert {pair: row["count"] for pair, row in result.items()} == {"mismatch": 2048, "reference": 2048}
    assert result["mismatch"]["modified_fraction"] == 1
    assert result["mismatch"]["p50"] == pytest.approx(0.1, rel=0.01)
    assert result["reference"]["p50"] == pytest.approx(0.2, rel=0.01)


def test_a_pair_without_its_second_one_is_left_out(monitor):
    kit.observe_before_update(monitor, np.zeros((2, 4)), model_mask=np.ones((2, 4), bool))
    assert not monitor.observed


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose class needs a library; makes one that is installed, or is not."""

    def made(name, needs):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "from tracker_diag.attach.kit import on_demand\n"
            f"__getattr__ = on_demand('{name}.callback', 'Callback', '{needs}', 'trl')\n"
        )
        (tmp_path / name / "callback.py").write_text(f"import {needs}\nclass Callback: pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        return __import__(name)

    return made


def test_a_class_is_imported_when_it_is_asked_for(package):
    made = package("on_demand_present", "json")
    assert "callback" not in vars(made)
    assert made.Callback.__name__ == "Callback"
    assert vars(made)["callback"].Callback is made.Callback
    with pytest.raises(AttributeError, match=r"module 'on_demand_present' has no attribute 'Other'"):
        _ = made.Other


def test_a_class_whose_library_is_not_there_names_the_extra(package):
    made = package("on_demand_absent", "no_such_library")
    with pytest.raises(MissingExtra, match=r'no_such_library is not installed: pip install "tracker-diag\[trl\]"'):
        _ = made.Callback


def test_a_ranks_own_time_is_that_of_the_outermost_call_whatever_comes_of_it():
    class Agent:
        def turn(self):
            time.sleep(0.01)

        def loop(self):
            self.turn()
            self.turn()
            raise ConnectionError

    clock, agent = OwnTime(), Agent()
    off = clock.on(agent, "turn", "loop", "not_there")
    assert clock.taken() is None
    begun = time.perf_counter()
    with pytest.raises(ConnectionError):
        agent.loop()
    assert 0.02 <= clock.taken() <= time.perf_counter() - begun  # twice that, if each call counted
    off()
    agent.turn()
    assert clock.taken() is None
