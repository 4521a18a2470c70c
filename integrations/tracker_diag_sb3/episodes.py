"""Episodes of a training: those that SB3's Monitor wrapper has recorded, and what the learner was paid in them."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST = 10_000
"""Episodes between two rows that are looked at: the last ones."""

COMPARED = 100
"""Episodes whose recorded return is held against what the learner was paid: the last ones."""
FEWEST = 10
"""Of these, at least."""

ENDLESS = 3
"""Time limits of the environment that have passed in each of them, without one that has ended: none will."""

UNLIMITED = 20_000
"""Steps that stand for a time limit where the environment has none."""

NO_END = (
    "no episode has ended in {steps:,} steps of each environment, of which one should take {most:,} at most: no return "
    "and no length is logged, and rules about reward see nothing. Does the environment ever say that one has ended?"
)


class Episodes:
    """What is known of the episodes of one `learn`.

    Args:
        envs: SB3's vector of environments.
        begun_at: steps that were made before it.
    """

    def __init__(self, envs: Any, begun_at: int) -> None:
        self._begun_at, self._steps = begun_at, 0
        self._limit: int = getattr(envs.get_attr("spec")[0], "max_episode_steps", None) or UNLIMITED
        self.ended: deque[dict[str, Any]] = deque(maxlen=MOST)
        """Those that have ended since the last row."""
        self._any, self._warned = False, False
        self._paid = np.zeros(envs.num_envs)
        """What each environment has paid in the episode that is under way."""
        self._absolute, self._counted = 0.0, 0
        self._compared: deque[tuple[float, float]] = deque(maxlen=COMPARED)

    def stepped(self, local: Mapping[str, Any], step: int) -> None:
        """After a step of all environments: `local` are the variables of the trainer's loop."""
        self._steps = (step - self._begun_at) // len(self._paid)
        rewards, dones = np.asarray(local["rewards"], float), np.asarray(local["dones"])
        self._paid += rewards
        self._absolute, self._counted = self._absolute + float(np.abs(rewards).sum()), self._counted + len(rewards)
        if not dones.any():
            return
        self._any = True
        for place in np.flatnonzero(dones):
            if "episode" in (info := local["infos"][place]):
                self.ended.append({"place": int(place), **info})
                self._compared.append((float(self._paid[place]), float(info["episode"]["r"])))
        self._paid[dones] = 0.0

    @property
    def _overdue(self) -> float:
        """Time limits that have passed without the end of any; 0 as soon as one has ended, and before `ENDLESS`."""
        passed = self._steps / self._limit
        return passed if passed >= ENDLESS and not self._any else 0.0

    @property
    def has_news(self) -> bool:
        return bool(self.ended) or self._overdue > 0

    @property
    def several(self) -> int:
        """How many environments those that have ended may be of."""
        return 1 + max(int(episode["place"]) for episode in self.ended)

    @property
    def mean_length(self) -> float:
        """Steps of those that have ended since the last row; 0 without any."""
        return float(np.mean([episode["episode"]["l"] for episode in self.ended])) if self.ended else 0.0

    def none_has_ended(self) -> str:
        """Where none ends, nothing of returns and lengths is logged: what to say of it, the first time."""
        if not self._overdue or self._warned:
            return ""
        self._warned = True
        return NO_END.format(steps=self._steps, most=self._limit)

    def measured(self) -> dict[str, float]:
        """By canonical name, what no logger of SB3's has."""
        values = {"reward_scale": self._absolute / self._counted} if self._counted else {}
        self._absolute, self._counted = 0.0, 0
        if self._overdue:
            values["episode_overdue"] = self._overdue
        paid, recorded = np.array(self._compared).reshape(-1, 2).T
        if len(paid) >= FEWEST and paid.std() > 0 and recorded.std() > 0:
            values["reward_agreement"] = float(np.corrcoef(paid, recorded)[0, 1])
        return values

    def samples(self, names: Any) -> dict[str, Any]:
        """Of those that have ended, what `Monitor.samples` takes; `names` are those of the environments."""
        ended = [*self.ended]
        self.ended.clear()
        columns: dict[str, Any] = {
            "reward": [float(episode["episode"]["r"]) for episode in ended],
            "truncated": [bool(episode.get("TimeLimit.truncated", False)) for episode in ended],
            "env": [str(names[episode["place"]]) for episode in ended],
        }
        if any("is_success" in episode for episode in ended):
            columns["success"] = [float(info["is_success"]) if "is_success" in info else None for info in ended]
        return columns
