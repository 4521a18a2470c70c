"""A series of any length in bounded memory: means of blocks of one size over the whole run."""

from dataclasses import dataclass, field
from typing import ClassVar

from tracker_diag.detect.saved import Saved

MOST = 128
"""Means that are kept, at least: when there are twice as many, each two become one."""
LARGEST = 1e100
"""Values count as at most this in size, so that their squares can be added up."""


@dataclass
class BlockMeans(Saved):
    """At most `2 * MOST - 1` means of blocks of `size` values, with the last step of each."""

    kept: ClassVar[tuple[str, ...]] = ("size", "means", "ends", "open")

    size: int = 1
    means: list[float] = field(default_factory=list[float])
    ends: list[int] = field(default_factory=list[int])
    """The last step of each block."""
    open: list[float] = field(default_factory=list[float])
    """Values of the block that is not full yet."""

    def append(self, step: int, value: float) -> bool:
        """Take the next value in. Returns whether a block is full with it."""
        self.open.append(min(max(value, -LARGEST), LARGEST))
        if len(self.open) < self.size:
            return False
        self.means.append(sum(self.open) / self.size)
        self.ends.append(step)
        self.open = []
        if len(self.means) == 2 * MOST:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.ends, self.size = self.ends[1::2], 2 * self.size
        return True
