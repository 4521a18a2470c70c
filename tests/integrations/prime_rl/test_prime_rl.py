import asyncio
import json
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_prime_rl as integration

from tests.integrations.conformance import Resumes, SameWithUs, SurvivesWhatIsGone, WatchedOnce, counted
from tests.tensors.rank import take_sent
from tracker_diag import Monitor, ThroughStore
from tracker_diag.errors import SourceError
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.tokens.log import read_tokens

pytestmark = pytest.mark.nightly  # with stand-ins of its modules; by day ROLL alone is tried so

WIDTH = 40


def rollout(rng, step):
    """A sequence of two turns with a tool's result between them; its tail after the result grows from step 40 on."""
    mask = np.zeros(WIDTH, bool)
    mask[6:18] = mask[24:38] = True  # prompt, turn, result, turn, and a line's end that nobody trains on
    after = np.arange(WIDTH) >= 24
    new = rng.uniform(-3, -0.1, WIDTH)
    old = new - rng.normal(0, np.where(after, 0.02 * (1 + max(step - 40, 0) / 8), 0.02))
    return mask, new, old


def record(step, number, mask, new, old, **other):
    n = len(mask)
    ratio = np.exp(new - old)
    nothing = [None] * n
    columns = {
        "token_ids": [1] * n,
        "position_ids": list(range(n)),
        "loss_mask": mask.tolist(),
        "advantages": [0.5 if number % 2 else -0.5] * n,
        "inference_logprobs": old.tolist(),
        "trainer_logprobs": new.tolist(),
        "entropy": [0.3] * n,
        "mismatch_kl": nothing,
        "log_importance_ratio": (new - old).tolist(),
        "importance_ratio": ratio.tolist(),
        "prob_delta": nothing,
        "is_masked": (ratio > 1.05).tolist(),
        "is_masked_high": nothing,
        "is_masked_low": nothing,
        "rl_weights": nothing,
        "ce_weights": nothing,
        "ref_kl_weights": nothing,
    }
    head = {"schema_version": 1, "step": step, "rank": 0, "micro_step": 0, "micro_sequence_idx": 0}
    return head | {"export_sequence_idx": number, "env_name": "shop"} | columns | other


def write(root, step, records, rank=0, stable=True):
    folder = root / "token_exports" / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank_{rank}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in records))
    if stable:
        (folder / "STABLE").touch()


def test_a_step_is_read_rank_by_rank_with_its_labels(tmp_path, rng):
    first, second = (rollout(rng, 0) for _ in range(2))
    write(tmp_path, 3, [record(3, 0, *first)], rank=0)
    write(tmp_path, 3, [record(3, 1, *second, env_name=None)], rank=10)
    write(tmp_path, 12, [record(12, 0, *first)])
    write(tmp_path, 4, [record(4, 0, *first)], stable=False)  # still being written
    steps = dict(read_tokens(tmp_path))
    assert list(steps) == [3, 12]
    results = steps[3]
    np.testing.assert_array_equal(results["model_mask"], [*first[0], *second[0]])
    np.testing.assert_array_equal(results["sequence_ids"], [0] * WIDTH + [1] * WIDTH)
    np.testing.assert_allclose(results["old_logprobs"], [*first[1], *second[1]], rtol=1e-6)
    np.testing.assert_allclose(results["rollout_logprobs"], [*first[2], *second[2]], rtol=1e-6)
    np.testing.assert_array_equal(results["advantages"], [-0.5] * WIDTH + [0.5] * WIDTH)
    ratio = np.exp(np.array([*first[1], *second[1]]) - [*first[2], *second[2]])
    np.testing.assert_allclose(results["applied_weights"], np.where(ratio > 1.05, 0, ratio), rtol=1e-5)
    assert results["env"] == ["shop", ""]


def test_a_sample_whose_prompt_continues_from_anothers_begins_after_a_tool(tmp_path, rng):
    """Two rollouts of a task; the second one's prefix breaks, and its next turn is a sample of its own."""
    _, new, old = rollout(rng, 0)
    task, turn, result = [5, 6, 7], [20, 21, 22, 23], [30, 31]
    mask = np.array([0, 0, 0, 1, 1, 1, 1], bool)
    whole = record(0, 0, mask, new[:7], old[:7], token_ids=[*task, *turn])
    longer = np.array([0] * 9 + [1] * 3, bool)
    later = record(0, 1, longer, new[:12], old[:12], token_ids=[*task, *turn, *result, 40, 41, 42])
    other = record(0, 2, mask, new[:7], old[:7], token_ids=[5, 6, 8, *turn])
    write(tmp_path, 0, [later, whole, whole, other])
    ((_, results),) = read_tokens(tmp_path)
    assert results["begins_after_tool"] == [True, False, False, False]
    monitor = Monitor()
    monitor.observe(**results)
    monitor.log({}, 0)
    tokens = counted(monitor, "mismatch")
    assert (tokens["all"], tokens["text_only"], tokens["post_tool"]) == (15, 12, 3)


def test_tokens_of_a_frozen_model_are_neither_the_policys_nor_a_tools(tmp_path, rng):
    mask, new, old = rollout(rng, 0)
    weights = np.where(np.arange(WIDTH) < 20, 0.0, 1.0)  # the first turn is another model's
    write(tmp_path, 0, [record(0, 0, mask, new, old, rl_weights=weights.tolist())])
    write(tmp_path, 1, [record(1, 0, mask, new, old, rl_weights=[0.0] * WIDTH)])
    ((step, results),) = read_tokens(tmp_path)
    assert step == 0
    np.testing.assert_array_equal(results["model_mask"], mask & (weights == 1))
    assert not (results["response_mask"] & mask & (weights == 0)).any()
    monitor = Monitor()
    monitor.observe(**results)  # the second turn is the policy's first
    monitor.log({}, 0)
    tokens = counted(monitor, "mismatch")
    assert (tokens["all"], tokens["text_only"], tokens["post_tool"]) == (14, 14, 0)


def test_what_could_not_be_scored_is_nan_and_not_zero(tmp_path, rng):
    mask, new, old = rollout(rng, 0)
    given = record(0, 0, mask, new, old)
    given["inference_logprobs"][30] = None
    write(tmp_path, 0, [given])
    ((_, results),) = read_tokens(tmp_path)
    assert np.isnan(results["rollout_logprobs"]).nonzero()[0].tolist() == [30]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, r"rank_0\.jsonl:1: schema_version 2 given, expected 1"),
        ({"loss_mask": None}, r"rank_0\.jsonl:1: no list loss_mask"),
        ({"advantages": [1.0]}, r"rank_0\.jsonl:1: columns of different lengths, expected 40 values in each"),
    ],
)
def test_a_record_that_cannot_be_used_is_reported(tmp_path, rng, change, message):
    write(tmp_path, 0, [record(0, 0, *rollout(rng, 0)) | change])
    with pytest.raises(SourceError, match=message):
        list(read_tokens(tmp_path))


def test_a_broken_line_and_a_folder_without_a_complete_step_are_reported(tmp_path):
    write(tmp_path, 0, [], stable=False)
    with pytest.raises(SourceError, match="no complete step"):
        list(read_tokens(tmp_path))
    write(tmp_path, 0, [])
    (tmp_path / "token_exports/step_0/rank_0.jsonl").write_text('{"schema_version": 1,')
    with pytest.raises(SourceError, match=r"rank_0\.jsonl:1: no JSON"):
        list(read_tokens(tmp_path))


# Signatures as in PrimeIntellect-ai/prime-rl at 559b447: src/prime_rl/monitors/base.py, monitors/__init__.py,
# src/prime_rl/trainer/rl/loss.py (LossInputs, default_loss_fn), prime_rl/configs/trainer.py (DefaultLossConfig).
class Base(ABC):
    def __init__(self, config):
        self.config = config

    async def log(self, data, step, kind="train", subset="effective"):
        if isinstance(data, dict):
            await self.log_metrics(data, step=step)
        else:
            await self.log_episodes(data, step=step, kind=kind, subset=subset)

    @abstractmethod
    async def log_metrics(self, metrics, step): ...

    @abstractmethod
    async def log_episodes(self, episodes, step, kind, subset): ...

    async def finalize(self):
        self.config = None


@dataclass
class LossInputs:
    trainer_logprobs: torch.Tensor
    inference_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    loss_mask: torch.Tensor
    loss_weights: torch.Tensor | None = None


@dataclass
class DefaultLossConfig:
    kl_tau: float = 1e-3


def default_loss_fn(inputs, loss_config):
    ratio = torch.exp(inputs.trainer_logprobs - inputs.inference_logprobs)
    loss = -(ratio * inputs.advantages)[inputs.loss_mask].sum() * loss_config.kl_tau
    return SimpleNamespace(loss=loss, metrics={})


# src/prime_rl/trainer/rl/data.py (DataLoader.get_batch, TensorMicroBatch), src/prime_rl/trainer/ckpt.py.
class DataLoader:
    def __init__(self, output_dir, start_step, dp_world_size, config):
        self.batches = []

    def get_batch(self):
        return self.batches


class CheckpointManager:
    def __init__(self, folder):
        self.folder = folder

    def get_ckpt_path(self, step):
        return self.folder / f"step_{step}" / "trainer"

    def save(self, step, model, optimizers, scheduler, progress, dataloader=None):  # noqa: PLR0917
        self.get_ckpt_path(step).mkdir(parents=True)

    def load(self, step, model, optimizers, scheduler, progress, dataloader=None, path=None): ...  # noqa: PLR0917


TASK, TURN, RESULT = [5, 6, 7, 8, 9, 10], [20] * 12, [30] * 6
"""A prompt, and what follows it in `rollout`: with both, the prompt of another sample of it."""


def micro_batch(prompts):
    """Sequences of WIDTH tokens, packed as prime-rl packs them; each is trained on after its prompt."""
    ids = [[*prompt, *[40] * (WIDTH - len(prompt))] for prompt in prompts]
    mask = [[False] * len(prompt) + [True] * (WIDTH - len(prompt)) for prompt in prompts]
    packed = {"input_ids": torch.tensor(ids).reshape(1, -1), "loss_mask": torch.tensor(mask).reshape(1, -1)}
    return packed | {"sequence_lengths": [WIDTH] * len(prompts)}


@pytest.fixture
def process(monkeypatch):
    """What this process knows, which a test that plays several processes clears."""
    monkeypatch.setattr(integration, "_process", watched := [])
    monkeypatch.setattr(integration, "_trainer", trainer := integration._Trainer())  # private: as it begins
    return SimpleNamespace(watched=watched, trainer=trainer, ranks=[])


@pytest.fixture
def prime_rl(module, process):
    for name in ("prime_rl", "prime_rl.configs", "prime_rl.trainer", "prime_rl.trainer.rl"):
        module(name)
    module("prime_rl.configs.trainer", DefaultLossConfig=DefaultLossConfig)
    module("prime_rl.trainer.rl.loss", default_loss_fn=default_loss_fn)
    module("prime_rl.trainer.rl.data", DataLoader=type("DataLoader", (DataLoader,), {}))
    module("prime_rl.trainer.ckpt", CheckpointManager=type("CheckpointManager", (CheckpointManager,), {}))
    process.trainer.hook_trainer()  # as when prime-rl imports our loss
    return module("prime_rl.monitors", Monitor=Base, MONITORS=[])


def load(prompts=4 * [TASK], same=1):
    """The loader gives the next step's samples, the same ones to `same` ranks that follow one another."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    loader = sys.modules["prime_rl.trainer.rl.data"].DataLoader(None, 0, max(world // same, 1), None)
    loader.batches = [micro_batch(prompts[:2]), micro_batch(prompts[2:])]
    assert loader.get_batch() is loader.batches


# Signatures as in v0.6.0, v0.7.0 and v0.8.0: src/prime_rl/utils/monitor/__init__.py (get_monitor), .../base.py; the
# train loop logs on each rank, and closes no monitor.
class Released:
    def __init__(self):
        self.logged = []

    def log(self, metrics, step):
        self.logged.append((step, dict(metrics)))

    def close(self):
        self.logged.append("closed")


@pytest.fixture
def released(prime_rl, monkeypatch):
    """prime-rl as released: no `prime_rl.monitors`, one monitor a process."""
    monkeypatch.delitem(sys.modules, "prime_rl.monitors")
    monkeypatch.setattr(sys.modules["prime_rl"], "__path__", [], raising=False)
    item, made = Released(), ModuleType("prime_rl.utils.monitor")

    def get_monitor():
        if made.monitor is None:
            raise RuntimeError("Monitor not initialized. Please call `setup_monitor` first.")
        return made.monitor

    made.monitor, made.get_monitor = item, get_monitor
    monkeypatch.setitem(sys.modules, "prime_rl.utils", ModuleType("prime_rl.utils"))
    monkeypatch.setitem(sys.modules, "prime_rl.utils.monitor", made)
    return made


def train_released(released, rng, steps):
    """As src/prime_rl/trainer/rl/train.py of v0.8.0."""
    losses = []
    for step in range(steps):
        load()
        losses += [sequence(rng, number) for number in range(4)]
        for metrics in ({"perf/throughput": 5.0, "step": step}, {"optim/lr": 1e-5, "step": step}):
            if released.monitor is not None:
                released.monitor.log(metrics, step=step)
    return losses


class Wandb(Base):
    """Writes down what it gets, as the tracker that comes after."""

    def __init__(self, logged):
        super().__init__(None)
        self.logged = logged

    async def log_metrics(self, metrics, step):
        self.logged.append((step, dict(metrics)))

    async def log_episodes(self, episodes, step, kind, subset): ...

    async def finalize(self):
        self.logged.append("finalized")


def sequence(rng, number, loss=integration.loss):
    mask, new, old = (torch.from_numpy(part) for part in rollout(rng, 0))
    leaf = new.clone().requires_grad_()
    inputs = LossInputs(leaf, old, None, torch.full((WIDTH,), 0.5 - number % 2), mask)
    out = loss(inputs, kl_tau=0.5)
    out.loss.backward()
    assert leaf.grad is not None
    return out.loss.item()


def train(prime_rl, rng, steps, prompts=4 * [TASK], loss=integration.loss):
    """As src/prime_rl/trainer/rl/train.py: losses of a step's sequences, then several calls of one step."""

    async def each(call):
        for item in prime_rl.MONITORS:
            await call(item)

    losses = []
    for step in range(steps):
        load(prompts)
        losses += [sequence(rng, number, loss) for number in range(4)]
        for metrics in ({"perf/throughput": 5.0, "step": step}, {"optim/lr": 1e-5, "step": step}):
            asyncio.run(each(lambda item, step=step, metrics=metrics: item.log(metrics, step=step)))
    asyncio.run(each(lambda item: item.log([SimpleNamespace()], step=0)))
    asyncio.run(each(lambda item: item.finalize()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_later_sample_of_a_rollout_begins_after_a_tool_and_the_rest_is_known_on_one_rank_alone(
    prime_rl, rng, monkeypatch, ranks
):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    prime_rl.MONITORS.append(Wandb([]))
    monitor = integration.attach(monitor=Monitor([CapturingTracker()]))
    other = [5, 6, 8]
    train(prime_rl, rng, 8, [TASK, [*TASK, *TURN, *RESULT], other, other])
    results = counted(monitor, "mismatch")
    assert results["all"] == 8 * 4 * 26
    # Of the later sample all 26 tokens, of the others the 14 after a gap; what another rank has is unknown.
    assert results["post_tool"] == 8 * (26 + 3 * 14)
    assert results["text_only"] == (8 * 3 * 12 if ranks == "1" else 0)
    assert not +monitor.health


def test_samples_that_do_not_fit_to_the_losses_are_of_unknown_context_and_it_is_said(prime_rl, rng, caplog):
    prime_rl.MONITORS.append(Wandb([]))
    monitor = integration.attach(monitor=Monitor([CapturingTracker()]))
    train(prime_rl, rng, 8, 3 * [TASK])  # and four losses
    results = counted(monitor, "mismatch")
    assert (results["all"], results["text_only"], results["post_tool"]) == (8 * 4 * 26, 0, 8 * 4 * 14)
    assert caplog.text.count("nobody has said whether a tool result comes before them") == 1


class TestConformance(SameWithUs, WatchedOnce, SurvivesWhatIsGone, Resumes):
    """In the process; a release has one monitor and no `prime_rl.monitors`."""

    STEPS, KEPT = [0, 1, 2], 5
    GONE = {("data", "DataLoader"): True, ("loader", "get_batch"): True, ("ckpt", "CheckpointManager"): True,
            ("manager", "save"): True}  # fmt: skip

    @pytest.fixture(autouse=True)
    def modules(self, prime_rl, process):
        self.prime_rl, self.process, self.anew = prime_rl, process, False
        data, ckpt = (sys.modules[f"prime_rl.trainer.{item}"] for item in ("rl.data", "ckpt"))
        self.parts = {"data": data, "ckpt": ckpt, "loader": data.DataLoader, "manager": ckpt.CheckpointManager}

    def owners(self, training):
        """As they are before prime-rl imports our loss."""
        self.parts["data"].DataLoader, self.parts["ckpt"].CheckpointManager = DataLoader, CheckpointManager
        self.process.trainer.__init__()
        self.anew = True
        return self.parts | {"loader": DataLoader, "manager": CheckpointManager}

    def make(self):
        training = Wandb([])
        self.prime_rl.MONITORS[:] = [training]
        self.process.watched.clear()
        return training

    def attach(self, training, monitor=None):
        if self.anew:
            self.process.trainer.hook_trainer()
        return integration.attach(monitor=monitor)

    def train(self, training, loss=integration.loss):
        losses = train(self.prime_rl, np.random.default_rng(0), 3, loss=loss)
        return losses, training.logged

    def plain(self):
        return self.train(self.make(), lambda inputs, kl_tau: default_loss_fn(inputs, DefaultLossConfig(kl_tau)))

    def begin(self, folder, monitor, when="after the losses"):
        self.make()
        integration.attach(monitor=monitor)
        manager = self.parts["manager"](folder)
        for number in range(7):
            load()
            if number == 5 and when == "before the step":
                manager.save(number, None, [], None, None)
            for at in range(4):
                sequence(np.random.default_rng(at), at)
            if number == 5 and when == "after the losses":
                manager.save(number, None, [], None, None)
            for item in self.prime_rl.MONITORS:
                asyncio.run(item.log({"optim/lr": 1e-5}, step=number))

    def resume(self, folder, monitor):
        self.make()
        self.parts["manager"](folder).load(5, None, [], None, None)
        integration.attach(monitor=monitor)

    def test_of_a_release_that_saves_before_the_step_the_state_is_of_the_one_before(self, tmp_path):
        self.begin(tmp_path, Monitor(), "before the step")
        self.resume(tmp_path, again := Monitor())
        assert again.step == 4

    def test_rank_0_sees_its_sequences_and_metrics_and_ends_first(self):
        training = self.make()
        monitor = self.attach(training, Monitor([CapturingTracker()]))
        assert [type(item).__name__ for item in self.prime_rl.MONITORS] == ["DiagnosticsMonitor", "Wandb"]
        self.train(training)
        assert training.logged[:2] == [(0, {"perf/throughput": 5.0, "step": 0}), (0, {"optim/lr": 1e-5, "step": 0})]
        assert training.logged[-1] == "finalized"
        tokens = counted(monitor, "mismatch")
        assert (tokens["text_only"], tokens["post_tool"]) == (3 * 4 * 12, 3 * 4 * 14)


def test_a_monitor_that_asks_for_more_is_reported_and_training_continues(prime_rl, rng, caplog):
    class Changed(Base):
        @abstractmethod
        async def log_samples(self, samples): ...

    prime_rl.Monitor = Changed
    prime_rl.MONITORS.append(Wandb([]))
    integration.attach()
    assert "asks for log_samples" in caplog.text
    assert len(prime_rl.MONITORS) == 1
    train(prime_rl, rng, 1)


@pytest.mark.slow
def test_of_a_release_rank_0_sees_its_sequences_and_metrics(released, rng):
    monitor = integration.attach(monitor=Monitor([CapturingTracker()]))
    assert integration.attach() is monitor
    train_released(released, rng, 3)
    assert released.monitor.logged[:2] == [(0, {"perf/throughput": 5.0, "step": 0}), (0, {"optim/lr": 1e-5, "step": 0})]
    assert len(released.monitor.logged) == 6
    assert monitor.summary().steps == 3
    released.monitor.close()
    assert released.monitor.logged[-1] == "closed"
    assert counted(monitor, "mismatch")["post_tool"] == 3 * 4 * 14
    assert not +monitor.health
    monitor.log({"reward": 1.0}, 99)
    assert monitor.health["after_close"] == 1


@pytest.fixture
def job(monkeypatch, process):
    """Makes this process one rank of a job, as a launcher and `torch.distributed` do; all have one store."""
    store = torch.distributed.HashStore()

    def together(rank, world):
        process.ranks.append(ThroughStore(store, rank, world, f"host-{rank}"))
        return process.ranks[-1]

    def become(rank, world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setattr(integration, "together", together)
        process.watched.clear()
        return process

    return become


@pytest.fixture(params=["released", "monitors"])
def listed(request, released, monkeypatch):
    """What `prime_rl.monitors` has; a release has no such module."""
    results = []
    if request.param == "monitors":
        monkeypatch.setitem(sys.modules, "prime_rl.monitors", SimpleNamespace(Monitor=Base, MONITORS=results))
    return results


@pytest.mark.slow
def test_rank_0_sees_what_other_ranks_train_on(released, listed, rng, job, tmp_path):

    def one_step(step):
        load()
        for number in range(4):
            sequence(rng, number)
        for metrics in ({"perf/throughput": 5.0}, {"optim/lr": 1e-5}):
            for item in listed:
                asyncio.run(item.log(metrics, step=step))
            released.monitor.log(metrics, step=step)

    process = job(0, 2)
    listed[:] = [Wandb([])]
    one_step(0)
    (first,), monitor = process.watched, integration.attach()
    theirs, released.monitor, listed[:] = (released.monitor, [*listed]), Released(), []
    job(1, 2)
    one_step(0)
    (second,) = process.watched
    assert second.share is not None
    sys.modules["prime_rl.trainer.ckpt"].CheckpointManager(tmp_path).save(0, None, None, None, None)
    assert not [*tmp_path.rglob("tracker_diag_*")]
    second.ended()
    assert not +second.share.monitor.health
    job(0, 2)
    process.watched[:] = [first]
    released.monitor, listed[:] = theirs
    take_sent(process.ranks[0])
    one_step(1)
    assert counted(monitor, "mismatch")["post_tool"] == 3 * 4 * 14  # two steps of its own, one of the other's
    first.ended()
    assert not +monitor.health


@pytest.mark.parametrize(("rank", "share"), [(0, (0, 2)), (1, None), (2, (1, 2)), (3, None)])
def test_of_ranks_that_have_the_same_sequences_one_hands_them_over(prime_rl, job, rank, share):
    process = job(rank, 4)
    assert process.trainer.share() is None  # before anybody knows
    load(same=2)
    assert process.trainer.share() == share


def test_the_first_loss_of_a_release_attaches_and_other_ranks_keep_nothing(released, process, monkeypatch):
    losses = train_released(released, np.random.default_rng(5), 2)
    (watch,) = process.watched
    assert watch is not None
    monkeypatch.setenv("RANK", "1")
    process.watched.clear()
    released.monitor = Released()
    assert train_released(released, np.random.default_rng(5), 2) == losses
    assert process.watched == [None]
    assert "log" not in vars(released.monitor)


def test_a_loss_before_there_is_any_monitor_is_reported_and_training_continues(released, rng, caplog):
    released.monitor = None
    assert len(train_released(released, rng, 2)) == 8
    assert [record.message for record in caplog.records if record.name == "tracker_diag"] == [
        "nothing of this prime-rl is watched: RuntimeError: Monitor not initialized. Please call `setup_monitor` first."
    ]


def test_a_prime_rl_without_any_kind_of_monitor_is_reported_and_training_continues(released, rng, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "prime_rl.utils.monitor")
    monkeypatch.setattr(sys.modules["prime_rl.utils"], "__path__", [], raising=False)
    assert len(train_released(released, rng, 2)) == 8
    (messages,) = [record.message for record in caplog.records if record.name == "tracker_diag"]
    assert messages.endswith(
        "no module prime_rl.monitors or prime_rl.utils.monitor in the installed prime_rl, which is not a tested version"
    )
