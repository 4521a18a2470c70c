"""Rules that were blind to the logs of LLM trainers, on real trainings: each finds the fault that the world has.

The faults are in the world of the agent at the desk: scorer, tools, sampler, loss; what is logged is measured, but for
the seconds of calls, which a queue is simulated for. RES006 needs steps of ten seconds: test_waiting.py has it.
"""

import copy
import random
import runpy
import time
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import tracker_diag as td
from tracker_diag import Monitor
from tracker_diag.tensors.store import ThroughStore
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.nightly

desk = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("desk_training.py"))))
World = desk.World
RULES = {rule.id: rule for rule in td.catalog()}
SEARCH = "tool:search"
BROKEN = ("read", "python")
EVALUATED = {"EVA003", "EXP004"}

FAULTS = {
    "the scorer pays one in 64 sixty times as much": (World(jackpot=60), {"ADV004": "all", "REW003": "all"}),
    "each call is paid": (World(pays={"call": 1.0}), {"ADV005": "all", "REW016": "all"}),
    "the advantage has the wrong sign": (World(sign=-1), {"ADV006": "all"}),
    "a tool is down, which costs": (World(broken=("search",), pays={"error": -1.0}, onset=0), {"ENV002": SEARCH}),
    "a failed call counts as a success": (World(pays={"failure": 1.0}), {"ENV005": "all"}),
    "episodes do not end": (World(ends=False), {"ENV007": "all"}),
    "the tools lose their workers": (World(loses_workers=True), {"ENV008": "all"}),
    "the public evaluation is trained on": (World(repeated=True), {"EVA003": "all"}),
    "the sampler is too hot": (World(temperature=2.5), {"EXP004": "all", "FRE002": "policy_lag:0"}),
    "what cannot be parsed is taken for 0": (World(pays={"zero": 1.0}), {"EXP005": "all"}),
    "two tools are lost, and their tasks": (World(kinds=1, broken=BROKEN, pays={"error": -0.5}), {"EXP006": "all"}),
    "the loss overflows": (World(precision_bug=1e38), {"NUM003": "all"}),
    "closing brackets are punished": (World(punishes_brackets=5, lag=4), {"POL009": "all"}),
    "tensors are kept": (World(leaks=1, onset=0), {"RES004": "all"}),
    "everything is paid": (World(loose=True), {"REW002": "all"}),
    "a refusal is safe": (World(pays={"refusal": 1.5}), {"REW013": "all"}),
    "the judge likes its marks": (World(pays={"praise": 0.3}), {"REW014": "all"}),
    "a claim is believed": (World(pays={"claim": 0.5}), {"REW017": "all"}),
}
"""Each world, the rules that find it, and their slice."""
CONCERNED = sorted({rule for _, rules in FAULTS.values() for rule in rules})


def names_of(monitor_gave):
    return {(item.rule.id, item.slice) for _, item in monitor_gave.findings if item.fired is not None}


@pytest.fixture(scope="module")
def warm():
    return desk.warm_policy()


@pytest.fixture(scope="module")
def steps_of(warm):
    """Trains in a world. Until the usual onset all worlds are sound, so that those steps are played once."""

    @cache
    def sound(evaluated):
        training = desk.Training(warm, evaluated=evaluated)
        return training, [training.step(step, World()) for step in range(World().onset)]

    def steps(world, evaluated):
        if world.onset < World().onset:
            return desk.train(desk.Training(warm, evaluated=evaluated), world)
        training, before = sound(evaluated)
        return chain(before, desk.train(copy.deepcopy(training), world, world.onset))

    return steps


def watch(steps_of, world, rules):
    """A training, until each of `rules` has fired on its slice, or to its end: what was found, and the summary."""
    seen = CapturingTracker()
    settings = {"catalog": False, "essential_tools": ["search"], "algorithm": "grpo"}
    monitor = Monitor([seen], rules=[RULES[rule] for rule in rules], **settings)
    for step in steps_of(world, not EVALUATED.isdisjoint(rules)):
        monitor.samples(**step.samples)
        for tensors in step.tensors:
            monitor.observe(**tensors)
        monitor.log(step.metrics, step.step)
        if rules.items() <= names_of(seen):
            break
    summary = monitor.close()
    assert not monitor.failures
    return names_of(seen), summary


def test_nothing_is_found_in_a_sound_world_and_no_rule_is_blind(steps_of):
    fired, summary = watch(steps_of, World(), dict.fromkeys(CONCERNED, None))
    assert fired == set()
    assert summary.blind == {}


@pytest.mark.by_day("each call is paid", "a tool is down, which costs", "the loss overflows")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_the_world_is_found(steps_of, fault):
    world, rules = FAULTS[fault]
    fired, _ = watch(steps_of, world, rules)
    assert set(rules.items()) <= fired


@pytest.mark.parametrize(("ill", "rules"), [("", set()), ("slow", {"RES005"}), ("dead", {"RES007"})])
def test_a_rank_that_is_slow_or_dead_is_found(warm, ill, rules):
    """Two ranks, each of which samples for itself; the seconds are the processor's, so that a busy machine is none."""
    store, seen = dist.HashStore(), CapturingTracker()
    looked_for = [RULES["RES005"], RULES["RES007"]]
    ranks = [
        Monitor([seen] * (rank == 0), rules=looked_for, catalog=False, ranks=ThroughStore(store, rank, 2))
        for rank in range(2)
    ]
    for step in range(400):
        for rank, monitor in enumerate(ranks):
            if rank and ill == "dead" and step >= 5:
                continue
            began = time.thread_time()
            for _ in range(4 if rank and ill == "slow" else 1):
                rollout = sampled(warm, step)
            monitor.observe(logprobs=warm.score(rollout.words).detach(), old_logprobs=rollout.logprobs,
                            response_mask=rollout.response, model_mask=rollout.sampled,
                            seconds=time.thread_time() - began)  # fmt: skip
            monitor.log({"reward": 0.5}, step)
        if {rule for rule, _ in names_of(seen)} == rules and step >= 40:
            break
    for monitor in ranks:
        monitor.close()
    assert {rule for rule, _ in names_of(seen)} == rules


def sampled(warm, seed):
    rng = random.Random(seed)
    return desk.play(warm, [desk.task(rng) for _ in range(16)], World(), rng, torch.Generator().manual_seed(seed))
