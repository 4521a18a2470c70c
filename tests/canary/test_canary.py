"""The canary: faults of a weight sync are found by its third check, health is silent, and training is as without it."""

import random
import sys
import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tracker_diag as td
from tracker_diag.canary import Canary, scores_of_model, scores_of_sglang, scores_of_vllm
from tracker_diag.errors import DiagError
from tracker_diag.testing import CapturingTracker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # PEFT's
]

VOCABULARY, EVERY, STEPS = 64, 3, 25
"""A rule waits 20 steps for series that may still come, as that of an adapter."""
SEQUENCES = np.random.default_rng(0).integers(0, VOCABULARY, (8, 24)).tolist()


def model(**settings):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, **shape, **settings)
    return Qwen2ForCausalLM(config)


class LLM:
    """What vLLM's class of this name does with `prompt_logprobs`, over a model of transformers."""

    def __init__(self, weights):
        self.weights, self.adapters = weights, None

    def generate(self, prompts, params, *, use_tqdm, lora_request=None):
        assert (params.max_tokens, params.temperature, params.prompt_logprobs, use_tqdm) == (1, 0.0, 0, False)
        serving = self.adapters if lora_request and self.adapters else self.weights
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        return [
            SimpleNamespace(prompt_logprobs=[None, *self.places(tokens, values)])
            for tokens, values in zip(ids, scores_of_model(serving)(ids), strict=True)
        ]

    def places(self, tokens, values):
        return [{token: SimpleNamespace(logprob=value)} for token, value in zip(tokens[1:], values, strict=True)]


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))


def copied(source, to, only=""):
    state = {name: value for name, value in source.state_dict().items() if only in name}
    to.load_state_dict(state, strict=False)


class Sync:
    """Carries weights from a trainer to an engine, as well as its fault allows."""

    def __init__(self, fault, trainer, engine):
        self.fault, self.trainer, self.engine, self.before = fault, trainer, engine, deepcopy(trainer)

    def __call__(self):
        if self.fault == "late":
            copied(self.before, self.engine)
            copied(self.trainer, self.before)
        elif self.fault != "dropped":
            copied(self.trainer, self.engine, only="layers.0." if self.fault == "shard" else "")


def trained(trainer, monitor, sync, steps):
    """The weights after `steps` of SGD with dropout, from random states that the canary must not move."""
    optimizer = torch.optim.SGD([p for p in trainer.parameters() if p.requires_grad], lr=0.3)
    trainer.train()
    for step in range(steps):
        sync()
        monitor.synced()
        batch = torch.randint(0, VOCABULARY, (4, 16))
        loss = trainer(input_ids=batch, labels=batch).loss * (1 + random.random()) * (1 + np.random.rand())  # noqa: NPY002
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log({"loss": float(loss.detach())}, step)
    return torch.cat([p.detach().reshape(-1) for p in trainer.parameters()])


def run(fault, kind="model", *, steps=2 * EVERY + 1, watched=True, noise=0.0):
    from transformers import set_seed

    set_seed(0)
    trainer = model(attention_dropout=0.1)
    engine = deepcopy(trainer)
    monitor = td.Monitor([tracker := CapturingTracker()])
    base = None
    if kind == "adapter":
        from peft import LoraConfig, get_peft_model

        trainer = get_peft_model(trainer, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_alpha=32))
        llm, base = LLM(engine), scores_of_model(trainer, adapter=False)
        llm.adapters = None if fault == "adapter" else deepcopy(trainer)
        sync, sampler = Sync(fault, trainer, llm.adapters or deepcopy(trainer)), scores_of_vllm(llm, lora_request=1)
    else:
        sync = Sync(fault, trainer, engine)
        sampler = scores_of_vllm(LLM(engine)) if kind == "vllm" else scores_of_model(engine)
    if noise:
        exact, drawn = sampler, np.random.default_rng(1)
        sampler = lambda ids: [np.minimum(0, s + drawn.normal(0, noise, len(s))) for s in map(np.array, exact(ids))]  # noqa: E731
    if watched:
        Canary(monitor, SEQUENCES, trainer=scores_of_model(trainer), sampler=sampler, base=base, every=EVERY)
    return trained(trainer, monitor, sync, steps), monitor.summary(), tracker


FAULTS = {
    "dropped": {"first_weights", "part_missing"},
    "late": {"version_behind"},
    "shard": {"part_missing"},
    "adapter": {"adapter_not_applied"},
}


@pytest.mark.by_day("dropped-vllm", "late-model", "shard-vllm", "adapter-adapter")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [(fault, kind) for fault in ("dropped", "late", "shard") for kind in ("model", "vllm")]
    + [("adapter", "adapter"), ("dropped", "adapter")],
)
def test_a_fault_is_found_and_named_by_the_third_check(vllm, fault, kind):
    _, summary, _ = run(fault, kind)
    (finding,) = [finding for finding in summary.findings if finding.rule.id == "FRE007"]
    assert finding.fired <= 2 * EVERY
    assert {reading.signal for reading in finding.evidence if reading.holds} >= FAULTS[fault]


@pytest.mark.by_day("vllm")
@pytest.mark.parametrize("kind", ["model", "vllm", "adapter"])
def test_a_healthy_engine_is_silent(vllm, kind):
    _, summary, tracker = run("", kind, steps=STEPS)
    assert "FRE007" in summary.healthy
    written = tracker.scalars(STEPS - 1)
    assert written["diag/canary/weights_arrived"] > 0.99
    assert written["diag/canary/weights_behind"] < 0.01
    assert written["diag/canary/canary_difference"] < 1e-5


def test_a_sampler_of_low_precision_is_silent_and_a_stale_one_is_found_all_the_same():
    assert "FRE007" in run("", steps=STEPS, noise=0.03)[1].healthy
    assert "FRE007" in {finding.rule.id for finding in run("dropped", noise=0.03)[1].findings}


def test_training_is_bit_equal_with_and_without_a_canary():
    (with_canary, _, tracker), (without, _, _) = run(""), run("", watched=False)
    assert tracker.scalars(EVERY)["diag/canary/weights_arrived"]
    assert torch.equal(with_canary, without)


def drifting(step):
    """What a model gives whose weights move on from step to step."""
    return lambda ids: [-1 - 0.1 * step() * np.linspace(0, 1, len(item) - 1) for item in ids]


def checked(sampler, *, checks=4, **settings):
    """The monitor of a canary with `sampler`, after so many checks."""
    clock, monitor = {"step": 0}, td.Monitor([tracker := CapturingTracker()])
    Canary(monitor, SEQUENCES, trainer=drifting(lambda: clock["step"]), sampler=sampler(clock), **settings)
    for step in range(checks):
        clock["step"] = step
        monitor.synced()
        monitor.log({"loss": 1.0}, step)
    return monitor, tracker


def test_a_sampler_that_is_behind_on_purpose_is_silent():
    def behind(by):
        return lambda clock: drifting(lambda: max(clock["step"] - by, 0))

    for lag, by, healthy in ((2, 2, True), (2, 1, True), (2, 3, False), (0, 1, False)):
        monitor, _ = checked(behind(by), checks=STEPS, every=1, lag=lag)
        assert ("FRE007" in monitor.summary().healthy) == healthy


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda ids: [[-1.0] * len(item) for item in ids],
            "192 scores given, expected 184; do both have one tokenizer?",
        ),
        (lambda ids: [[float("nan")] * (len(item) - 1) for item in ids], "NaN, infinite or above 0"),
        (lambda ids: [[0.5] * (len(item) - 1) for item in ids], "NaN, infinite or above 0"),
        (lambda ids: 1 / 0, "ZeroDivisionError"),
        (lambda ids: None, "TypeError"),
    ],
)
def test_an_engine_that_is_down_or_answers_nonsense_is_counted_and_raises_nothing(answer, message):
    monitor, tracker = checked(lambda clock: answer, every=1)
    assert monitor.health["canary_errors"] == 4
    assert message in monitor.failures[0]
    assert tracker.scalars(3)["diag/health/canary_errors"] == 4
    assert "FRE007" not in monitor.summary().healthy


def test_a_slow_engine_is_asked_less_and_less():
    def slow(clock):
        def score(ids):
            asked.append(clock["step"])
            time.sleep(0.002)
            return drifting(lambda: clock["step"])(ids)

        return score

    asked = []
    monitor, _ = checked(slow, checks=20, every=1, seconds=0.001)
    assert asked == [0, 1, 2, 4, 8, 16]
    assert monitor.health["canary_late"] == 5


def test_sglang_is_asked_for_the_log_probabilities_of_its_input():
    class Engine:
        def generate(self, *, input_ids, sampling_params, return_logprob, logprob_start_len):
            assert (sampling_params["max_new_tokens"], return_logprob, logprob_start_len) == (0, True, 0)
            places = [
                [(None, input_id[0], None), *((-0.5, token, None) for token in input_id[1:])] for input_id in input_ids
            ]
            return [{"meta_info": {"input_token_logprobs": place}} for place in places]

    assert scores_of_sglang(Engine())([[1, 2, 3], [4, 5]]) == [[-0.5, -0.5], [-0.5]]


def test_a_wrong_canary_is_refused_at_once():
    score = drifting(lambda: 0)
    for sequences, settings in ((SEQUENCES[:1], {}), (SEQUENCES, {"every": 0}), (SEQUENCES, {"lag": -1})):
        with pytest.raises(DiagError, match=r"given[,;] expected"):
            Canary(td.Monitor(), sequences, trainer=score, sampler=score, **settings)
