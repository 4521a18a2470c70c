"""Losses of several processes, sketched where they are made, are in the monitor as if one had observed them all."""

import copy
import json
import threading
import zlib

import numpy as np
import pytest
import torch

from tracker_diag import Monitor
from tracker_diag.attach.workers import Recorder, Workers
from tracker_diag.tensors.observation import Observation
from tracker_diag.testing import CapturingTracker

ROWS, WIDTH = 16, 24


def loss(rng, spread=0.05, post=None):
    """Tensors of one loss: half of the sequences have a tool result amid, what follows it has a spread of its own."""
    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    mask[: ROWS // 2, 8:12] = False
    scale = torch.full((ROWS, WIDTH), float(spread))
    scale[: ROWS // 2, 12:] = spread if post is None else post
    old = torch.tensor(rng.uniform(-3, -0.1, (ROWS, WIDTH)), dtype=torch.float32)
    new = (old + scale * torch.tensor(rng.normal(size=(ROWS, WIDTH)), dtype=torch.float32)).requires_grad_()
    advantages = torch.tensor(rng.normal(size=(ROWS, WIDTH)), dtype=torch.float32)
    return {"logprobs": new, "old_logprobs": old, "model_mask": mask, "advantages": advantages}


def monitor():
    made = Monitor([captured := CapturingTracker()])
    return made, captured


def job(world=2, **settings):
    """A monitor with `world` recorders, whose messages come at once."""
    watched, captured = monitor()
    workers = Workers(watched, **settings)
    return watched, captured, workers, [Recorder(rank, world, workers.receive) for rank in range(world)]


def sent(*recorders):
    for item in recorders:
        item.send()
        item.close()


def state(watched):
    return json.dumps(watched.state_dict()["windows"], default=str, sort_keys=True)


@pytest.mark.by_day("order1")
@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_ranks_sketch_is_bit_for_bit_what_one_process_observes(order):
    rng = np.random.default_rng(0)
    alone, _ = monitor()
    watched, _, workers, recorders = job(3)
    for step in range(4):
        losses = [loss(rng, 0.05 * (step + 1)) for _ in recorders]
        for item in losses:
            alone.observe(**item)
        for rank in order:
            recorders[rank].observe(**losses[rank])
            recorders[rank].updated()
            sent(recorders[rank])
        workers.take_in()
        alone.log({}, step)
        watched.log({}, step)
        assert state(watched) == state(alone)
    assert watched.health["rank_errors"] == 0


@pytest.mark.by_day("clip0")
@pytest.mark.slow
@pytest.mark.parametrize("clip", [(0.05, 0.3), (0.3, 0.05), (0.2, 0.2)])
def test_what_is_clipped_is_what_the_trainer_clips(clip):
    """The share of the gradient that a slice has depends on the range, and no later step can put it right."""
    rng = np.random.default_rng(0)
    alone, watched = Monitor(clip=clip), Monitor(clip=clip)
    workers = Workers(watched)
    item = Recorder(0, 1, workers.receive)
    for step in range(4):
        given = loss(rng, 0.2, 0.4)
        alone.observe(**given)
        item.observe(**given, clip=clip)
        sent(item)
        workers.take_in()
        alone.log({}, step)
        watched.log({}, step)
    assert state(watched) == state(alone)
    alone.close()
    watched.close()
    assert watched.slices_table() == alone.slices_table()


def count(watched, slice="all"):
    watched.close()
    table = watched.slices_table()
    at = table.columns.index
    return {(row[at("pair")], row[at("slice")]): row[at("count")] for row in table.rows}.get(("policy", slice))


@pytest.mark.parametrize(("fresh", "counted"), [(True, 3), (False, 4)])
def test_the_first_of_several_updates_counts_only_where_the_old_policy_is_another(fresh, counted):
    """Two micro-batches an update here; the first update has ratios of 1 where its old log-probabilities are fresh."""
    rng = np.random.default_rng(0)
    watched, _, workers, (item,) = job(1, fresh=fresh)
    for update in range(4):
        item.observe(**loss(rng, 0.3 * (update > 0)))
        item.observe(**loss(rng, 0.3 * (update > 0)))
        item.updated()
    sent(item)
    workers.take_in()
    watched.log({}, 1)
    tokens = ROWS * WIDTH - ROWS // 2 * 4
    assert count(watched) == 2 * counted * tokens


def test_with_a_single_update_the_first_is_all_there_is():
    watched, _, workers, (item,) = job(1)
    item.observe(**loss(np.random.default_rng(0), 0.0))
    item.updated()
    sent(item)
    workers.take_in()
    watched.log({}, 1)
    assert count(watched) == ROWS * WIDTH - ROWS // 2 * 4


def test_of_ranks_in_a_row_that_send_the_same_tokens_the_first_counts():
    watched, _, workers, recorders = job(4, every=2)
    for rank, item in enumerate(recorders):
        item.observe(**loss(np.random.default_rng(rank // 2)))
        sent(item)
    workers.take_in()
    watched.log({}, 1)
    assert count(watched) == 2 * (ROWS * WIDTH - ROWS // 2 * 4)


@pytest.mark.slow
@pytest.mark.parametrize("send", [False, True])
def test_a_step_of_any_optimizer_of_torch_ends_an_update(send):
    rng, tokens = np.random.default_rng(0), ROWS * WIDTH - ROWS // 2 * 4
    watched, _, workers, (item,) = job(1, each=send)
    model = torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.AdamW(model.parameters())]
    off = item.hear_optimizers(send=send)
    for _ in range(3):
        item.observe(**loss(rng))
        item.observe(**loss(rng))
        for optimizer in optimizers:  # as of a model in parts
            optimizer.step()
    off()
    optimizers[0].step()
    sent(item)
    workers.take_in()
    watched.log({}, 1)
    assert count(watched) == 4 * tokens


def test_where_gaps_may_be_rejected_tokens_the_context_is_unknown():
    rng = np.random.default_rng(0)
    watched, _, workers, (item,) = job(1, gaps=False)
    given = loss(rng)
    item.observe(**given)
    sent(item)
    workers.take_in()
    watched.log({}, 1)
    assert count(watched, "post_tool") in (None, 0)
    assert count(watched, "text_only") in (None, 0)
    assert count(watched) == int(given["model_mask"].sum())


def test_without_context_all_that_is_no_slice_of_context_stays():
    from tracker_diag.tensors.batch import TokenBatch
    from tracker_diag.tensors.slices import Names, label

    batch = TokenBatch.validated(**{name: item.detach() for name, item in loss(np.random.default_rng(1)).items()})
    item = Observation.reduced(batch, "policy", label(batch, Names()))
    bare = item.without_context()
    assert np.array_equal(bare.sketches["context"].counts.sum(0), item.sketches["context"].counts.sum(0))
    assert np.array_equal(bare.sketches["advantage"].counts, item.sketches["advantage"].counts)
    assert np.array_equal(bare.sequences.array()[:, -1], item.sequences.array()[:, -1])
    assert bare.tokens.n.tolist() == [0, 0, item.tokens.n.sum()]
    assert bare.tokens.total[-1] == pytest.approx(item.tokens.total.sum(), rel=1e-12)
    merged = bare + bare
    assert merged.tokens.n[-1] == 2 * item.tokens.n.sum()


@pytest.mark.slow
def test_a_rank_that_dies_is_missing_and_the_others_continue():
    rng = np.random.default_rng(0)
    watched, captured, workers, (item, other) = job(2)
    for step in range(30):
        item.observe(**loss(rng))
        sent(item)
        if step < 5:
            other.observe(**loss(rng))
            sent(other)
        workers.take_in()
        watched.log({}, step)
    assert "RES007" in {result.rule.id for _, result in captured.findings}


def test_a_rank_that_starts_anew_continues_and_nothing_is_said_to_be_lost():
    rng = np.random.default_rng(0)
    watched, _, workers, (item, other) = job(2)
    for step in range(6):
        for rank in (item, other):
            rank.observe(**loss(rng))
            sent(rank)
        if step == 2:
            other = Recorder(1, 2, workers.receive)
        workers.take_in()
        watched.log({}, step)
    assert watched.health["lost_rank_steps"] == 0
    assert watched.health["rank_errors"] == 0


def test_updates_that_never_come_are_counted_as_lost():
    rng = np.random.default_rng(0)
    watched, _, workers, _ = job(1)
    kept = []
    item = Recorder(0, 1, kept.append)
    for _ in range(5):
        item.observe(**loss(rng))
        sent(item)
    for message in (kept[0], kept[4]):
        workers.receive(message)
    workers.take_in()
    watched.log({}, 1)
    assert watched.health["lost_rank_steps"] == 3


@pytest.mark.slow
def test_a_rank_without_a_trained_token_is_heard_of_and_adds_nothing():
    rng = np.random.default_rng(0)
    watched, captured, workers, (item, other) = job(2)
    empty = loss(rng)
    empty["model_mask"] = torch.zeros_like(empty["model_mask"])
    given = loss(rng)
    for step in range(12):
        item.observe(**given)
        other.observe(**empty)
        sent(item, other)
        workers.take_in()
        watched.log({}, step)
    assert watched.health["rank_errors"] == 0
    assert watched.slices_table().rows
    assert "RES007" not in {finding.rule.id for _, finding in captured.findings}


def test_a_loss_that_does_not_fit_is_reported_to_the_monitor_and_the_next_one_counts():
    rng = np.random.default_rng(0)
    watched, _, workers, (item,) = job(1)
    bad = loss(rng)
    bad["model_mask"] = bad["model_mask"][:, :-1]
    item.observe(**bad)
    item.observe(logprobs="none of it")
    item.observe(**loss(rng))
    sent(item)
    workers.take_in()
    watched.log({}, 1)
    assert watched.health["rank_errors"] == 2
    assert "rank 0" in str(watched.failures[-1])
    assert count(watched) == ROWS * WIDTH - ROWS // 2 * 4


def test_a_damaged_message_costs_itself_alone():
    rng = np.random.default_rng(0)
    watched, _, workers, _ = job(2)
    messages = []
    for rank in range(2):
        item = Recorder(rank, 2, messages.append)
        item.observe(**loss(rng))
        sent(item)
    broken = json.loads(zlib.decompress(messages[0]))
    broken["first"]["policy"]["sums"] = []
    for message in (zlib.compress(json.dumps(broken).encode()), messages[1]):
        workers.receive(message)
    workers.take_in()
    watched.log({}, 1)
    assert watched.health["rank_errors"] == 1
    assert count(watched) == ROWS * WIDTH - ROWS // 2 * 4


def test_the_loss_and_its_gradient_are_bitwise_those_without_a_recorder():
    given = loss(np.random.default_rng(0))

    def run(recorder):
        tensors = copy.deepcopy(given)
        ratio = (tensors["logprobs"] - tensors["old_logprobs"]).exp()
        part = -(ratio * tensors["advantages"])[tensors["model_mask"]].mean()
        if recorder:
            recorder.observe(**tensors)
        part.backward()
        return part, tensors["logprobs"].grad

    state = torch.get_rng_state()
    _, _, _, (item,) = job(1)
    ours, theirs = run(item), run(None)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert torch.equal(state, torch.get_rng_state())


def test_a_message_is_of_a_few_kilobytes_whatever_the_batch():
    rng = np.random.default_rng(0)
    kept = []
    item = Recorder(0, 1, kept.append)
    for _ in range(20):
        item.observe(**loss(rng))
        item.updated()
    sent(item)
    assert len(kept[0]) < 64_000
    assert set(json.loads(zlib.decompress(kept[0]))["rest"]) == {"policy"}


def test_a_slow_mailbox_delays_no_loss():
    rng, gate, got = np.random.default_rng(0), threading.Event(), []

    def slow(message):
        gate.wait(60)
        got.append(message)

    item = Recorder(0, 1, slow)
    for _ in range(40):
        item.observe(**loss(rng))
        item.send()
    assert got == []  # all calls have come back, while nothing was sent
    gate.set()
    item.close(60)
    assert 0 < len(got) <= 17  # the others were dropped
