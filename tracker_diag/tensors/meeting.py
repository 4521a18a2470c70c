"""Meeting: whether all ranks are there, asked before any collective, and what comes of their coming together.

A collective that one rank begins alone hangs the job.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median_low
from typing import Any

from tracker_diag.metrics.series import Pair, Rank
from tracker_diag.tensors.observation import Observation


@dataclass(frozen=True)
class Merged:
    """One step of all ranks."""

    observed: dict[Pair, Observation]
    seconds: dict[Rank, float] = field(default_factory=dict[Rank, float])
    """The time that each rank says it took for itself, by rank and host; of those that say."""
    missing: dict[Rank, int] | None = None
    """Steps since a rank was last heard of, by rank and host, without those that are up to date; None where
    nobody can be missing."""
    lost: int = 0
    """Steps of other ranks that were overwritten before they could be read."""

    @property
    def time_ratio(self) -> float | None:
        """Slowest rank's seconds over the median rank's, of two ranks the quicker's; None if fewer than two say."""
        if len(self.seconds) < 2:
            return None
        return max(self.seconds.values()) / max(median_low(self.seconds.values()), 1e-9)


def default_store(name: str) -> Any:
    """The store by which the trainer's own ranks have found each other, with keys of `name` alone."""
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    return c10d.PrefixStore(f"tracker_diag/{name}", c10d._get_default_store())  # noqa: SLF001  # there is no other way to it


def all_there(store: Any, rank: int, world: int, wait: timedelta) -> bool:
    """Whether all of `world` ranks come here within `wait` of the first; the same answer on each, however late.

    `store` has nothing but this meeting.
    """
    store.set(str(rank), b"here")
    try:
        store.wait([str(other) for other in range(world)], wait)
        said = "all"
    except Exception:  # noqa: BLE001  # stores raise what they like where time is over
        said = "some"
    # The first word stands: a rank that comes later must not begin what another has given up.
    return bool(bytes(store.compare_set("said", "", said)) == b"all")
