"""Whatever the integration touches of TRL may be gone or raise, and losses may be replaced: training is as without us.

Real runs of a few steps on the checkpoint, without tools.
"""

import inspect
import sys
import tempfile
from functools import cache

import pytest

from tests.integrations.conformance import (
    METRICS,
    RATIOS,
    SAMPLES,
    SameWithUs,
    SurvivesWhatBreaks,
    WatchedOnce,
    counted,
)
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.testing import CapturingTracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::Warning"),  # TRL's and datasets' own; ours are no warnings of Python
]
STEPS = 3


def make(folder, kind=None, **settings):
    import trl
    from datasets import Dataset
    from task import prompts
    from train import grpo

    def short(completion_ids, **_):
        return [float(sum(ids) % 7) for ids in completion_ids]

    more = {"reward_funcs": short, "train_dataset": Dataset.from_list(prompts(16, tool_share=0.0))}
    quick = {"save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4, "num_generations": 2,
             "num_iterations": 2, "beta": 0.02, "max_completion_length": 8, "max_steps": STEPS,
             "learning_rate": 1e-3}  # fmt: skip
    return grpo(folder, kind=kind or trl.GRPOTrainer, tools=False, more=more, **quick | settings)


def trained(trainer):
    from train import weights

    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps
    return weights(trainer)


@cache
def plain():
    return trained(make(tempfile.mkdtemp()))


TOUCHED = {
    "GRPOTrainer.processing_class": {RATIOS, SAMPLES}, "TrainerState.global_step": {METRICS, RATIOS},
    **dict.fromkeys((
        "GRPOTrainer._get_per_token_logps_and_entropies", "GRPOTrainer._compute_loss", "GRPOTrainer._step",
        "GRPOTrainer.state", "GRPOTrainer.args", "GRPOConfig.steps_per_generation", "GRPOConfig.num_iterations",
        "GRPOConfig.gradient_accumulation_steps",
    ), frozenset({RATIOS})),
    **dict.fromkeys((
        "GRPOTrainer._generate_and_score_completions", "GRPOTrainer._calculate_rewards", "GRPOTrainer.model",
        "GRPOTrainer.accelerator", "GRPOTrainer.reward_func_names", "GRPOTrainer.reward_weights",
        "GRPOTrainer.num_generations",
    ), frozenset({SAMPLES})),
    **dict.fromkeys((
        "GRPOTrainer.callback_handler", "GRPOTrainer.beta", "GRPOTrainer.eval_dataset",
        "GRPOTrainer.is_world_process_zero", "GRPOConfig.to_dict", "GRPOConfig.beta", "GRPOConfig.epsilon",
        "GRPOConfig.output_dir", "GRPOConfig.process_index", "TrainerState.is_world_process_zero",
        "TrainerState.max_steps", "TrainerControl.should_save", "TrainerControl.should_evaluate",
        "TrainerControl.should_training_stop",
    ), frozenset()),
}  # fmt: skip
"""What is touched, and what is lost without it. Of most it is a setting, the state, or what guards do."""

OPTIONAL = {"GRPOTrainer.eval_dataset", "GRPOTrainer.is_world_process_zero"}
"""What not each trainer or release has: where it is not there, nothing is said. That it raises is said."""

RAISES = (
    "GRPOTrainer._step", "GRPOTrainer.beta", "GRPOTrainer.model", "GRPOConfig.output_dir", "TrainerState.global_step",
    "TrainerControl.should_save",
)  # fmt: skip
"""Of these it is tried too that they raise something else, in training."""


def begin(trainer, monitor=None):
    """Attach, and keep what is seen."""
    from tracker_diag_trl import attach

    monitor, kept = attach(trainer, monitor=monitor), CapturingTracker()
    monitor.add_tracker(kept)
    return monitor, kept


def watched(trainer):
    """Attach and train: the weights, what is lost, and the monitor."""
    monitor, kept = begin(trainer)
    return trained(trainer), lost(monitor, kept), monitor


def lost(monitor, kept):
    result = {METRICS} if len(kept.own) < STEPS else set()
    result |= set() if counted(monitor, "policy") and counted(monitor, "reference") else {RATIOS}
    return result | (set() if any("diag/samples/reward" in kept.scalars(step) for step in kept.records) else {SAMPLES})


class TestConformance(SameWithUs, WatchedOnce, SurvivesWhatBreaks):
    STEPS = [1, 2, 3]
    TOUCHED, OPTIONAL, RAISING = TOUCHED, OPTIONAL, RAISES
    BY_DAY = {"GRPOTrainer.beta"}
    WHILE_ATTACHING = True

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path

    def make(self):
        return make(self.path)

    def attach(self, training, monitor=None):
        self.seen = begin(training, monitor)
        return self.seen[0]

    def train(self, training):
        return trained(training)

    def plain(self):
        return plain()

    def ours(self):
        from tracker_diag_transformers.guarded import Guarded
        from tracker_diag_transformers.trainer import Watching
        from tracker_diag_trl.callback import DiagnosticsCallback
        from tracker_diag_trl.rows import Rows
        from tracker_diag_trl.samples import CompletionSamples
        from tracker_diag_trl.tensors import GrpoTensors

        return [Watching, DiagnosticsCallback, GrpoTensors, Rows, CompletionSamples, Guarded]

    def owner(self, kind):
        import transformers
        import trl

        return getattr(trl, kind, None) or getattr(transformers, kind)

    def lost(self, training):
        return lost(*self.seen)


@pytest.mark.nightly
def test_a_loss_that_passes_on_whatever_it_is_given_is_seen(tmp_path, caplog):
    import trl

    class Passing(trl.GRPOTrainer):
        def _compute_loss(self, *args, **kwargs):
            return super()._compute_loss(*args, **kwargs)

        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    weights, result, monitor = watched(make(tmp_path, Passing))
    assert (weights, result, monitor.failures) == (plain(), set(), [])
    assert not [message for message in caplog.messages if "is not a tested version" in message]


def copy_of_unsloth(loss):
    """TRL's GRPO as Unsloth makes it: the source under another name, a subclass, and a `compute_loss` of its own."""
    import trl

    source = inspect.getsource(trl.GRPOTrainer).replace("class GRPOTrainer", "class _UnslothGRPOTrainer", 1)
    place = {**vars(sys.modules[trl.GRPOTrainer.__module__]), "__name__": "UnslothGRPOTrainer"}
    exec(source, place)  # noqa: S102

    class UnslothGRPOTrainer(place["_UnslothGRPOTrainer"]):
        compute_loss = loss

    return UnslothGRPOTrainer


def own_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
    """As where a kernel makes the loss: by no function of the trainer's that is looked at."""
    return type(self)._compute_loss(self, model, inputs)


@pytest.mark.nightly
def test_of_unsloths_trainer_it_is_named_what_is_not_seen_and_the_rest_is(tmp_path, caplog):
    weights, result, monitor = watched(make(tmp_path, copy_of_unsloth(own_loss)))
    assert (weights, result, monitor.failures) == (plain(), {RATIOS}, [])
    assert len([message for message in caplog.messages if "Unsloth's GRPO makes its loss in a kernel" in message]) == 1
    assert algorithm_of(monitor.config) == "grpo"


def test_of_a_trainer_whose_loss_somebody_has_replaced_it_is_said_after_five_steps(tmp_path, caplog):
    import trl

    class Own(trl.GRPOTrainer):
        compute_loss = own_loss

    _, result, _ = watched(make(tmp_path, Own, max_steps=7))
    (text,) = [message for message in caplog.messages if "no tensors have come of" in message]
    assert text.startswith("5 steps were logged, and no tensors have come of: policy")
    assert result == {RATIOS}


@pytest.mark.nightly
def test_attached_after_a_training_the_next_one_is_watched_by_another_monitor(tmp_path):
    from tracker_diag_trl import attach

    trainer = make(tmp_path)
    monitor = attach(trainer)
    assert trained(trainer) == plain()
    again = attach(trainer)
    trainer.train()
    assert again is not monitor
    assert counted(again, "reference") == counted(monitor, "reference")
    assert "_compute_loss" not in vars(trainer)  # no hook stays


@pytest.mark.nightly
def test_attached_amid_training_it_sees_what_comes_then(tmp_path):
    from tracker_diag_trl import attach
    from transformers import TrainerCallback

    monitors = []

    class Late(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                monitors.append(attach(trainer))

    trainer = make(tmp_path)
    trainer.add_callback(Late())
    assert trained(trainer) == plain()
    (monitor,) = monitors
    assert monitor.failures == []
    assert monitor.summary().first_step == 2
    assert counted(monitor, "reference")


@pytest.mark.nightly
def test_an_evaluation_alone_is_as_without_us(tmp_path):
    from tracker_diag_trl import attach

    def measured(trainer):
        return {name: item for name, item in trainer.evaluate(trainer.train_dataset).items() if "loss" in name}

    trainer = make(tmp_path, per_device_eval_batch_size=4)
    monitor = attach(trainer)
    assert measured(trainer) == measured(make(tmp_path, per_device_eval_batch_size=4))
    assert monitor.failures == []
    assert not monitor.slices_table().rows
