"""Shares: each rank of a `torch.distributed` job makes the loss of its share of a batch, and one rank logs.

That one, rank 0 of those that have a share, has a monitor with `together`. The others have a `Share`, which evaluates
nothing and writes nowhere. It leaves the counts of a step's losses in the store that connects the ranks of the job. No
collective is added, and no rank waits. What comes after rank 0 has logged a step belongs to its next one. A rank that
has died is reported as missing.
"""

from tracker_diag.attach.kit import place_in_job
from tracker_diag.errors import disabled
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.tensors.ranks import default_store
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.store import ThroughStore


def together(rank: int, world: int) -> ThroughStore | None:
    """How the shares of a job come together: `rank` of `world` processes with one; None where nobody else is in it."""
    if disabled() or min(world, place_in_job()[1]) < 2:
        return None
    return ThroughStore(default_store("shares"), rank, world)


class Share:
    """A rank that does not log: what its losses come to is handed over, once a step, to the `ranks` of `together`."""

    def __init__(self, ranks: ThroughStore) -> None:
        self._ranks = ranks
        self.monitor = Monitor(catalog=False, ranks=ranks)
        """Takes in the tensors."""
        self._step: int | None = None

    def stepped(self, step: int) -> None:
        """The losses of a step of rank 0, or of an earlier one, are made: hand over what has come.

        Once a step that is done even if it is nothing, so that this rank is heard of.
        """
        if self.monitor.observed:
            self.monitor.log({}, step)
        elif step != self._step:
            with self.monitor.guard("rank_errors"):
                self._ranks.merge(step, {}, Names())
        self._step = step
