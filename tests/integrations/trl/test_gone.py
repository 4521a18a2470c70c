"""Whatever the integration touches of TRL may be gone or raise, and losses may be replaced: training is as without us.

Real runs of a few steps on the checkpoint, without tools.
"""

import hashlib
import inspect
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.integrations.conformance import METRICS, RATIOS, SAMPLES, SameWithUs, SurvivesWhatBreaks
from tracker_diag import DiagError, Monitor
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.testing import CapturingTracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::Warning"),  # TRL's and datasets' own; ours are no warnings of Python
]

HERE = Path(__file__).parent
STEPS = 3


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(HERE)
    torch.set_num_threads(1)


def make(folder, kind=None, **settings):
    import trl
    from datasets import Dataset
    from task import CHECKPOINT, prompts, tokenizer
    from transformers import PrinterCallback, Qwen2ForCausalLM, set_seed

    def short(completion_ids, **_):
        return [float(sum(ids) % 7) for ids in completion_ids]

    set_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    model.config._name_or_path = str(CHECKPOINT)  # from where the reference is read again
    trainer = (kind or trl.GRPOTrainer)(
        model,
        args=trl.GRPOConfig(**({
            "output_dir": str(folder), "logging_steps": 1, "report_to": [], "save_strategy": "steps", "save_steps": 2,
            "bf16": False, "gradient_checkpointing": False, "use_cpu": True, "disable_tqdm": True, "seed": 0,
            "per_device_train_batch_size": 4, "num_generations": 2, "num_iterations": 2, "beta": 0.02,
            "max_completion_length": 8, "max_steps": STEPS, "learning_rate": 1e-3, "steps_per_generation": 1,
        } | settings)),
        processing_class=tokenizer(),
        reward_funcs=short,
        train_dataset=Dataset.from_list(prompts(16, tool_share=0.0)),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def trained(trainer):
    """A hash of all weights, bit by bit."""
    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps
    found = hashlib.sha256()
    for one in trainer.model.state_dict().values():
        found.update(one.contiguous().numpy().tobytes())
    return found.hexdigest()


@cache
def plain():
    return trained(make(tempfile.mkdtemp()))


def counts(monitor):
    table = monitor.slices_table()
    at = table.columns.index
    return {row[at("pair")]: row[at("count")] for row in table.rows if row[at("slice")] == "all"}


TOUCHED = {
    # What is touched, and what is lost without it. Of most it is a setting, the state, or what guards do.
    "GRPOTrainer._get_per_token_logps_and_entropies": {RATIOS},
    "GRPOTrainer._compute_loss": {RATIOS},
    "GRPOTrainer._generate_and_score_completions": {SAMPLES},
    "GRPOTrainer._calculate_rewards": {SAMPLES},
    "GRPOTrainer._step": {RATIOS},
    "GRPOTrainer.state": {RATIOS},
    "GRPOTrainer.args": {RATIOS},
    "GRPOTrainer.processing_class": {RATIOS, SAMPLES},
    "GRPOTrainer.callback_handler": set(),
    "GRPOTrainer.beta": set(),
    "GRPOTrainer.model": {SAMPLES},
    "GRPOTrainer.accelerator": {SAMPLES},
    "GRPOTrainer.reward_func_names": {SAMPLES},
    "GRPOTrainer.reward_weights": {SAMPLES},
    "GRPOTrainer.num_generations": {SAMPLES},
    "GRPOTrainer.eval_dataset": set(),
    "GRPOTrainer.is_world_process_zero": set(),
    "GRPOConfig.to_dict": set(),
    "GRPOConfig.steps_per_generation": {RATIOS},
    "GRPOConfig.num_iterations": {RATIOS},
    "GRPOConfig.gradient_accumulation_steps": {RATIOS},
    "GRPOConfig.beta": set(),
    "GRPOConfig.epsilon": set(),
    "GRPOConfig.output_dir": set(),
    "GRPOConfig.process_index": set(),
    "TrainerState.global_step": {METRICS, RATIOS},
    "TrainerState.is_world_process_zero": set(),
    "TrainerState.max_steps": set(),
    "TrainerControl.should_save": set(),
    "TrainerControl.should_evaluate": set(),
    "TrainerControl.should_training_stop": set(),
}

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
    monitor.add(kept)
    return monitor, kept


def watched(trainer):
    """Attach and train: the weights, what is lost, and the monitor."""
    monitor, kept = begin(trainer)
    return trained(trainer), lost(monitor, kept), monitor


def lost(monitor, kept):
    found = {METRICS} if len(kept.own) < STEPS else set()
    found |= set() if {"policy", "reference"} <= counts(monitor).keys() else {RATIOS}
    return found | (set() if any("diag/samples/reward" in kept.scalars(step) for step in kept.records) else {SAMPLES})


def test_with_all_in_place_nothing_is_lost(tmp_path, caplog):
    weights, found, monitor = watched(make(tmp_path))
    assert (weights, found, monitor.failures) == (plain(), set(), [])


class TestConformance(SameWithUs, SurvivesWhatBreaks):
    STEPS = [1, 2, 3]
    TOUCHED, OPTIONAL, RAISING = TOUCHED, OPTIONAL, RAISES
    BY_DAY = {"GRPOTrainer._compute_loss", "GRPOTrainer.beta"}
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
        from tracker_diag_trl.callback import DiagnosticsCallback
        from tracker_diag_trl.rows import Rows
        from tracker_diag_trl.samples import CompletionSamples
        from tracker_diag_trl.tensors import GrpoTensors

        return [DiagnosticsCallback, GrpoTensors, Rows, CompletionSamples, Guarded]

    def owner(self, kind):
        import transformers
        import trl

        return getattr(trl, kind, None) or getattr(transformers, kind)

    def lost(self, training):
        return lost(*self.seen)


def test_a_loss_that_passes_on_whatever_it_is_given_is_seen(tmp_path, caplog):
    import trl

    class Passing(trl.GRPOTrainer):
        def _compute_loss(self, *args, **kwargs):
            return super()._compute_loss(*args, **kwargs)

        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    weights, found, monitor = watched(make(tmp_path, Passing))
    assert (weights, found, monitor.failures) == (plain(), set(), [])
    assert not [one for one in caplog.messages if "than was tested" in one]


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


def test_of_unsloths_trainer_it_is_named_what_is_not_seen_and_the_rest_is(tmp_path, caplog):
    weights, found, monitor = watched(make(tmp_path, copy_of_unsloth(own_loss)))
    assert (weights, found, monitor.failures) == (plain(), {RATIOS}, [])
    assert len([one for one in caplog.messages if "Unsloth's GRPO makes its loss in a kernel" in one]) == 1
    assert algorithm_of(monitor.config) == "grpo"


def test_of_a_trainer_whose_loss_somebody_has_replaced_it_is_said_after_five_steps(tmp_path, caplog):
    import trl

    class Own(trl.GRPOTrainer):
        compute_loss = own_loss

    _, found, _ = watched(make(tmp_path, Own, max_steps=7))
    (said,) = [one for one in caplog.messages if "no tensors have come of" in one]
    assert said.startswith("5 steps were logged, and no tensors have come of: policy")
    assert found == {RATIOS}


def test_attached_twice_it_is_watched_once_and_after_a_training_by_another_monitor(tmp_path, caplog):
    from tracker_diag_trl import attach

    trainer = make(tmp_path)
    monitor = attach(trainer)
    assert attach(trainer) is attach(trainer, monitor=monitor) is monitor
    with pytest.raises(DiagError, match="monitor: another one given"):
        attach(trainer, monitor=Monitor())
    assert trained(trainer) == plain()
    assert monitor.failures == []
    again = attach(trainer)
    trainer.train()
    assert again is not monitor
    assert counts(again)["reference"] == counts(monitor)["reference"]
    assert "_compute_loss" not in vars(trainer)  # no hook stays


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
    assert "reference" in counts(monitor)


def test_an_evaluation_alone_is_as_without_us(tmp_path):
    from tracker_diag_trl import attach

    def measured(trainer):
        return {name: one for name, one in trainer.evaluate(trainer.train_dataset).items() if "loss" in name}

    trainer = make(tmp_path, per_device_eval_batch_size=4)
    monitor = attach(trainer)
    assert measured(trainer) == measured(make(tmp_path, per_device_eval_batch_size=4))
    assert monitor.failures == []
    assert counts(monitor) == {}
