"""Guards on a real Trainer: it stops, saves, evaluates, and leaves steps out; a healthy run is as without them."""

import pytest
import torch
import transformers
from tracker_diag_transformers import DiagnosticsCallback, attach
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import tracker_diag as td
from tracker_diag.attach.resume import resume_from

transformers.utils.logging.set_verbosity_error()

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
    """Stands beside the catalogue in every run, as a platform team has it."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "ACM001.yaml").write_text(HIGH)
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(tmp_path / "rules"))


class Breaks(TrainerCallback):
    """Makes the weights far too large after some steps."""

    def __init__(self, at):
        self.at, self.weights, self.evaluated = at, {}, []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.at:
            with torch.no_grad():
                next(model.parameters()).mul_(300.0)
        self.weights[state.global_step] = [one.detach().clone() for one in model.parameters()]

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluated.append(state.global_step)


def make(folder, *, steps=12, breaks=6, **changes):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=1))
    ids = torch.randint(0, 40, (64, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = {
        "output_dir": str(folder), "max_steps": steps, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "no", "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 1e-3,
    }  # fmt: skip
    seen = Breaks(breaks)
    args = TrainingArguments(**(arguments | changes))
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[seen])
    return trainer, seen


def guard(do, **settings):
    return td.Guard(do=do, on={"rules": ("ACM001",)}, **({"act": True} | settings))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_it_saves_evaluates_and_stops_and_the_register_knows_where_to_go_back_to(tmp_path):
    trainer, seen = make(tmp_path, save_strategy="steps", save_steps=3)
    own = [guard(do) for do in ("save_state", "reevaluate", "stop_training", "rollback")]
    monitor = attach(trainer, guards=own)
    trainer.train()
    assert monitor.failures == []
    assert trainer.state.global_step == 7
    assert seen.evaluated == [7]
    assert sorted(one.name for one in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in (3, 6, 7)]
    done = [event for _, event in monitor.events]
    assert any(event.startswith("guard rollback: not done, gives way to stop_training") for event in done)
    register = monitor.guards.checkpoints
    assert {row[0]: row[2] for row in register.table().rows} == {3: "yes", 6: "yes", 7: "no"}
    found, wrong, certain = register.before(7, register.reread)
    assert (found.step, found.path, wrong, certain) == (6, str(tmp_path / "checkpoint-6"), [], True)


def test_a_rollback_stops_it_and_leaves_word_for_a_launcher(tmp_path):
    trainer, _ = make(tmp_path, save_strategy="steps", save_steps=3)
    attach(trainer, guards=[guard("rollback")])
    trainer.train()
    resume = resume_from(tmp_path)
    assert (resume.path, resume.step, resume.times) == (str(tmp_path / "checkpoint-6"), 6, 1)
    assert trainer.state.global_step < trainer.args.max_steps


@pytest.mark.nightly
def test_a_resumed_training_has_its_limits_and_its_register(tmp_path):
    trainer, _ = make(tmp_path, save_strategy="steps", save_steps=3, breaks=2)
    first = attach(trainer, guards=[guard("save_state")])
    trainer.train()
    assert sum(event.startswith("guard save_state") for _, event in first.events) == 1
    again, _ = make(tmp_path, save_strategy="steps", save_steps=3, steps=15, breaks=99)
    second = attach(again, guards=[guard("save_state")])
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    assert sum(event.startswith("guard save_state") for _, event in second.events) == 1  # that of the first part
    assert [row[0] for row in second.guards.checkpoints.table().rows] == [3, 6, 9, 12, 15]


def test_updates_stop_while_the_loop_goes_on(tmp_path):
    trainer, seen = make(tmp_path)
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
    plain, before = make(tmp_path, breaks=99)
    plain.train()
    guarded, after = make(tmp_path, breaks=99)
    monitor = attach(guarded, guards=everything)
    guarded.train()
    assert monitor.events == []
    assert guarded.state.global_step == 12
    assert same(before.weights[12], after.weights[12])


def test_a_monitor_and_guards_are_one_too_many(tmp_path):
    with pytest.raises(td.DiagError, match="guards: given beside a monitor"):
        DiagnosticsCallback(monitor=td.Monitor(), guards=[guard("stop_training")])
