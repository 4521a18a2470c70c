"""Small control tasks: of the trainers' own kind, cheap enough that a run takes seconds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np


class Reach(gym.Env[Any, Any]):
    """A point in the plane is pushed to a goal for 40 steps; what is paid is the negative distance."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._goal = self.np_random.uniform(-1, 1, (2, 2))
        self._left = 40
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = np.clip(self._at + 0.15 * np.clip(action, -1, 1), -2, 2)
        self._left -= 1
        return self._seen(), -float(np.linalg.norm(self._at - self._goal)), False, self._left == 0, {}

    def _seen(self) -> Any:
        return np.concatenate([self._at, self._goal]).astype(np.float32)


class Brake(gym.Env[Any, Any]):
    """A cart with speed and a wind is to be held at 0 for 60 steps; each step near is paid, and beyond 2 it is lost."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._v, self._wind = self.np_random.uniform([-1, -0.3, -0.3], [1, 0.3, 0.3])
        self._left = 60
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = float(np.clip(np.asarray(action).reshape(-1)[0], -1, 1))
        self._v = 0.98 * self._v + 0.1 * (push + self._wind)
        self._x += 0.3 * self._v
        self._left -= 1
        return self._seen(), 1.0 - min(abs(self._x), 1.0), abs(self._x) > 2, self._left == 0, {}

    def _seen(self) -> Any:
        return np.clip([self._x, self._v, self._wind], -4, 4).astype(np.float32)


class Catch(gym.Env[Any, Any]):
    """Four balls fall one after another, each 8 rows deep; a paddle of one cell catches them (1) or not (-1)."""

    ROWS, CELLS, BALLS = 8, 7, 4

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._paddle, self._left = self.CELLS // 2, self.BALLS
        self._drop()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, self.CELLS - 1))
        self._row += 1
        paid = 0.0
        if self._row == self.ROWS:
            paid = 1.0 if self._ball == self._paddle else -1.0
            self._left -= 1
            self._drop()
        return self._seen(), paid, self._left == 0, False, {}

    def _drop(self) -> None:
        self._row, self._ball = 0, int(self.np_random.integers(self.CELLS))

    def _seen(self) -> Any:
        half = (self.CELLS - 1) / 2
        at = [self._row / self.ROWS, (self._ball - half) / half, (self._paddle - half) / half]
        return np.array([*at, (self._ball - self._paddle) / self.CELLS], np.float32)


class Balance(gym.Env[Any, Any]):
    """A ball on a beam that rolls off faster the farther out it is; each of 200 steps on it is paid."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._v = self.np_random.uniform(-0.2, 0.2, 2)
        self._left = 200
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._v += 0.03 * self._x + (0.02 if action else -0.02) + self.np_random.normal(0, 0.004)
        self._x += self._v
        self._left -= 1
        return self._seen(), 1.0, abs(self._x) > 1, self._left == 0, {}

    def _seen(self) -> Any:
        return np.clip([self._x, 5 * self._v], -4, 4).astype(np.float32)


class Follow(gym.Env[Any, Any]):
    """A cart on a line follows a light that swings to and fro for 50 steps; what is paid is the negative distance."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._v, self._phase = self.np_random.uniform([-1, -0.1, 0], [1, 0.1, 2 * np.pi])
        self._left = 50
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._v = 0.9 * self._v + 0.1 * float(np.clip(np.asarray(action).reshape(-1)[0], -1, 1))
        self._x = float(np.clip(self._x + self._v, -3, 3))
        self._phase += 0.15
        self._left -= 1
        return self._seen(), -abs(self._x - float(np.sin(self._phase))), False, self._left == 0, {}

    def _seen(self) -> Any:
        return np.array([self._x, 5 * self._v, np.sin(self._phase), np.cos(self._phase)], np.float32).clip(-4, 4)


class Land(gym.Env[Any, Any]):
    """A point with speed in the plane is brought to rest at 0; each of 50 steps costs the squared distance and push."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._x, self._v = self.np_random.uniform(-2, 2, 2), self.np_random.uniform(-0.5, 0.5, 2)
        self._left = 50
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = np.clip(np.asarray(action), -1, 1)
        self._v = self._v + 0.15 * push
        self._x = np.clip(self._x + 0.2 * self._v, -8, 8)
        self._left -= 1
        return self._seen(), -float(self._x @ self._x + 0.1 * push @ push), False, self._left == 0, {}

    def _seen(self) -> Any:
        return np.concatenate([self._x, self._v]).clip(-10, 10).astype(np.float32)


class Maze(gym.Env[Any, Any]):
    """5 by 5 fields behind a wall with one gap; only the goal is paid (1), and ends the episode, as 30 steps do."""

    MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (10,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = np.array([int(self.np_random.integers(2)), int(self.np_random.integers(5))])
        self._left = 30
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        to = np.clip(self._at + self.MOVES[int(action)], 0, 4)
        if to[0] != 2 or to[1] == 3:
            self._at = to
        self._left -= 1
        there = bool((self._at == [4, 0]).all())
        return self._seen(), float(there), there, self._left == 0, {}

    def _seen(self) -> Any:
        seen = np.zeros(10, np.float32)
        seen[[self._at[0], 5 + self._at[1]]] = 1
        return seen


class Stock(gym.Env[Any, Any]):
    """A shop orders 0 to 5 pieces a day for 30 days; one costs 2 and sells for 5, if asked for, and keeping it 0.3."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 4, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._here, self._left = 5, 30
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted = int(self.np_random.poisson(2.5))
        self._here = min(self._here + int(action), 20)
        sold = min(wanted, self._here)
        self._here -= sold
        self._left -= 1
        return self._seen(), 5.0 * sold - 2.0 * int(action) - 0.3 * self._here, False, self._left == 0, {}

    def _seen(self) -> Any:
        return np.array([self._here / 5, self._left / 30], np.float32)


class Guess(gym.Env[Any, Any]):
    """Five questions with one right answer of four, which the observation tells; what is paid is mostly noise."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-4, 4, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 5
        return self._ask(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = 2 * int(self._asked[0] > 0) + int(self._asked[1] + self._asked[2] > 0)
        paid = float(int(action) == right) + float(self.np_random.normal(0, 1.5))
        self._left -= 1
        return self._ask(), paid, self._left == 0, False, {}

    def _ask(self) -> Any:
        self._asked = self.np_random.normal(0, 1, 3).clip(-4, 4).astype(np.float32)
        return self._asked


TASKS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "CartPole": partial(gym.make, "CartPole-v1"),
    "Acrobot": partial(gym.make, "Acrobot-v1"),
    "Reach": Reach,
    "Brake": Brake,
    "Catch": Catch,
    "Balance": Balance,
    "Follow": Follow,
    "Land": Land,
    "Maze": Maze,
    "Stock": Stock,
    "Guess": Guess,
}
