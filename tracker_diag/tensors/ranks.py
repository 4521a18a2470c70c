"""Across ranks: the observations of all come together, so that every statistic is of the whole batch.

`AllReduce` takes two collectives a step, of a size that does not depend on the data, on every rank. `ThroughStore`
takes none: each rank leaves its part in a store, and rank 0 takes what is there. So a late, dead or absent rank delays
no other; it is reported instead, and guards only recommend. Both need the extra `torch`.

Give every rank a `Monitor(ranks=...)`, rank 0 with trackers and the others without. On each of them call `observe`,
then `log`, once a step. Rank 0 may also log without tensors.
"""

import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.errors import require
from tracker_diag.metrics.series import DIMENSIONS, NAMED_ROWS, PAIRS, Dimension, Pair, Rank
from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import BINS, Sketch
from tracker_diag.tensors.observation import SEQUENCE_ROWS, SHAPES, Observation, added, renamed, rows_of
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.store import WAIT, Merged, ThroughStore

MEET = timedelta(minutes=1)
"""How long the first rank waits until all have made an `AllReduce`. A tracker may take seconds to begin its run."""
INT32_MAX = 2**31 - 1
NO = "no"
"""In a store an empty word is none."""
CELLS = 2 * BINS + 1
"""Counts of a row of a sketch, and how many are not finite."""
STEP, SECONDS, KNOWN, HAS = range(4)
"""Columns of what each rank gathers: its step, its seconds, whether it knows all names, whether it has a dimension;
of the last one for each dimension, and after them the sums."""


class AllReduce(ThroughStore):
    """One all_gather of float64 sums and one all_reduce of integer counts a step, over `torch.distributed`.

    They run in a process group of their own, so that they never mix with the trainer's. A name of a tool or environment
    that is new to a rank costs one more exchange, once. If a rank falls out of step, or does not come for 5 seconds,
    the ranks separate for good. A warning says so, and they continue as with `ThroughStore`, in the store by which they
    found each other. They do so from the start if not all of them make one within a minute.

    Made on every rank at about the same time: the first one waits for the last.

    Args:
        backend: of the group; gloo works on the host, nccl on the device.
    """

    _made = 0
    """How many this process has made: they meet by their number."""

    def __init__(self, backend: str = "gloo") -> None:
        require("torch", "torch")
        import torch
        import torch.distributed as dist

        AllReduce._made += 1
        self._name = f"all_reduce/{AllReduce._made}"
        super().__init__(default_store(f"{self._name}/store"), dist.get_rank(), dist.get_world_size())
        self._torch, self._dist = torch, dist
        self._world = dist.get_world_size()
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._exchanges = 0
        """How many were begun, the same number on all ranks that meet in one."""
        self._parted = False
        self._hosts: list[str] = [""] * self._world
        if not all_there(default_store(self._name), self._rank, self._world, MEET):
            self._part(0, TimeoutError(f"not all of {self._world} ranks have made an AllReduce within {MEET}"))
            return
        self._group: Any = dist.new_group(backend=backend, timeout=WAIT)
        dist.all_gather_object(self._hosts, socket.gethostname(), group=self._group)

    def merge(
        self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None = None
    ) -> Merged:
        """The step of all ranks, the same on each of them, to the bit in its counts.

        Args:
            observed: what this rank has, with rows of its own `names`.
            seconds: that this rank took for itself.
        """
        if not self._parted:
            try:
                return self._merge(step, observed, names, seconds)
            except Exception as error:  # noqa: BLE001  # whatever it was, the next call would not fit the others'
                self._part(step, error)
        return super().merge(step, observed, names, seconds)

    @property
    def together(self) -> bool:
        """Until they part."""
        return not self._parted

    def exchange(self, step: int, message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
        """The `message` of each rank, by one collective; if one of them does not come, they part."""
        if self._parted:
            return None
        everyones: list[Any] = [None] * self._world
        self._exchanges += 1
        try:
            self._dist.all_gather_object(everyones, (step, message), group=self._group)
        except Exception as error:  # noqa: BLE001  # as in `merge`
            self._part(step, error)
            return None
        steps = [at for at, _ in everyones]
        if len({*steps}) > 1:
            self._part(step, ValueError(f"decide at steps {steps}, expected the same on every rank"))
            return None
        return [given for _, given in everyones]

    def settle(self, word: str) -> str | None:
        """The first word in the store by which the ranks have found each other."""
        try:
            settled = default_store(f"{self._name}/settled").compare_set(str(self._exchanges), "", word or NO)
        except Exception as error:  # noqa: BLE001  # whatever a store raises
            self._failed.append(RuntimeError(f"no decision: {type(error).__name__}: {error}"))
            return None
        return bytes(settled).decode().removeprefix(NO)

    def close(self) -> Merged:
        """Send what is still to be sent, and take the rest, where the ranks have parted."""
        merged = super().close()
        return merged if self._parted else Merged({}, lost=merged.lost)

    def _part(self, step: int, error: Exception) -> None:
        self._parted = True
        what = f"the ranks separate at step {step}, and continue through a store: {type(error).__name__}: {error}"
        self._failed.append(RuntimeError(what))

    def _merge(self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None) -> Merged:
        dimensions = {dimension for observation in observed.values() for dimension in observation.sketches}
        own = float("nan") if seconds is None else seconds
        header = [step, own, float(_known(names, self.names)), *(float(d in dimensions) for d in DIMENSIONS)]
        gathered = self._gather(np.concatenate([header, *(sums_of(observed.get(pair)) for pair in PAIRS)]))
        if (gathered[:, STEP] != step).any():
            steps = ", ".join(f"{step:.0f}" for step in gathered[:, STEP])
            raise ValueError(f"steps {steps} given, expected the same on every rank")
        if not gathered[:, KNOWN].all():
            self._agree(names)
        taken = {
            Rank(i, host): float(gathered[i, SECONDS])
            for i, host in enumerate(self._hosts)
            if np.isfinite(gathered[i, SECONDS])
        }
        together: list[Dimension] = [d for i, d in enumerate(DIMENSIONS) if gathered[:, HAS + i].any()]
        sums = gathered[:, HAS + len(DIMENSIONS) :].reshape(self._world, len(PAIRS), -1)
        pairs: list[Pair] = [pair for i, pair in enumerate(PAIRS) if sums[:, i, 0].any()]
        if not pairs:
            return Merged({}, taken)
        mine = renamed(observed, names, self.names)
        counts = np.concatenate([counts_of(mine.get(pair), together) for pair in pairs])
        total = self._sum(counts, small=float(sums[:, :, 1].sum()) <= INT32_MAX)
        merged: dict[Pair, Observation] = {
            pair: observation_of(part, sums[:, list(PAIRS).index(pair)], together)
            for pair, part in zip(pairs, np.split(total, len(pairs)), strict=True)
        }
        return Merged(merged, taken)

    def _gather(self, sent: Float64Array) -> Float64Array:
        mine = self._torch.from_numpy(sent).to(self._device)
        everyones = [self._torch.empty_like(mine) for _ in range(self._world)]
        self._dist.all_gather(everyones, mine, group=self._group)
        gathered: Float64Array = self._torch.stack(everyones).cpu().numpy()
        return gathered

    def _sum(self, counts: IntArray, small: bool) -> IntArray:
        tensor = self._torch.from_numpy(counts.astype(np.int32 if small else np.int64)).to(self._device)
        self._dist.all_reduce(tensor, group=self._group)
        summed: IntArray = tensor.cpu().numpy().astype(np.int64)
        return summed

    def _agree(self, names: Names) -> None:
        """Take up the names of all ranks, in the order of the ranks, which is the same everywhere."""
        everyones: list[dict[Dimension, list[str]]] = [{}] * self._world
        mine = {dimension: [*names.rows[dimension], *names.folded[dimension]] for dimension in names.rows}
        self._dist.all_gather_object(everyones, mine, group=self._group)
        for theirs in everyones:
            self.names.adopt(theirs)


Ranks: TypeAlias = ThroughStore
"""How the observations of several ranks come together. Failures are given by `errors`, never raised."""


def default_store(name: str) -> Any:
    """The store by which the trainer's own ranks have found each other, with keys of `name` alone."""
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    return c10d.PrefixStore(f"tracker_diag/{name}", c10d._get_default_store())  # noqa: SLF001  # there is no other way to it


def all_there(store: Any, rank: int, world: int, wait: timedelta) -> bool:
    """Whether all of `world` ranks come here within `wait` of the first; the same answer on each, however late.

    It is asked before any collective: one that a rank begins alone hangs the job. `store` has nothing but this meeting.
    """
    store.set(str(rank), b"here")
    try:
        store.wait([str(other) for other in range(world)], wait)
        word = "all"
    except Exception:  # noqa: BLE001  # stores raise what they like where time is over
        word = "some"
    # The first word counts: a rank that comes later must not begin what another has given up.
    return bool(bytes(store.compare_set("said", "", word)) == b"all")


def sums_of(observed: Observation | None) -> Float64Array:
    """Whether there is an observation, how many values it has, and its sums, in fixed places."""
    if observed is None:
        return np.zeros(2 + sum(a * b for a, b in SHAPES))
    n = max(float(counted.cells[1].sum() + counted.nonfinite.sum()) for counted in observed.sketches.values())
    return np.concatenate([[1.0, n], *(part.reshape(-1) for part in observed.sums)])


def counts_of(observed: Observation | None, dimensions: Sequence[Dimension]) -> IntArray:
    """All counts in one array: of `dimensions` in their order, then of the sequences."""
    known = [observed.sketches.get(d) for d in dimensions] + [observed.sequence_sketch] if observed else []
    parts: list[IntArray] = []
    for rows, counted in zip_longest(_rows(dimensions), known):
        parts += [counted.counts.reshape(-1), counted.nonfinite] if counted else [np.zeros(rows * CELLS, np.int64)]
    return np.concatenate(parts)


def observation_of(integers: IntArray, sums: Float64Array, dimensions: Sequence[Dimension]) -> Observation:
    """The merge of all ranks: counts summed already, sums (world, …) of `sums_of`."""
    rows = _rows(dimensions)
    parts = np.split(integers, np.cumsum([n * CELLS for n in rows])[:-1])
    *sketches, of_sequences = (Sketch(part[:-n], part[-n:]) for n, part in zip(rows, parts, strict=True))
    cuts = np.cumsum([a * b for a, b in SHAPES])[:-1]
    of_ranks = (
        [part.reshape(shape) for part, shape in zip(np.split(given[2:], cuts), SHAPES, strict=True)]
        for given in sums[sums[:, 0] > 0]
    )
    return Observation(dict(zip(dimensions, sketches, strict=True)), of_sequences, reduce(added, of_ranks))


def _rows(dimensions: Sequence[Dimension]) -> list[int]:
    return [*map(rows_of, dimensions), len(SEQUENCE_ROWS)]


def _known(names: Names, agreed: Names) -> bool:
    """Whether `agreed` has all that could still get a row there."""
    return all(len(agreed.rows[d]) == NAMED_ROWS - 1 or set(names.rows[d]) <= set(agreed.rows[d]) for d in names.rows)
