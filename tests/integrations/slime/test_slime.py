import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import tracker_diag_slime as integration

from tests.integrations.conformance import (
    KnowsTheSettings,
    LeavesNoHook,
    Resumes,
    SameWithUs,
    WatchedOnce,
    counted,
    same,
)
from tests.tensors.rank import take_sent
from tracker_diag import Monitor, ThroughStore
from tracker_diag.hooks import HookError
from tracker_diag.rules.loader import in_force
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.nightly  # with stand-ins of its modules; by day ROLL alone is tried so

# Signatures as in THUDM/slime at 624b824: slime/observability/logging_utils.py (log),
# slime/backends/megatron_utils/loss.py (vanilla_tis_function, and the call in policy_loss_function),
# .../initialize.py (is_megatron_main_rank), .../cp_utils.py (slice_log_prob_with_cp), .../model.py (train_one_step,
# train), slime/observability/rollout_metrics.py (log_rollout_data).
LENGTHS = (12, 7)


def log(args, metrics, step_key):
    args.logged.append((step_key, dict(metrics)))


def vanilla_tis_function(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, **kwargs):
    tis = torch.exp(torch.cat(train_log_probs) - torch.cat(rollout_log_probs))
    return pg_loss * tis.clamp(args.tis_clip_low, args.tis_clip), loss_masks, {"tis": tis.clone().detach()}


def save_checkpoint(iteration, model, optimizer, opt_param_scheduler, **others):
    """Megatron's, as slime/backends/megatron_utils/model.py calls it; `model` is the folder here."""
    (model / f"iter_{iteration:07d}").mkdir(parents=True)
    (model / "latest_checkpointed_iteration.txt").write_text(str(iteration))


def train_one_step(args, rollout_id, step_id, data_iterator, model):
    """Its losses are made within it."""
    for item in data_iterator:
        integration.tis(args=args, **item)
    return {}, 0.0


@pytest.fixture
def slime(module, monkeypatch):
    for name in ("slime", "slime.observability", "slime.backends", "slime.backends.megatron_utils"):
        module(name)
    module("slime.backends.megatron_utils.model", save_checkpoint=save_checkpoint, train_one_step=train_one_step)
    for name in ("megatron", "megatron.core"):
        module(name)
    module("slime.backends.megatron_utils.loss", vanilla_tis_function=vanilla_tis_function)
    parallel = SimpleNamespace(main=True, data=(0, 1), tensor=0, pipeline=(1, 2))
    module(
        "megatron.core.mpu",
        get_pipeline_model_parallel_rank=lambda: parallel.pipeline[0],
        get_pipeline_model_parallel_world_size=lambda: parallel.pipeline[1],
        get_tensor_model_parallel_rank=lambda: parallel.tensor,
        get_data_parallel_rank=lambda with_context_parallel: parallel.data[0],
        get_data_parallel_world_size=lambda with_context_parallel: parallel.data[1],
    )
    module("slime.backends.megatron_utils.initialize", is_megatron_main_rank=lambda: parallel.main)
    half = module(
        "slime.backends.megatron_utils.cp_utils", slice_log_prob_with_cp=lambda item, total, n: item[n // 2 :]
    )
    # Private: these lists are what one process knows. A test that plays several processes has to clear them.
    monkeypatch.setattr(integration, "_trainer", trainer := [])
    monkeypatch.setattr(integration, "_rollouts", rollouts := [])
    return SimpleNamespace(
        logging_utils=module("slime.observability.logging_utils", log=log), parallel=parallel, half=half,
        trainer=trainer, rollouts=rollouts,
    )  # fmt: skip


def arguments(**others):
    known = {"use_tis": False, "tis_clip": 2.0, "tis_clip_low": 0.0, "eps_clip": 0.2, "eps_clip_high": 0.28}
    known |= {"save": None, "load": None, "num_rollout": 100, "rollout_batch_size": 8, "n_samples_per_prompt": 4}
    known |= {
        "global_batch_size": 16,
        "advantage_estimator": "grpo",
        "custom_tis_function_path": "tracker_diag_slime.tis",
        "logged": [],
    }
    return SimpleNamespace(**known | others)


def micro_batch(generator):
    """Two samples: a tool's result in the first, the second without."""
    masks = [torch.ones(n, dtype=torch.int) for n in LENGTHS]
    masks[0][4:7] = 0
    new = [torch.randn(n, generator=generator) - 2 for n in LENGTHS]
    old = [
        (item - 0.05 * torch.randn(len(item), generator=generator)) * mask
        for item, mask in zip(new, masks, strict=True)
    ]
    return {
        "pg_loss": torch.cat(new).clone().requires_grad_(),
        "train_log_probs": new,
        "rollout_log_probs": old,
        "loss_masks": masks,
        "total_lengths": [n + 5 for n in LENGTHS],
        "response_lengths": list(LENGTHS),
    }


def train(slime, args, tis, steps=3, per_rollout=1, begin=integration.before_train_step):  # noqa: PLR0917
    """As slime/backends/megatron_utils/model.py: a hook before each step, its micro-batches, then one row."""
    generator, outputs = torch.Generator().manual_seed(0), []
    for step in range(steps):
        if step % per_rollout == 0:
            rollout = {"rollout/raw_reward": 0.5, "rollout/step": step // per_rollout}
            slime.logging_utils.log(args, rollout, step_key="rollout/step")
        begin(args, step, 0, None, None, None)
        for _ in range(2):
            pg_loss, masks, _ = tis(args=args, **micro_batch(generator))
            pg_loss.sum().backward()
            outputs.append((pg_loss.detach(), masks))
        slime.logging_utils.log(args, {"train/ppo_kl": 0.01, "train/step": step}, step_key="train/step")
    return outputs


@pytest.mark.slow
def test_the_correction_comes_out_as_slimes_own(slime):
    generator = torch.Generator().manual_seed(0)
    batches = [micro_batch(generator) for _ in range(6)]
    assert same(
        train(slime, arguments(use_tis=True), integration.tis),
        [vanilla_tis_function(arguments(), **given)[:2] for given in batches],
    )


class TestConformance(SameWithUs, WatchedOnce, KnowsTheSettings, LeavesNoHook, Resumes):
    STEPS = [0, 1, 2]
    CLIP, CONFIG = (0.2, 0.28), {"eps_clip_high": 0.28}
    KEPT, ROWS = 3, (200, 196)

    @pytest.fixture(autouse=True)
    def modules(self, slime):
        self.slime = slime

    def make(self):
        return arguments()

    def attach(self, training, monitor=None):
        self.monitor = integration.attach(training, monitor=monitor)
        return self.monitor

    def train(self, training):
        losses = train(self.slime, training, integration.tis)
        self.monitor.close()  # slime says no end
        return losses, training.logged

    def plain(self):
        def own(args, *, pg_loss, loss_masks, **_):
            return pg_loss, loss_masks, {}

        training = self.make()
        return train(self.slime, training, own, begin=lambda *_: None), training.logged

    def hooked(self, training):
        return [self.slime.logging_utils.log]

    def begin(self, folder, monitor):
        self.attach(args := arguments(save=str(folder)), monitor)
        train(self.slime, args, integration.tis, steps=4, per_rollout=2)
        sys.modules["slime.backends.megatron_utils.model"].save_checkpoint(1, folder, None, None)

    def resume(self, folder, monitor):
        self.slime.trainer.clear()  # as a process that begins
        self.attach(arguments(load=str(folder)), monitor)

    def test_a_base_model_in_megatrons_form_is_nothing_to_resume(self, tmp_path, caplog):
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
        self.resume(tmp_path, monitor := Monitor())
        assert (monitor.step, caplog.messages) == (None, [])


@pytest.mark.slow
def test_tokens_and_metrics_belong_to_the_steps_of_training(slime):
    backend = CapturingTracker()
    monitor = integration.attach(arguments(), monitor=Monitor([backend]))
    args = arguments()
    train(slime, args, integration.tis, steps=4, per_rollout=2)
    assert [key for key, _ in args.logged].count("train/step") == 4
    assert monitor.step == 3
    summary = monitor.close()
    assert summary.steps == 4
    assert not +monitor.health
    result = counted(monitor, "mismatch")
    assert result["text_only"] == 4 * 2 * (4 + 7)
    assert result["post_tool"] == 4 * 2 * 5
    rewards = [0.5, None, 0.5, None]  # every second step begins a rollout
    assert [backend.own[step].get("rollout/raw_reward") for step in range(4)] == rewards


@pytest.mark.parametrize("place", [{}, {"data": (1, 2), "tensor": 1}, {"data": (1, 2), "pipeline": (0, 2)}])
def test_a_rank_that_logs_nothing_and_has_no_share_of_its_own_watches_nothing(slime, place):
    slime.parallel.main = False
    vars(slime.parallel).update(place)
    train(slime, arguments(), integration.tis)
    assert slime.trainer == [None]
    assert slime.logging_utils.log is log
    assert sys.modules["slime.backends.megatron_utils.model"].train_one_step is train_one_step


@pytest.mark.slow
def test_the_rank_that_logs_sees_what_other_ranks_train_on(slime, monkeypatch):
    store, args, ranks = torch.distributed.HashStore(), arguments(), []
    together = lambda *own: ranks.append(ThroughStore(store, *own)) or ranks[-1]  # noqa: E731
    monkeypatch.setattr(integration, "together", together)

    def one_step(rollout, step, generator):
        model = sys.modules["slime.backends.megatron_utils.model"]
        model.train_one_step(args, rollout, step, [micro_batch(generator), micro_batch(generator)], None)

    generator = torch.Generator().manual_seed(0)
    slime.parallel.data = (0, 2)
    one_step(0, 0, generator)
    slime.logging_utils.log(args, {"train/step": 0}, step_key="train/step")
    (first,) = slime.trainer
    slime.parallel.main, slime.parallel.data = False, (1, 2)
    slime.trainer.clear()
    one_step(0, 0, generator)  # it comes to be watched within the first one, whose end is then that of the next
    one_step(0, 1, generator)
    one_step(1, 0, generator)
    (second,) = slime.trainer
    second.close()
    assert not +second.health
    take_sent(ranks[0])
    slime.trainer[:] = [first]
    integration.tis(args=args, **micro_batch(generator))
    slime.logging_utils.log(args, {"train/step": 1}, step_key="train/step")
    assert counted(first, "mismatch")["post_tool"] == (2 + 1 + 3 * 2) * 5
    first.close()
    assert not +first.health


@pytest.mark.slow
def test_a_megatron_that_has_changed_costs_the_other_ranks_alone(slime, monkeypatch, caplog):
    monkeypatch.delattr(sys.modules["megatron.core.mpu"], "get_data_parallel_rank")
    train(slime, arguments(), integration.tis)
    (monitor,) = slime.trainer
    assert counted(monitor, "mismatch")["post_tool"] == 3 * 2 * 5
    assert "tokens of other ranks than the one that logs are not seen" in caplog.text


def test_of_a_part_of_the_context_the_whole_tells_what_comes_after_a_tool(slime):
    monitor = integration.attach(arguments(), monitor=Monitor())
    given = micro_batch(torch.Generator().manual_seed(1))
    for name in ("train_log_probs", "rollout_log_probs"):
        given[name] = [item[n // 2 :] for item, n in zip(given[name], LENGTHS, strict=True)]
    given["pg_loss"] = torch.cat(given["train_log_probs"])
    integration.tis(arguments(), **given)
    monitor.log({}, 0)
    result = counted(monitor, "mismatch")
    assert result["post_tool"] == 5  # of sample 0 from token 6 on: the result's last token, and five of the model
    assert result["text_only"] == 4
    assert not +monitor.health


def test_a_function_of_ones_own_is_seen_and_left_alone(slime):
    monitor = integration.attach(arguments(), monitor=Monitor())

    def mine(args, *, pg_loss, loss_masks, **kwargs):
        assert set(kwargs) == {"train_log_probs", "rollout_log_probs", "total_lengths", "response_lengths"}
        return pg_loss * 0, loss_masks, {"mine": pg_loss}

    loss, _, metrics = integration.observing(mine)(arguments(), **micro_batch(torch.Generator()))
    assert loss.abs().sum() == 0
    assert list(metrics) == ["mine"]
    assert monitor.observed


@pytest.mark.slow
@pytest.mark.parametrize("name", integration.FORMERLY)
def test_older_slime_logs_elsewhere(slime, name, monkeypatch):
    """slime/utils/tracking_utils.py in v0.2.1, slime/utils/logging_utils.py from v0.2.2 to v0.3.1: the same `log`."""
    monkeypatch.delitem(sys.modules, "slime.observability.logging_utils")
    slime.logging_utils.__name__ = name
    for other in integration.FORMERLY[1:]:  # of the older of the two releases, where it has no `log`
        monkeypatch.setitem(sys.modules, other, ModuleType(other))
    monkeypatch.setitem(sys.modules, name, slime.logging_utils)
    for package in ("slime", "slime.utils", "slime.observability"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        sys.modules[package].__path__ = []
    train(slime, arguments(), integration.tis)
    (monitor,) = slime.trainer
    assert monitor.summary().steps == 3
    assert monitor.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["initialize", "logging_utils", "log", "model", "save_checkpoint"])
def test_whatever_is_gone_is_reported_once_and_training_continues(slime, caplog, name, without):
    root = "slime.backends.megatron_utils"
    owner, place = {
        "initialize": (None, f"{root}.initialize"), "logging_utils": (None, "slime.observability.logging_utils"),
        "log": (slime.logging_utils, "log"), "model": (None, f"{root}.model"),
        "save_checkpoint": (sys.modules[f"{root}.model"], "save_checkpoint"),
    }[name]  # fmt: skip
    first = lambda: integration.tis(arguments(), **micro_batch(torch.Generator()))  # noqa: E731
    assert len(without(owner, place, first)) == 3
    assert len(train(slime, arguments(), integration.tis)) == 6
    without.reported_once(caplog.messages)
    assert (slime.trainer == [None]) == ("log" in name or name == "initialize")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["load", "eps_clip", "custom_tis_function_path"])
def test_a_setting_that_is_gone_costs_no_more_than_what_it_is_for_and_is_reported(slime, caplog, name):
    args = arguments()
    delattr(args, name)
    monitor = integration.attach(args)
    messages = {"load": ["is not a tested version"], "custom_tis_function_path": ["Set --get-mismatch-metrics"]}
    assert all(any(text in message for message in caplog.messages) for text in messages.get(name, []))
    assert len(caplog.messages) == len(messages.get(name, []))
    assert monitor.config["eps_clip_high"] == 0.28


@pytest.mark.slow
def test_a_correction_that_slime_hides_is_reported_at_the_first_loss(slime, monkeypatch):
    """v0.2.0 makes its function anew in each loss; a loss without the correction that was asked for would be worse."""
    monkeypatch.delattr(sys.modules["slime.backends.megatron_utils.loss"], "vanilla_tis_function")
    assert len(train(slime, arguments(), integration.tis)) == 6
    with pytest.raises(HookError, match="leave out --use-tis or our tis"):
        train(slime, arguments(use_tis=True), integration.tis)


def test_rollouts_that_cannot_be_watched_are_reported_and_continue(slime, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise ValueError("a rule of yours")

    monkeypatch.setattr(integration, "in_force", broken)
    for rollout in range(2):
        assert integration.log_rollout(rollout, arguments(), [], None, 5.0) is False
    assert caplog.text.count("the rollouts of this slime are not watched: ValueError: a rule of yours") == 1


@pytest.mark.slow
def test_rollouts_have_a_monitor_of_their_own_and_each_rule_one_of_the_two(slime):
    path = "tracker_diag_slime.log_rollout"
    args = arguments(custom_rollout_log_function_path=path)
    status = SimpleNamespace(value="truncated")
    samples = [SimpleNamespace(reward=1.0, status=status, response_length=4) for _ in range(4)]
    for rollout in range(3):
        assert integration.log_rollout(rollout, args, samples, {"rollout/extra": 1.0}, 5.0) is False
    (rollouts,) = slime.rollouts
    assert rollouts.summary().steps == 3
    trainer = integration.attach(args)
    own, others = ({*item.summary().blind, *item.summary().healthy} for item in (rollouts, trainer))
    assert own
    assert not own & others
    assert {rule.link for rule in in_force() if rule.id in own} == set(integration.ROLLOUT_LINKS)


def test_samples_are_counted_by_group_with_the_parts_of_their_reward(slime):
    seen = CapturingTracker()
    slime.rollouts[:] = [Monitor([seen])]
    cut, whole = SimpleNamespace(value="truncated"), SimpleNamespace(value="completed")
    right = (1.0, whole, 4)
    samples = [
        SimpleNamespace(reward={"score": score, "format": 0.5, "why": "a text"}, status=status, response_length=length,
                        group_index=group, response="I'm sorry, but I can't help with that.")
        for group, (score, status, length) in [(0, right), (0, (0.0, cut, 8)), (1, right), (1, right)]
    ]  # fmt: skip
    integration.log_rollout(3, arguments(reward_key="score"), samples, {"rollout/extra": 1.0}, 5.0)
    result = {name.removeprefix("diag/samples/"): value for name, value in seen.scalars(3).items()}
    expected = {"reward": 0.75, "response_length": 5, "truncated_share": 0.25, "zero_std_share": 0.5, "refusal_rate": 1,
                "reward_component:format": 0.5, "reward_component:score": 0.75}  # fmt: skip
    assert {name: result[name] for name in expected} == expected
    samples = [SimpleNamespace(reward=None, status=whole, response_length=4, group_index=None, response="yes")]
    integration.log_rollout(4, arguments(), samples, None, 5.0)
    assert "diag/samples/reward" not in seen.scalars(4)
    assert not slime.rollouts[0].failures
