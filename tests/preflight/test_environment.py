"""Environments that hang, raise, or give what they should not: preflight says which call it was, and comes back."""

import sys
import threading

import gymnasium
import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.preflight.environment import expert_check


class Works:
    """The contract, kept; each test breaks a part of it."""

    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None):
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return self.steps, 1.0, self.steps >= 3, False, {}


def by_name(report):
    return {check.name: check for check in report.checks}


@pytest.fixture
def hangs():
    """Does not return until the test is over."""
    over = threading.Event()
    yield lambda *given, **named: over.wait()
    over.set()


def test_an_environment_that_keeps_its_contract_passes():
    result = by_name(td.preflight(env=Works()))
    assert [result[name].status for name in ("env_steps", "env_ends")] == ["pass"] * 2
    assert result["env_steps"].values == {"steps": 15, "mean_return": 3.0}
    assert result["env_api"].status == "not checked"
    assert result["expert_beats_random"].do.startswith("give env=... and policy=...")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_hangs_is_left_behind(hangs, where):
    report = td.preflight(env=type("Hangs", (Works,), {where: hangs})(), policy=lambda seen: 1, seconds=0.1)
    result = by_name(report)
    assert result["env_steps"].status == "fail"
    assert result["env_steps"].reason.endswith("of episode 0 did not return in time")
    assert where in result["env_steps"].reason
    assert {result[name].status for name in ("env_ends", "env_api", "expert_beats_random")} == {"not checked"}


@pytest.mark.slow
def test_an_environment_that_hangs_later_on_is_left_behind_too(hangs):
    class Later(Works):
        resets = 0

        def reset(self, *, seed=None):
            self.resets += 1
            return hangs() if self.resets > 6 else super().reset()

    result = by_name(td.preflight(env=Later(), policy=lambda seen: 1, seconds=2))
    assert result["env_steps"].status == "pass"
    assert result["expert_beats_random"].reason == "at random: reset of episode 1 did not return in time"
    assert result["env_api"].status == "not checked"


def test_what_makes_an_environment_may_hang_or_raise(hangs):
    reason = by_name(td.preflight(env=hangs, seconds=0.1))["env_api"].reason
    assert reason == "what makes the environment did not return in time"

    def raises():
        raise OSError("no such server")

    assert "raised OSError: no such server" in by_name(td.preflight(env=raises))["env_api"].reason


@pytest.mark.slow
def test_a_policy_that_hangs_or_raises_is_named(hangs):
    result = by_name(td.preflight(env=Works(), random_policy=lambda seen: 0, policy=hangs, seconds=2))
    assert (
        result["expert_beats_random"].reason
        == "by the policy: the policy at step 0 of episode 0 did not return in time"
    )
    result = by_name(td.preflight(env=Works(), policy=lambda seen: seen["x"]))
    assert "the policy at step 0 of episode 0 raised TypeError" in result["expert_beats_random"].reason


@pytest.mark.parametrize("error", [RuntimeError("no display"), SystemExit("bye"), AssertionError()])
def test_an_environment_that_raises_fails_with_what_it_raised(error):
    def step(self, action):
        raise error

    check = by_name(td.preflight(env=type("Raises", (Works,), {"step": step})()))["env_steps"]
    assert check.status == "fail"
    assert check.reason.startswith(f"step 0 of episode 0 raised {type(error).__name__}")


WRONG = {
    "reset without info": ("reset", lambda self, seed=None: 0, "reset of episode 0 raised TypeError: cannot unpack"),
    "no observation": ("reset", lambda self, seed=None: (None, {}), "an observation is None"),
    "NaN in an observation": ("reset", lambda self, seed=None: (np.array([np.nan]), {}), "NaN or infinite"),
    "four values": ("step", lambda self, action: (0, 0.0, False, {}), "(expected 5, got 4)"),
    "nothing": ("step", lambda self, action: None, "step 0 of episode 0 raised TypeError: cannot unpack"),
    "a reward of text": ("step", lambda self, action: (0, "high", False, False, {}), "raised TypeError: must be real"),
    "a reward of None": ("step", lambda self, action: (0, None, False, False, {}), "raised TypeError: must be real"),
    "a reward of NaN": ("step", lambda self, action: (0, np.nan, False, False, {}), "gave the reward nan"),
    "an infinite reward": ("step", lambda self, action: (0, -np.inf, False, False, {}), "gave the reward -inf"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_contract_does_not_allow_is_reported(name):
    where, does, reason = WRONG[name]
    check = by_name(td.preflight(env=type("Wrong", (Works,), {where: does})()))["env_steps"]
    assert check.status == "fail"
    assert reason in check.reason
    assert check.do


def test_an_observation_outside_its_space_is_reported():
    space = gymnasium.spaces.Box(-1, 1, (2,))
    check = by_name(
        td.preflight(
            env=type(
                "Outside",
                (Works,),
                {"observation_space": space, "reset": lambda self: (np.array([3.0], np.float32), {})},
            )()
        )
    )["env_steps"]
    assert check.reason.startswith(
        "an observation is outside observation_space Box(-1.0, 1.0, (2,), float32): array([3.]"
    )


@pytest.mark.parametrize(("value", "check"), [(5000.0, "env_scale"), (np.nan, "env_steps")])
def test_the_parts_of_an_observation_are_looked_at(value, check):
    """Gymnasium itself takes NaN for a part of a space of dictionaries."""
    inner = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    space = gymnasium.spaces.Dict(x=gymnasium.spaces.Tuple([inner]))
    given = {"x": (np.array([value], np.float32),)}
    changes = {
        "observation_space": space,
        "reset": lambda self: (given, {}),
        "step": lambda self, action: (given, 1.0, True, False, {}),
    }
    assert by_name(td.preflight(env=type("Nested", (Works,), changes)()))[check].status == "fail"


@pytest.mark.parametrize("part", [None, "hi", np.array(["a", "b"]), np.array([object()])])
def test_a_part_of_an_observation_need_not_be_a_number(part):
    given = {"x": np.zeros(1, np.float32), "y": part}
    changes = {"reset": lambda self: (given, {}), "step": lambda self, action: (given, 1.0, True, False, {})}
    assert by_name(td.preflight(env=type("Mixed", (Works,), changes)()))["env_steps"].status == "pass"


def test_the_parts_of_an_action_are_looked_at():
    space = gymnasium.spaces.Dict(x=gymnasium.spaces.Box(-500, 500, (1,)))
    check = by_name(td.preflight(env=type("Nested", (Works,), {"action_space": space})()))["env_scale"]
    assert check.values["action"] == 500


def test_an_action_space_may_raise_or_hang(hangs):
    def raises(self):
        raise RuntimeError("not before reset")

    tried = ((raises, 30, "raised RuntimeError: not before reset"), (hangs, 0.1, "did not return in time"))
    for space, seconds, reason in tried:
        env = type("Raises", (Works,), {"action_space": property(space)})()
        assert by_name(td.preflight(env=env, seconds=seconds))["env_steps"].reason == f"its action_space {reason}"


def test_an_environment_that_was_made_here_is_closed_and_no_other():
    closed = []

    class Closes(Works):
        def close(self):
            closed.append(self)

    td.preflight(env=Closes, policy=lambda seen: 1)
    assert len(closed) == 1
    td.preflight(env=Closes(), policy=lambda seen: 1)
    assert len(closed) == 1


def test_what_is_no_environment_is_reported():
    assert by_name(td.preflight(env=object))["env_api"].reason == "object has no reset and no step"


def test_without_an_action_space_something_has_to_act():
    result = by_name(td.preflight(env=type("NoSpace", (Works,), {"action_space": None})()))
    assert {result[name].do for name in ("env_steps", "env_ends")} == {
        "give random_policy=..., from an observation to an action, as the environment has no action_space"
    }


def test_too_little_time_is_no_verdict():
    result = by_name(td.preflight(env=Works(), policy=lambda seen: 1, seconds=0.0))
    assert result["env_ends"].do == result["expert_beats_random"].do == "give more time with seconds=..."


@pytest.mark.slow
def test_real_environments_of_gymnasium_pass_their_checker():
    for name in ("CartPole-v1", "FrozenLake-v1", "Pendulum-v1"):
        result = by_name(td.preflight(env=lambda name=name: gymnasium.make(name)))
        assert {result[check].status for check in ("env_steps", "env_ends", "env_api")} == {"pass"}, name
        assert "\x1b" not in result["env_api"].reason
        assert result["env_api"].reason.startswith("check_env of Gymnasium and Stable-Baselines3: nothing wrong")
        if name == "Pendulum-v1":
            assert "symmetric and normalized Box action space" in result["env_api"].reason


def test_what_a_checker_refuses_is_a_finding_and_the_rest_is_checked():
    class OneStep(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)
        over = 1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {}

        def step(self, action):
            return 0, 1.0, self.over, False, {}

    result = by_name(td.preflight(env=OneStep, policy=lambda seen: 1))
    assert result["env_api"].status == "fail"
    refused = "Stable-Baselines3's check_env raised AssertionError: The `terminated` signal must be a boolean"
    assert result["env_api"].reason == refused
    assert "gymnasium.farama.org" in result["env_api"].do
    assert result["env_ends"].status == "pass"
    assert result["expert_beats_random"].values["random"] == 1

    class Words(OneStep):  # no space of Stable-Baselines3, which is no mistake
        observation_space, over = gymnasium.spaces.Text(9), True

        def reset(self, *, seed=None, options=None):
            return "go", super().reset(seed=seed)[1]

        def step(self, action):
            return "end", *super().step(action)[1:]

    assert by_name(td.preflight(env=Words))["env_api"].reason == "check_env of Gymnasium: nothing wrong"


@pytest.mark.slow
def test_warnings_are_shown_again_after_a_checker_that_hangs(hangs):
    class Hangs(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)
        resets = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.resets += 1
            self.steps = 0
            return hangs() if self.resets > 7 else (0, {})

        def step(self, action):
            self.steps += 1
            return self.steps, 1.0, self.steps >= 3, False, {}

    shown = sys.modules["warnings"].showwarning
    assert (
        by_name(td.preflight(env=Hangs, seconds=2))["env_api"].reason == "Gymnasium's check_env did not return in time"
    )
    assert sys.modules["warnings"].showwarning is shown


@pytest.mark.slow
def test_an_expert_no_better_than_chance_does_not_pass():
    drawn = np.random.default_rng(0).normal(size=(60, 2, 100))
    statuses = [expert_check(random, expert).status for random, expert in drawn]
    assert statuses.count("pass") <= 5  # 2.5 % of 60 are 1 or 2
    better = [expert_check(random, expert + 1).status for random, expert in drawn]
    assert better.count("pass") == 60
