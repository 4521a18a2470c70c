import random

import pytest
import torch

from tracker_diag.demo.policy import play, score, warm_policy
from tracker_diag.demo.world import (
    ANS,
    CALL,
    END,
    EOS,
    MAX_LENGTH,
    NOISE,
    ONE,
    RESP,
    TWO,
    TXT,
    VAL,
    Episode,
    Task,
    demonstration,
    draw_task,
    tool_output,
)  # fmt: skip

ONE_TASK = Task(ONE, (4, 2), (37, 0))
TWO_TASK = Task(TWO, (4, 2), (37, 81))


def playback(task, tokens, width=0.0):
    episode = Episode(task, random.Random(0), width)
    heard = []
    for token in tokens:
        assert not episode.done
        episode.sample(token)
        heard.append(episode.forced)
        episode.forced = []
    return episode, heard


def value_in(output):
    return output[output.index(VAL) + 1 : output.index(VAL) + 3]


def test_a_right_call_is_answered_with_the_stored_value():
    episode, heard = playback(ONE_TASK, [CALL, 4, 2, ANS, 3, 7, EOS])
    assert value_in(heard[2]) == [3, 7]
    assert episode.done
    assert episode.reward == pytest.approx(1.0)


def test_the_second_call_goes_to_the_value_found():
    episode, heard = playback(TWO_TASK, [CALL, 4, 2, CALL, 3, 7, ANS, 8, 1, EOS])
    assert value_in(heard[5]) == [8, 1]
    assert episode.reward == pytest.approx(1.0)


def test_a_wrong_call_never_errors_and_helps_nobody():
    answers = {tuple(value_in(playback(ONE_TASK, [CALL, 9, 9])[1][2])) for _ in range(1)}
    assert answers
    episode, _ = playback(ONE_TASK, [CALL, 9, 9, ANS, 0, 0, EOS])
    assert episode.reward < 1


@pytest.mark.parametrize(
    ("tokens", "reward"),
    [
        ([ANS, 2, 4, EOS], 1.0),
        ([ANS, 2, 9, EOS], 0.55),
        ([ANS, 2, 4, RESP], 0.9),
        ([ANS, 9, 9, VAL], 0.0),
        ([EOS], 0.0),
    ],
)
def test_rewards_of_a_text_task(tokens, reward):
    episode, _ = playback(Task(TXT, (4, 2), (0, 0)), tokens)
    assert episode.done
    assert episode.reward == pytest.approx(reward)


def test_a_third_call_ends_the_episode():
    episode, _ = playback(TWO_TASK, [CALL, 1, 1, CALL, 1, 1, CALL])
    assert episode.done
    assert episode.reward == 0


def test_width_widens_the_tools_text_and_nothing_else():
    rng = random.Random(0)
    narrow = [tool_output(rng, 37, 0.0) for _ in range(200)]
    wide = [tool_output(rng, 37, 1.0) for _ in range(200)]
    assert all(VAL in output for output in narrow)
    assert sum(VAL in output for output in wide) < 100
    assert max(map(len, narrow)) <= 7 < max(map(len, wide))
    assert len({t for output in narrow for t in output if t in NOISE}) < len({t for o in wide for t in o if t in NOISE})
    assert all(output[0] == RESP and output[-1] == END for output in narrow + wide)


def test_a_demonstration_is_a_perfect_episode():
    rng = random.Random(1)
    for _ in range(50):
        task = draw_task(rng, 0.6)
        tokens, sampled = demonstration(task, rng, 0.05)
        episode, _ = playback(task, [t for t, mine in zip(tokens, sampled, strict=True) if mine])
        assert episode.reward == pytest.approx(1.0)
        assert len(tokens) <= MAX_LENGTH


def test_the_shipped_policy_solves_narrow_tasks_and_its_rollouts_are_consistent():
    torch.manual_seed(0)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    policy = warm_policy()
    tasks = [draw_task(rng, 0.5) for _ in range(256)]
    rollout = play(policy, tasks, 0.05, rng, generator)
    assert rollout.reward.mean() > 0.85
    assert not (rollout.is_model & ~rollout.is_response).any()
    logprobs, entropy = score(policy, rollout.tokens)
    mask = rollout.is_model
    torch.testing.assert_close(logprobs.detach()[mask], rollout.sampler_logprobs[mask], atol=1e-5, rtol=1e-4)
    assert (entropy.detach()[mask] >= 0).all()
