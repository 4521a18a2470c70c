"""The demo's world: what a call brings, what an episode earns, and what the tool's width changes."""

import random
import runpy
from pathlib import Path

import pytest
import torch

from tracker_diag.demo import world
from tracker_diag.demo.policy import play, score, warm_policy
from tracker_diag.demo.world import ANS, CALL, EOS, ONE, RESP, TWO, TXT, VAL, Episode, Task

TASKS = {kind: Task(kind, (4, 2), (37, 81)) for kind in (TXT, ONE, TWO)}


def playback(kind, tokens):
    """The episode of these tokens, and the values that the tool gave."""
    episode, values = Episode(TASKS[kind], random.Random(0), 0.0), []
    for token in tokens:
        assert not episode.done
        episode.sample(token)
        if output := episode.forced:
            values.append(output[output.index(VAL) + 1 : output.index(VAL) + 3])
        episode.forced = []
    return episode, values


@pytest.mark.parametrize(
    ("kind", "tokens", "reward", "values"),
    [
        (TXT, [ANS, 2, 4, EOS], 1.0, []),
        (TXT, [ANS, 2, 9, EOS], 0.55, []),
        (TXT, [ANS, 2, 4, RESP], 0.9, []),
        (TXT, [ANS, 9, 9, VAL], 0.0, []),
        (TXT, [EOS], 0.0, []),
        (ONE, [CALL, 4, 2, ANS, 3, 7, EOS], 1.0, [[3, 7]]),
        (TWO, [CALL, 4, 2, CALL, 3, 7, ANS, 8, 1, EOS], 1.0, [[3, 7], [8, 1]]),
    ],
)
def test_what_an_episode_earns_and_what_its_calls_bring(kind, tokens, reward, values):
    episode, given = playback(kind, tokens)
    assert episode.done
    assert episode.reward == pytest.approx(reward)
    assert given == values


def test_a_wrong_call_never_errors_and_a_third_one_ends_the_episode():
    assert len(playback(ONE, [CALL, 9, 9])[1]) == 1
    assert playback(ONE, [CALL, 9, 9, ANS, 0, 0, EOS])[0].reward < 1
    episode, _ = playback(TWO, [CALL, 1, 1, CALL, 1, 1, CALL])
    assert (episode.done, episode.reward) == (True, 0)


def test_width_widens_the_tools_text_and_nothing_else():
    rng = random.Random(0)
    narrow, wide = ([world.tool_output(rng, 37, width) for _ in range(200)] for width in (0.0, 1.0))
    assert all(VAL in output for output in narrow)
    assert sum(VAL in output for output in wide) < 100
    assert max(map(len, narrow)) <= 7 < max(map(len, wide))
    few, many = (
        {token for output in outputs for token in output if token in world.NOISE} for outputs in (narrow, wide)
    )
    assert len(few) < len(many)
    assert all(output[0] == RESP and output[-1] == world.END for output in narrow + wide)


def test_a_demonstration_is_a_perfect_episode():
    demonstration = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_warm_start.py"))["demonstration"]
    rng = random.Random(1)
    for _ in range(50):
        task = world.draw_task(rng, 0.6)
        tokens, sampled = demonstration(task, rng, 0.05)
        episode = Episode(task, rng, 0.0)
        for token in (token for token, mine in zip(tokens, sampled, strict=True) if mine):
            episode.sample(token)
        assert episode.reward == pytest.approx(1.0)
        assert len(tokens) <= world.MAX_LENGTH


def test_the_shipped_policy_solves_narrow_tasks_and_its_rollouts_are_consistent():
    torch.manual_seed(0)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    policy = warm_policy()
    rollout = play(policy, [world.draw_task(rng, 0.5) for _ in range(256)], 0.05, rng, generator)
    assert rollout.reward.mean() > 0.85
    mask = rollout.is_model
    assert not (mask & ~rollout.is_response).any()
    logprobs, entropy = score(policy, rollout.tokens)
    torch.testing.assert_close(logprobs.detach()[mask], rollout.sampler_logprobs[mask], atol=1e-5, rtol=1e-4)
    assert (entropy.detach()[mask] >= 0).all()
