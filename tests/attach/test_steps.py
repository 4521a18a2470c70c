"""A step that is left out, or made smaller, on real optimisers; schedulers and logs see their own learning rate."""

import copy

import pytest
import torch

from tracker_diag import Decision
from tracker_diag.guards.steps import Steps


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1)


def step(model, optimizer, scale=1.0):
    optimizer.zero_grad()
    (model(torch.ones(2, 4)).square().mean() * scale).backward()
    optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, other):
    return all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
])  # fmt: skip
def test_a_batch_that_is_left_out_changes_nothing_and_the_next_one_does(model, make):
    optimizer = make(model.parameters())
    steps = Steps(optimizer)
    step(model, optimizer)
    steps.follow(Decision(skip_batch=True))
    steps.follow(Decision())  # asked again before the step, as after an evaluation
    before = weights(model)
    step(model, optimizer, scale=1e6)
    assert same(weights(model), before)
    assert optimizer.param_groups[0]["lr"] == 0.1
    step(model, optimizer)
    assert not same(weights(model), before)


def test_updates_stop_until_it_is_decided_otherwise(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    steps, before = Steps(optimizer), weights(model)
    steps.follow(Decision(stop="update"))
    for _ in range(3):
        step(model, optimizer)
    assert same(weights(model), before)
    steps.follow(Decision())
    step(model, optimizer)
    assert not same(weights(model), before)


def test_a_learning_rate_is_scaled_within_the_step_alone(model):
    other = copy.deepcopy(model)
    optimizer, plain = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.025)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)
    steps = Steps(optimizer)
    steps.follow(Decision(lr_factor=0.25))
    for _ in range(3):
        step(model, optimizer)
        step(other, plain)
        schedule.step()
        assert schedule.get_last_lr() == [0.1]
    assert same(weights(model), weights(other))
    steps.close()
    assert not optimizer._optimizer_step_pre_hooks  # noqa: SLF001  # torch lists them nowhere else
    assert not optimizer._optimizer_step_post_hooks  # noqa: SLF001  # torch lists them nowhere else


def test_it_finds_the_optimiser_that_accelerate_wraps(model):
    from accelerate import Accelerator

    optimizer = Accelerator(cpu=True).prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    steps, before = Steps(optimizer), weights(model)
    steps.follow(Decision(stop="update"))
    step(model, optimizer)
    assert same(weights(model), before)
    steps.close()
