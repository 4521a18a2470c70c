from types import SimpleNamespace

import pytest
import torch
import tracker_diag_nemo_rl
from tracker_diag_nemo_rl import workers as of_workers

from tracker_diag import Monitor
from tracker_diag.attach.workers import Recorder, Workers

# As in NVIDIA-NeMo/RL at 7ea279a: nemo_rl/algorithms/loss/loss_functions.py (ClippedPGLossFn), and the `train` of
# nemo_rl/models/policy/workers. `source.py` runs the real ones, by the command of `released.py`.


ROWS, TOKENS, AFTER = 64, 416, 128
"""Sequences, and the tokens of those that are not rejected: all, and those after a tool."""


class ClippedPGLossFn:
    force_on_policy_ratio, ratio_clip_min, ratio_clip_max = False, 0.05, 0.15

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks):
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        loss = ((next_token_logprobs - data["prev_logprobs"][:, 1:]).exp() * mask).mean()
        return loss, {"num_valid_samples": 1}


def train(loss_fn, updates):
    """A step of the optimiser for each of a batch's parts; the loss and its gradient of each."""
    mask, kept = torch.zeros(ROWS, 24), torch.ones(ROWS)
    mask[:, 6:12] = mask[::2, 16:20] = 1  # half of the sequences have a second turn
    kept[3::4] = 0
    old = torch.linspace(-3, -0.1, ROWS * 24).reshape(ROWS, 24)
    data = {"token_mask": mask, "sample_mask": kept, "prev_logprobs": old, "advantages": torch.ones(ROWS, 24)}
    found, model = [], torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for update in range(updates):
        new = (data["prev_logprobs"][:, 1:] + 0.1 * update).requires_grad_()
        loss, _ = loss_fn(data=data, global_valid_seqs=1, global_valid_toks=1, next_token_logprobs=new)
        loss.backward()
        with torch.no_grad():
            loss_fn(data=data, global_valid_seqs=1, global_valid_toks=1, next_token_logprobs=new * 1)  # an evaluation
        optimizer.step()
        found.append((loss.item(), new.grad))
    return found


@pytest.fixture
def worker(monkeypatch):
    """NeMo-RL's loss, its module, and what has come of it; our hooks are not on yet."""
    watched = Monitor(clip=(0.05, 0.15))
    workers = Workers(watched, each=True)
    recorder = Recorder(0, 1, workers.receive)
    monkeypatch.setattr(of_workers, "RECORDER", recorder)
    loss = type("ClippedPGLossFn", (ClippedPGLossFn,), {})

    def sketched(of="count"):
        recorder.close(60)
        workers.take_in()
        watched.log({}, 1)
        table = watched.slices_table()
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return {row["slice"]: row[of] for row in rows if row["pair"] == "policy"}

    module = SimpleNamespace(ClippedPGLossFn=loss)
    return SimpleNamespace(module=module, loss=loss, sketched=sketched, watched=watched, workers=workers)


@pytest.mark.parametrize("updates", [1, 3])
def test_losses_are_sketched_and_sent_after_each_update_and_a_first_one_is_apart(worker, updates):
    plain = train(worker.loss(), updates)
    of_workers.put(worker.module)
    ours = train(worker.loss(), updates)
    assert all(a == b and torch.equal(c, d) for (a, c), (b, d) in zip(plain, ours, strict=True))
    found, counted = worker.sketched(), max(updates - 1, 1)
    assert (found["all"], found["post_tool"]) == (counted * TOKENS, counted * AFTER)
    assert worker.watched.health["rank_errors"] == 0


def test_what_is_clipped_is_what_this_loss_clips(worker):
    of_workers.put(worker.module)
    train(worker.loss(), 3)
    third = torch.tensor([0.1, 0.2]).exp()
    assert worker.sketched("gradient_clipped")["all"] == pytest.approx(float(third[1] / third.sum()))


def test_a_ratio_that_is_forced_to_be_1_is_none(worker):
    worker.loss.force_on_policy_ratio = True
    of_workers.put(worker.module)
    train(worker.loss(), 2)
    assert worker.sketched() == {}


@pytest.mark.parametrize("name", ["__call__", "ratio_clip_min", "force_on_policy_ratio"])
def test_whatever_is_gone_is_told_once_and_the_worker_goes_on(worker, caplog, monkeypatch, name):
    with monkeypatch.context() as gone:
        gone.delattr(ClippedPGLossFn, name)
        of_workers.put(worker.module)
        if name != "__call__":
            assert len(train(worker.loss(), 2)) == 2
    assert len(train(worker.loss(), 2)) == 2
    assert sum("is not a tested version" in text or "integration_errors: " in text for text in caplog.messages) == 1


def test_what_has_come_is_of_the_row_that_is_logged_after_the_update(worker):
    of_workers.put(worker.module)
    train(worker.loss(), 2)
    of_workers.RECORDER.close(60)
    one = tracker_diag_nemo_rl.DiagnosticsLogger(worker.watched, workers=worker.workers)
    one.log_metrics({"seconds": 1.0}, 1, prefix="timing/train")
    assert not worker.watched.slices_table().rows
    one.log_metrics({"loss": 1.0}, 1, prefix="train")
    assert worker.sketched()["all"] == TOKENS
