"""Across ranks: the observations of all come together, so that every statistic is of the whole batch.

`AllReduce` takes two collectives a step, of a size that does not depend on the data, on every rank.
`ThroughStore` takes none: each rank leaves its part in a store, and rank 0 takes what is there, so that a late,
dead or absent rank delays nobody; it is reported instead. Both need the extra `torch`.

Give every rank a `Monitor(ranks=...)`, rank 0 with backends and the others without, and call `observe` and
`log` on each at the same steps.
"""

import json
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tracker_diag.arrays import Float64Array, IntArray
from tracker_diag.backends.writer import Writer
from tracker_diag.batch import PAIRS, Pair
from tracker_diag.slices import DIMENSIONS, NAMED_ROWS, Dimension, Names
from tracker_diag.stats.histogram import BINS, Sketch
from tracker_diag.stats.weights import WeightSums
from tracker_diag.windows import Observation, rows_of

INT32_MAX = 2**31 - 1
LATE_STEPS = 64
"""Steps that a store keeps of each rank for rank 0 to take; older ones are overwritten, and counted."""


@dataclass(frozen=True)
class Merged:
    """One step of all ranks."""

    observed: dict[Pair, Observation]
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Each rank's own seconds since its last step, waiting for others left out, by rank and host."""
    missing: dict[str, int] | None = None
    """Steps since a rank was last heard of, by rank and host, without those that are up to date; None where
    nobody can be missing."""
    lost: int = 0
    """Steps of other ranks that were overwritten before they could be read."""


class Ranks(Protocol):
    """How the observations of several ranks come together."""

    names: Names
    """Names of tools and environments that the ranks agree on."""

    def merge(self, step: int, observed: Mapping[Pair, Observation], names: Names) -> Merged:
        """The step of all ranks, from what this one `observed` with rows of its own `names`."""
        ...

    def errors(self) -> Sequence[Exception]:
        """What has failed in a thread since the last time of asking."""
        ...

    def close(self) -> None:
        """Send what is still to be sent."""
        ...


class AllReduce:
    """One all_gather of float64 sums and one all_reduce of integer counts a step, over `torch.distributed`.

    A name of a tool or environment that is new to a rank costs one more exchange, once.

    Args:
        group: the process group; the default one if None. gloo works on the host, nccl on the device.
    """

    def __init__(self, group: Any = None) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._group = torch, dist, group
        self._device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        self._world = dist.get_world_size(group)
        self._hosts: list[str] = [""] * self._world
        dist.all_gather_object(self._hosts, socket.gethostname(), group=group)
        self.names = Names()
        self._resumed = time.perf_counter()

    def merge(self, step: int, observed: Mapping[Pair, Observation], names: Names) -> Merged:
        """The step of all ranks, the same on each of them, to the bit in its counts."""
        seconds = time.perf_counter() - self._resumed  # before the collective, which waits for the slowest
        dimensions = _dimensions(observed)
        known = _all_known(names, self.names)
        header = [step, seconds, float(known), *(float(d in dimensions) for d in DIMENSIONS)]
        sent = np.concatenate([header, *(_floats(observed.get(pair)) for pair in PAIRS)])
        gathered = self._gather(sent)
        if (gathered[:, 0] != step).any():
            steps = ", ".join(f"{step:.0f}" for step in gathered[:, 0])
            raise RuntimeError(f"ranks: steps {steps} given, expected the same on every rank")
        if not gathered[:, 2].all():
            self._agree(names)
        together: list[Dimension] = [d for i, d in enumerate(DIMENSIONS) if gathered[:, 3 + i].any()]
        sums = gathered[:, 3 + len(DIMENSIONS) :].reshape(self._world, len(PAIRS), -1)
        pairs: list[Pair] = [pair for i, pair in enumerate(PAIRS) if sums[:, i, 0].any()]

        taken = {f"rank {i} on {host}": float(gathered[i, 1]) for i, host in enumerate(self._hosts)}
        if not pairs:
            self._resumed = time.perf_counter()
            return Merged({}, taken)
        local = np.concatenate([_integers(_renamed(observed.get(p), names, self.names), together) for p in pairs])
        total = self._sum(local, small=float(sums[:, :, 1].sum()) <= INT32_MAX)
        merged: dict[Pair, Observation] = {
            pair: _observation(part, sums[:, list(PAIRS).index(pair)], together)
            for pair, part in zip(pairs, np.split(total, len(pairs)), strict=True)
        }
        self._resumed = time.perf_counter()
        return Merged(merged, taken)

    def errors(self) -> Sequence[Exception]:
        """None: what fails here fails in `merge`."""
        return ()

    def close(self) -> None:
        """Nothing is ever underway."""

    def _gather(self, sent: Float64Array) -> Float64Array:
        mine = self._torch.from_numpy(sent).to(self._device)
        all_of_them = self._torch.empty(self._world * len(sent), dtype=mine.dtype, device=self._device)
        self._dist.all_gather_into_tensor(all_of_them, mine, group=self._group)
        gathered: Float64Array = all_of_them.cpu().numpy().reshape(self._world, -1)
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
            for dimension, known in theirs.items():
                for name in known:
                    self.names.row(dimension, name)


class ThroughStore:
    """No collective: each rank leaves its part of a step in `store`, and rank 0 takes what is there.

    What comes late is merged into the step at which it comes. On other ranks than 0 nothing is evaluated.

    Args:
        store: a `torch.distributed` store, a `TCPStore` or `FileStore` say, whose server is rank 0's.
        rank, world_size: this process, and how many there are.
        host: the name under which this rank is reported.
    """

    def __init__(self, store: Any, rank: int, world_size: int, host: str | None = None) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: {rank} given, expected 0 … {world_size - 1}")
        self.names = Names()
        self._store, self._rank = store, rank
        self._host = host or socket.gethostname()
        self._sent = 0
        self._writer = Writer(f"tracker_diag-rank-{rank}") if rank else None
        self._others = {other: _Other(other) for other in range(1, world_size)} if rank == 0 else {}
        if self._writer:
            self._set(f"{rank}/host", self._host.encode())
        self._resumed = time.perf_counter()

    def merge(self, step: int, observed: Mapping[Pair, Observation], names: Names) -> Merged:
        """On rank 0 the step with all that has come of the others; on these nothing, since they only send."""
        seconds = time.perf_counter() - self._resumed
        if self._writer:
            rows: dict[Dimension, list[str]] = {dimension: list(known) for dimension, known in names.rows.items()}
            self._send(step, seconds, rows, dict(observed))
            merged = Merged({})
        else:
            merged = self._collect(step, seconds, observed, names)
        self._resumed = time.perf_counter()
        return merged

    def errors(self) -> Sequence[Exception]:
        """What could not be sent."""
        return self._writer.errors() if self._writer else ()

    def close(self) -> None:
        """Send what is still to be sent."""
        if self._writer:
            self._writer.close(5.0)

    def _send(
        self, step: int, seconds: float, rows: dict[Dimension, list[str]], observed: dict[Pair, Observation]
    ) -> None:
        slot, self._sent = self._sent, self._sent + 1
        writer = self._writer
        if writer is None:
            return

        def send() -> None:
            state = {pair: one.state_dict() for pair, one in observed.items()}
            message = {"step": step, "seconds": seconds, "host": self._host, "names": rows, "observed": state}
            self._set(f"{self._rank}/{slot % LATE_STEPS}", zlib.compress(json.dumps(message).encode(), 1))
            self._set(f"{self._rank}/sent", str(slot + 1).encode())

        writer.put(send, droppable=True)

    def _collect(self, step: int, seconds: float, observed: Mapping[Pair, Observation], names: Names) -> Merged:
        _adopt(self.names, names.rows)
        merged: dict[Pair, Observation] = {
            pair: _renamed(one, names, self.names) or one for pair, one in observed.items()
        }
        taken = {f"rank 0 on {self._host}": seconds}
        missing: dict[str, int] = {}
        lost = 0
        for other in self._others.values():
            lost += self._take(other)
            due = [message for message in other.waiting if message["step"] <= step]
            other.waiting = [message for message in other.waiting if message["step"] > step]
            for message in due:
                self._add(merged, message)
                taken[other.label] = float(message["seconds"])
            other.silent = 0 if due or other.waiting else other.silent + 1
            if other.silent:
                missing[other.label] = other.silent
        return Merged(merged, taken, missing, lost)

    def _add(self, merged: dict[Pair, Observation], message: Mapping[str, Any]) -> None:
        theirs = Names()
        _adopt(theirs, message["names"])
        _adopt(self.names, theirs.rows)
        for pair in PAIRS:
            if pair in message["observed"]:
                one = _renamed(Observation.of_state(message["observed"][pair]), theirs, self.names)
                if one is not None:
                    merged[pair] = merged[pair] + one if pair in merged else one

    def _take(self, other: "_Other") -> int:
        """Read what `other` has left since the last time; how many steps were overwritten meanwhile."""
        if not other.host and (host := self._get(f"{other.rank}/host")) is not None:
            other.host = host.decode()
        sent = int(self._get(f"{other.rank}/sent") or b"0")
        first = max(other.taken, sent - LATE_STEPS)
        lost, other.taken = first - other.taken, sent
        for slot in range(first, sent):
            raw = self._get(f"{other.rank}/{slot % LATE_STEPS}")
            if raw is not None:
                other.waiting.append(json.loads(zlib.decompress(raw)))
        return lost

    def _set(self, key: str, value: bytes) -> None:
        self._store.set(f"tracker_diag/{key}", value)

    def _get(self, key: str) -> bytes | None:
        """The value of `key` if there is one; a store's own `get` would wait for it."""
        full = f"tracker_diag/{key}"
        return bytes(self._store.get(full)) if self._store.check([full]) else None


@dataclass
class _Other:
    """What rank 0 knows of another rank."""

    rank: int
    host: str = ""
    taken: int = 0
    silent: int = 0
    waiting: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def label(self) -> str:
        return f"rank {self.rank} on {self.host or 'an unknown host'}"


def _dimensions(observed: Mapping[Pair, Observation]) -> set[Dimension]:
    return {dimension for one in observed.values() for dimension in one.sketches}


def _all_known(names: Names, agreed: Names) -> bool:
    return all(
        set(names.rows[d]) | set(names.folded[d]) <= set(agreed.rows[d]) | set(agreed.folded[d]) for d in names.rows
    )


def _adopt(into: Names, rows: Mapping[Dimension, Sequence[str]]) -> None:
    for dimension, known in rows.items():
        for name in known:
            into.row(dimension, name)


def _renamed(observed: Observation | None, names: Names, agreed: Names) -> Observation | None:
    """`observed` with the rows of its named dimensions where `agreed` has them."""
    if observed is None:
        return None
    sketches = dict(observed.sketches)
    for dimension, known in names.rows.items():
        if dimension in sketches:
            row = [agreed.row(dimension, name) for name in known]
            row += [NAMED_ROWS - 1] * (NAMED_ROWS - len(row))
            moved, given = Sketch.empty(NAMED_ROWS), sketches[dimension]
            np.add.at(moved.counts, row, given.counts)
            np.add.at(moved.nonfinite, row, given.nonfinite)
            sketches[dimension] = moved
    return Observation(sketches, observed.tokens, observed.sequences, observed.sequence_sketch, observed.applied)


_SHAPES = ((8, 2), (8, 3), (2, 4))
"""Of `Observation.floats`."""


def _floats(observed: Observation | None) -> Float64Array:
    """Whether there is an observation, how many values it has, and its sums, in fixed places."""
    if observed is None:
        return np.zeros(2 + sum(a * b for a, b in _SHAPES))
    n = max(float(one.counts.sum() + one.nonfinite.sum()) for one in observed.sketches.values())
    return np.concatenate([[1.0, n], *(part.reshape(-1) for part in observed.floats())])


def _integers(observed: Observation | None, dimensions: Sequence[Dimension]) -> IntArray:
    """All counts in one array: of `dimensions` in their order, then of the sequences."""
    parts: list[IntArray] = []
    for dimension in dimensions:
        one = observed.sketches.get(dimension) if observed else None
        one = one or Sketch.empty(rows_of(dimension))
        parts += [one.counts.reshape(-1), one.nonfinite]
    of_sequences = observed.sequence_sketch if observed else Sketch.empty(3)
    return np.concatenate([*parts, of_sequences.counts.reshape(-1), of_sequences.nonfinite])


def _observation(integers: IntArray, sums: Float64Array, dimensions: Sequence[Dimension]) -> Observation:
    """The merge of all ranks: counts summed already, sums (world, …) of `_floats`."""
    rows = [*(rows_of(dimension) for dimension in dimensions), 3]
    sketches: list[Sketch] = []
    start = 0
    for n in rows:
        middle, end = start + n * 2 * BINS, start + n * 2 * BINS + n
        sketches.append(Sketch(integers[start:middle].reshape(n, 2, BINS), integers[middle:end]))
        start = end
    tokens, sequences, applied = WeightSums.none((2,)), WeightSums.none((3,)), np.zeros((2, 4))
    cuts = np.cumsum([a * b for a, b in _SHAPES])[:-1]
    for one in sums[sums[:, 0] > 0]:
        parts = [part.reshape(shape) for part, shape in zip(np.split(one[2:], cuts), _SHAPES, strict=True)]
        tokens, sequences = tokens + WeightSums.of_array(parts[0]), sequences + WeightSums.of_array(parts[1])
        applied = applied + parts[2]
    return Observation(dict(zip(dimensions, sketches[:-1], strict=True)), tokens, sequences, sketches[-1], applied)
