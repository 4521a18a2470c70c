"""Samples of several ranks: rank 0 counts those of all."""

import pytest
import torch.distributed as dist

from tests.tensors.rank import settle, take_sent
from tracker_diag import Monitor, ThroughStore
from tracker_diag.testing import CapturingTracker


@pytest.fixture
def job():
    store, seen = dist.HashStore(), CapturingTracker()
    ranks = [ThroughStore(store, rank, 2, f"host-{rank}") for rank in range(2)]
    return seen, ranks, [Monitor([seen] * (rank == 0), ranks=item, texts=rank > 0) for rank, item in enumerate(ranks)]


CALLS = [[{"name": "search"}], [{"name": "search"}, {"name": "search", "status": "error"}]]


def test_samples_of_another_rank_count_a_step_later_and_the_last_ones_at_the_end(job):
    seen, ranks, (first, second) = job
    for step in range(2):
        second.samples(reward=[0.0, 0.0], calls=CALLS)
        second.log({}, step)
        settle(ranks[1])
        take_sent(ranks[0])
        if step == 0:
            first.samples(reward=[1.0, 1.0], group=["a", "a"])
        first.log({}, step)  # at step 1 it has none of its own
    second.samples(reward=[0.0] * 4)
    second.log({}, 2)
    second.close()
    first.samples(reward=[1.0, 1.0])
    first.log({}, 2)
    first.close()
    values = [seen.scalars(step) for step in range(3)]
    assert [value["diag/samples/reward"] for value in values] == [0.5, 0.0, pytest.approx(1 / 3)]
    assert values[0]["diag/samples/tool_calls"] == 1.5
    assert values[0]["diag/samples/tool_failure_rate"] == pytest.approx(1 / 3)
    assert not +first.health
    assert not +second.health


def test_texts_stay_on_their_rank(job):
    seen, _, (first, second) = job
    second.samples(reward=[0.0], text=["a secret of the other's"])
    second.log({}, 0)
    second.close()
    first.samples(reward=[1.0], text=["yes"])
    first.log({}, 0)
    first.close()
    assert seen.scalars(0)["diag/samples/reward"] == 0.5
    assert "secret" not in str(seen.tables)


def test_samples_of_another_rank_that_cannot_be_read_are_reported_and_cost_nothing(job):
    seen, ranks, (first, second) = job
    ranks[1].send({"of": "another release"})
    second.close()
    first.samples(reward=[1.0])
    first.log({}, 0)
    first.close()
    assert seen.scalars(0)["diag/samples/reward"] == 1.0
    assert [str(failure).partition(":")[0] for failure in first.failures] == ["rank_errors"]


@pytest.mark.slow
def test_a_rank_that_says_much_and_is_not_heard_costs_no_more_than_a_few_steps(job):
    seen, ranks, (first, second) = job
    for step in range(100):
        second.samples(reward=[0.0])
        second.log({}, step)
        settle(ranks[1])
    first.samples(reward=[1.0])
    first.log({}, 100)
    first.close()
    *_, reward = (record for record in seen.records[100] if getattr(record, "name", "") == "diag/samples/reward")
    assert reward.n == 1 + 64
    assert first.health["lost_rank_steps"] == 100 - 64
