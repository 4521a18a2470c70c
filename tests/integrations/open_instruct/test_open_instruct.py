import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tracker_diag_open_instruct as integration

from tests.integrations.conformance import Resumes, SameWithUs, SurvivesWhatIsGone, counted
from tracker_diag import Monitor
from tracker_diag.tensors.ranks import AllReduce

pytestmark = pytest.mark.nightly  # with stand-ins of its modules; by day ROLL alone is tried so

# Signatures and order of calls as in allenai/open-instruct at e6c3044: open_instruct/grpo_utils.py, and
# PolicyTrainerRayProcess.step and one_training_step in open_instruct/grpo_fast.py; packing as in rl_utils.py.
INVALID, WIDTH = 1.0, 30


def forward_for_logprobs(  # noqa: PLR0917
    model, query_responses, attention_mask, position_ids, pad_token_id, temperature, return_entropy=False,
    pass_olmo_core_doc_lens=False,
):  # fmt: skip
    return model(query_responses)[:, 1:], None


def compute_rho_correction(old_logprob, vllm_logprobs, response_mask, advantages, config):
    rho = torch.exp(torch.where(response_mask, old_logprob - vllm_logprobs, 0.0))
    return SimpleNamespace(weights=rho.clamp(max=2.0), histogram_metrics={"val/rho_hist": rho[response_mask]})


def compute_grpo_loss(  # noqa: PLR0917
    new_logprobs, ratio, advantages, ref_logprobs, config, rho_weights
):
    return -advantages * ratio * rho_weights, torch.zeros_like(ratio), torch.zeros_like(ratio)


def compute_metrics_from_loss_stats(loss_stats_B, token_counts):  # noqa: N803
    return {"policy/clipfrac_avg": 0.1, "loss/policy_avg": 0.2}


def finalize_rho_histograms(acc):
    return {name: np.concatenate([chunk.detach().numpy() for chunk in chunks]) for name, chunks in acc.items()}


FUNCTIONS = [
    forward_for_logprobs,
    compute_rho_correction,
    compute_grpo_loss,
    compute_metrics_from_loss_stats,
    finalize_rho_histograms,
]


class Engine:
    """deepspeed/runtime/engine.py: a folder by its tag."""

    global_steps = 7

    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True):  # noqa: B006  # its signature
        (Path(save_dir) / (tag or f"global_step{self.global_steps}")).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, load_dir, tag=None):
        return str(Path(load_dir) / f"global_step{self.global_steps}" / "mp_rank_00_model_states.pt"), {}


@pytest.fixture
def utils(module):
    module("open_instruct")
    module("deepspeed", DeepSpeedEngine=type("DeepSpeedEngine", (Engine,), {}))
    return module("open_instruct.grpo_utils", **{function.__name__: function for function in FUNCTIONS})


def config(**others):
    return SimpleNamespace(
        **{"clip_lower": 0.2, "clip_higher": 0.272, "sequence_parallel_size": 1, "beta": 0.0} | others
    )


def row(generator):
    """Two packed sequences, prompt, turn, tool's result, turn; the second without a tool; then padding."""
    mask = torch.zeros(1, WIDTH, dtype=torch.bool)
    mask[0, 3:8] = mask[0, 10:14] = True  # 14 tokens
    mask[0, 17:24] = True  # its prompt is at 14 … 16
    positions = torch.tensor([[*range(14), *range(10), *[0] * 6]])
    new = torch.randn(1, WIDTH, generator=generator) - 2
    vllm = torch.where(mask, new - 0.05 * torch.randn(1, WIDTH, generator=generator), INVALID)
    vllm[0, 5] = INVALID  # vLLM gave NaN, which open-instruct writes over
    return mask, positions, new, vllm


def step(utils, args, number, first=True):
    """As PolicyTrainerRayProcess.step; gives what it returns, and the losses."""
    generator = torch.Generator().manual_seed(number)
    histograms, losses = {}, []
    for _ in range(2):
        mask, positions, new, vllm = row(generator)
        leaf = new.clone().requires_grad_()
        local, _ = utils.forward_for_logprobs(lambda _, leaf=leaf: leaf, mask, None, positions, 0, 1.0)
        local = torch.where(mask[:, 1:], local, INVALID)
        old = local.detach() - 0.01
        rho = utils.compute_rho_correction(old, vllm[:, 1:], mask[:, 1:], torch.ones(1, WIDTH - 1), args)
        for name, values in rho.histogram_metrics.items():
            histograms.setdefault(name, []).append(values)
        loss, _, _ = utils.compute_grpo_loss(
            new_logprobs=local,
            ratio=torch.exp(local - old),
            advantages=torch.ones(1, WIDTH - 1),
            ref_logprobs=old - 0.2,
            config=args,
            rho_weights=rho.weights,
        )
        loss[mask[:, 1:]].sum().backward()
        losses.append(leaf.grad.clone())
    metrics = utils.compute_metrics_from_loss_stats({"val/ratio": torch.ones(2)}, torch.ones(2))
    arrays = {"batch/prompt_lengths": [3, 3]}
    if first:
        arrays.update(utils.finalize_rho_histograms(histograms))
    return metrics, arrays, losses


@pytest.mark.slow
def test_packed_tokens_of_a_step(utils):
    monitor = Monitor()
    integration.attach(monitor=monitor)
    for number in range(4):
        step(utils, config(), number)
    assert monitor.summary().steps == 4
    assert not +monitor.health
    for pair in ("policy", "mismatch", "reference"):
        tokens = counted(monitor, pair)
        assert tokens["text_only"] == 4 * 2 * (5 - 1 + 7)  # one token has no score; the second prompt is no tool
        assert tokens["post_tool"] == 4 * 2 * 4


@pytest.mark.slow
def test_the_scalars_go_into_the_row_of_the_step(utils):
    integration.attach()
    for number in range(3):
        _, arrays, _ = step(utils, config(), number)
        ours = {name: value for name, value in arrays.items() if name.startswith("diag/")}
        assert all(isinstance(value, float | int) for value in ours.values())
        assert ours["diag/mismatch/post_tool/count"] > 0


def test_a_learner_that_has_parts_of_sequences_watches_none(utils, caplog):
    integration.attach()
    _, arrays, _ = step(utils, config(sequence_parallel_size=2), 0)
    assert "each learner has parts of sequences" in caplog.text
    assert not [name for name in arrays if name.startswith("diag/")]


@pytest.mark.slow
def test_learners_put_their_tokens_together(utils, monkeypatch):
    """One learner of several, in a group of its own: the collective runs, once a step."""
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    alone, made = dist.get_world_size, []

    def all_reduce():
        monkeypatch.setattr(dist, "get_world_size", alone)  # or it would wait for the others
        made.append(AllReduce())
        return made[-1]

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(integration, "AllReduce", all_reduce)
    try:
        integration.attach()
        for number in range(2):
            _, arrays, _ = step(utils, config(), number)
        assert [ranks.together for ranks in made] == [True]
        assert arrays["diag/mismatch/post_tool/count"] == 2 * 2 * 4
    finally:
        dist.destroy_process_group()


class TestConformance(SameWithUs, Resumes, SurvivesWhatIsGone):
    STEPS = [0, 1, 2]
    KEPT, ANEW, ROWS = 7, 0, (200, 200)
    GONE = {
        **{("utils", function.__name__): False for function in FUNCTIONS},
        (None, "deepspeed"): True, ("deepspeed", "DeepSpeedEngine"): True,
    }  # fmt: skip

    @pytest.fixture(autouse=True)
    def modules(self, utils):
        self.utils = utils

    def owners(self, training):
        return {"utils": self.utils, "deepspeed": sys.modules["deepspeed"]}

    def make(self):
        return config()

    def attach(self, training, monitor=None):
        return integration.attach(monitor=monitor)

    def train(self, training):
        """Our scalars are returned with the learner's own; they are tested elsewhere."""
        steps = [step(self.utils, training, number) for number in range(3)]
        return [(metrics, {name: value for name, value in arrays.items() if not name.startswith("diag/")}, losses)
                for metrics, arrays, losses in steps]  # fmt: skip

    def begin(self, folder, monitor):
        """The eighth step is logged after the checkpoint."""
        self.attach(None, monitor)
        for number in range(8):
            step(self.utils, config(num_training_steps=200), number)
            if number == 6:
                sys.modules["deepspeed"].DeepSpeedEngine().save_checkpoint(str(folder), client_state={})

    def resume(self, folder, monitor):
        """The first step decides: before it there is no monitor of the learner."""
        self.attach(None, monitor)
        sys.modules["deepspeed"].DeepSpeedEngine().load_checkpoint(str(folder))
        step(self.utils, config(num_training_steps=200), 8)
