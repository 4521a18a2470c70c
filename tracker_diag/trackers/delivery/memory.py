"""Memory: entries that the disk did not take, in their order, until they have arrived."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any


class Memory:
    """As a journal: what was given stays until it is known to have arrived. Its owner has the lock."""

    def __init__(self) -> None:
        self._entries: deque[dict[str, Any]] = deque()
        self.given = 0
        """How many of them the tracker was handed."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def steps(self) -> int:
        """Steps that it has anything of."""
        return len({entry.get("step") for entry in self._entries})

    def append(self, entry: dict[str, Any], most: int) -> int:
        """Keep `entry`. Beyond `most` entries the oldest scalars go, findings never; returns how many went."""
        self._entries.append(entry)
        if len(self._entries) > most:
            for i in range(self.given + 1, len(self._entries)):  # the one before may be on its way
                if "scalars" in self._entries[i] or "metrics" in self._entries[i]:
                    del self._entries[i]
                    return 1
        return 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Those that were not given yet, the next one as soon as `given` tells that the last one was."""
        while self.given < len(self._entries):
            yield self._entries[self.given]

    def delivered(self) -> None:
        """All that was given has arrived."""
        self._entries, self.given = deque(islice(self._entries, self.given, None)), 0
