"""Guards on a real Trainer: it stops, saves, evaluates, and leaves steps out; a healthy run is as without them."""

import pytest
from tracker_diag_transformers import DiagnosticsCallback, attach

import tracker_diag as td
from tests.integrations.conformance import same
from tests.integrations.transformers.made import Breaks, make
from tracker_diag.attach.resume import resume_from

pytestmark = pytest.mark.slow

HIGH = """\
id: ACM001
title: Loss is high
signals:
  high: {kind: threshold, series: {metric: loss}, above: 6.0}
when: [high]
summary: "loss is {high.value:.3g}"
"""


@pytest.fixture(autouse=True)
def own_rule(tmp_path, monkeypatch):
    """Added to the catalogue in every run, as a platform team has it."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "ACM001.yaml").write_text(HIGH)
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(tmp_path / "rules"))


def breaking(folder, *, breaks=6, **changes):
    """A trainer whose weights become far too large after some steps, and what it did."""
    seen = Breaks(breaks, by=300.0)
    return make(folder, seen, **changes), seen


def guard(do, **settings):
    return td.Guard(do=do, on={"rules": ("ACM001",)}, **({"act": True} | settings))


def test_it_saves_evaluates_and_stops_and_the_register_knows_where_to_go_back_to(tmp_path):
    trainer, seen = breaking(tmp_path, save_strategy="steps", save_steps=3)
    own = [guard(do) for do in ("save_state", "reevaluate", "stop_training", "rollback")]
    monitor = attach(trainer, guards=own)
    trainer.train()
    assert monitor.failures == []
    assert trainer.state.global_step == 7
    assert seen.evaluated == [7]
    assert sorted(folder.name for folder in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in (3, 6, 7)]
    done = [event for _, event in monitor.events]
    assert any(event.startswith("guard rollback: not done, gives way to stop_training") for event in done)
    register = monitor.guards.checkpoints
    assert {row[0]: row[2] for row in register.table().rows} == {3: "yes", 6: "yes", 7: "no"}
    checkpoint, wrong, certain = register.before(7, register.reread)
    assert (checkpoint.step, checkpoint.path, wrong, certain) == (6, str(tmp_path / "checkpoint-6"), [], True)


def test_a_rollback_stops_it_and_leaves_word_for_a_launcher(tmp_path):
    trainer, _ = breaking(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=1)
    attach(trainer, guards=[guard("rollback")])
    trainer.train()
    assert trainer.args.save_total_limit == 1
    resume = resume_from(tmp_path)
    assert (resume.path, resume.step, resume.times) == (str(tmp_path / "checkpoint-6"), 6, 1)
    assert trainer.state.global_step < trainer.args.max_steps


@pytest.mark.nightly
def test_a_resumed_training_has_its_limits_and_its_register(tmp_path):
    trainer, _ = breaking(tmp_path, save_strategy="steps", save_steps=3, breaks=2)
    first = attach(trainer, guards=[guard("save_state")])
    trainer.train()
    assert sum(event.startswith("guard save_state") for _, event in first.events) == 1
    again, _ = breaking(tmp_path, save_strategy="steps", save_steps=3, steps=15, breaks=99)
    second = attach(again, guards=[guard("save_state")])
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    assert sum(event.startswith("guard save_state") for _, event in second.events) == 1  # that of the first part
    assert [row[0] for row in second.guards.checkpoints.table().rows] == [3, 6, 9, 12, 15]


@pytest.mark.nightly
def test_updates_stop_while_the_loop_continues(tmp_path):
    trainer, seen = breaking(tmp_path)
    monitor = attach(trainer, guards=[guard("stop_update", hold=3), guard("scale_lr", act=False)])
    trainer.train()
    assert monitor.failures == []
    assert [same(seen.weights[step], seen.weights[step + 1]) for step in range(7, 12)] == [True] * 3 + [False] * 2
    assert not optimizer_hooks(trainer)


def optimizer_hooks(trainer):
    inner = trainer.optimizer.optimizer
    return [*inner._optimizer_step_pre_hooks, *inner._optimizer_step_post_hooks]


def test_a_healthy_training_is_the_same_with_guards(tmp_path):
    everything = [guard(do) for do in ("skip_batch", "stop_update", "stop_training", "scale_lr", "save_state")]
    plain, before = breaking(tmp_path, breaks=99)
    plain.train()
    guarded, after = breaking(tmp_path, breaks=99)
    monitor = attach(guarded, guards=everything)
    guarded.train()
    assert monitor.events == []
    assert guarded.state.global_step == 12
    assert same(before.weights[12], after.weights[12])


def test_a_monitor_and_guards_are_one_too_many(tmp_path):
    with pytest.raises(td.DiagError, match="guards: given next to a monitor"):
        DiagnosticsCallback(monitor=td.Monitor(), guards=[guard("stop_training")])
