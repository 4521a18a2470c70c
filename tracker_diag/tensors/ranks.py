"""Across ranks: the observations of all come together, so that every statistic is of the whole batch.

`AllReduce` takes two collectives a step, of a size that does not depend on the data, on every rank.
`ThroughStore` takes none: each rank leaves its part in a store, and rank 0 takes what is there, so that a late,
dead or absent rank delays nobody; it is reported instead. Who asks for a decision waits for that of rank 0. Both need
the extra `torch`.

Give every rank a `Monitor(ranks=...)`, rank 0 with backends and the others without, and on each of them call
`observe`, then `log`, once a step. What rank 0 logs beside, without tensors, is its own affair.
"""

import json
import socket
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from typing import Any, Protocol

import numpy as np

from tracker_diag.errors import require
from tracker_diag.metrics.series import DIMENSIONS, NAMED_ROWS, PAIRS, Dimension, Pair, Rank
from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.tensors.flat import counts_of, observation_of, sums_of
from tracker_diag.tensors.meeting import Merged, all_there, default_store
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.worker import Writer

INT32_MAX = 2**31 - 1
WAIT = timedelta(seconds=5)
"""How long a rank waits for the others, at most; then it goes on by the store, for good."""
LATE_STEPS = 64
"""Steps that a store keeps of each rank for rank 0 to take; older ones are overwritten, and counted."""
UNSENT_STEPS = 16
"""Steps that a rank keeps while its store is slow; further ones are dropped, and told."""

STEP, SECONDS, KNOWN, HAS = range(4)
"""Columns of what each rank gathers: its step, its seconds, whether it knows all names, whether it has a dimension;
of the last one for each dimension, and after them the sums."""


class Ranks(Protocol):
    """How the observations of several ranks come together. What fails is told by `errors`, never raised."""

    names: Names
    """Names of tools and environments that the ranks agree on."""
    leads: bool
    """Whether this is the rank whose word counts."""

    def agree(self, step: int, message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What the rank that leads gives as `message` at `step`, in JSON values; each rank calls it at the same steps.

        None where the ranks do not come together.
        """
        ...

    def merge(
        self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None = None
    ) -> Merged:
        """The step of all ranks, from what this one `observed` with rows of its own `names`."""
        ...

    def errors(self) -> Sequence[Exception]:
        """What has failed since the last time of asking."""
        ...

    def close(self) -> Merged:
        """Send what is still to be sent; gives what has come of the others since the last `merge`."""
        ...


class AllReduce:
    """One all_gather of float64 sums and one all_reduce of integer counts a step, over `torch.distributed`.

    They run in a process group of their own, so that they never mix with the trainer's. A name of a tool or
    environment that is new to a rank costs one more exchange, once. If a rank falls out of step, or does not come
    for 5 seconds, the ranks part for good: that is told, and they go on as with `ThroughStore`, in the store by which
    they found each other. So they do from the start where not all of them make one within 5 seconds.

    Made on every rank at the same time.

    Args:
        backend: of the group; gloo works on the host, nccl on the device.
    """

    _made = 0
    """How many this process has made: they meet by their number."""

    def __init__(self, backend: str = "gloo") -> None:
        require("torch", "torch")
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self.leads = self._rank == 0
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self.names = Names()
        self._errors: list[Exception] = []
        self._parted: ThroughStore | None = None
        """By which the ranks go on once they have parted."""
        AllReduce._made += 1
        self._name = f"all_reduce/{AllReduce._made}"
        self._hosts: list[str] = [""] * self._world
        if not all_there(default_store(self._name), self._rank, self._world, WAIT):
            self._part(0, TimeoutError(f"not all of {self._world} ranks have made an AllReduce within {WAIT}"))
            return
        self._group: Any = dist.new_group(backend=backend, timeout=WAIT)
        dist.all_gather_object(self._hosts, socket.gethostname(), group=self._group)

    def merge(
        self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None = None
    ) -> Merged:
        """The step of all ranks, the same on each of them, to the bit in its counts."""
        if self._parted is None:
            try:
                return self._merge(step, observed, names, seconds)
            except Exception as error:  # noqa: BLE001  # whatever it was, the next call would not fit the others'
                through = self._part(step, error)
        else:
            through = self._parted
        return through.merge(step, observed, names, seconds)

    def agree(self, step: int, message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The first rank's `message`, on all of them or, if one of them does not come, on none."""
        if self._parted is not None:
            return None
        everyones: list[Any] = [None] * self._world
        try:
            self._dist.all_gather_object(everyones, (step, message), group=self._group)
        except Exception as error:  # noqa: BLE001  # as in `merge`
            self._part(step, error)
            return None
        steps = [at for at, _ in everyones]
        if len({*steps}) > 1:
            self._part(step, ValueError(f"decide at steps {steps}, expected the same on every rank"))
            return None
        agreed: Mapping[str, Any] = everyones[0][1]
        return agreed

    def _part(self, step: int, error: Exception) -> "ThroughStore":
        self._parted = ThroughStore(default_store(f"{self._name}/parted"), self._rank, self._world)
        self._parted.names = self.names  # what has come so far goes by their rows
        what = f"the ranks part at step {step}, and go on through a store: {type(error).__name__}: {error}"
        self._errors.append(RuntimeError(what))
        return self._parted

    def errors(self) -> Sequence[Exception]:
        """That the ranks have parted, once, and what has failed since."""
        found, self._errors = self._errors, []
        return [*found, *(self._parted.errors() if self._parted else ())]

    def close(self) -> Merged:
        """Send what is still to be sent, and take the rest, where the ranks have parted."""
        return Merged({}) if self._parted is None else self._parted.close()

    def _merge(self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None) -> Merged:
        dimensions = {dimension for one in observed.values() for dimension in one.sketches}
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
        mine = {pair: one.renamed(names, self.names) for pair, one in observed.items()}
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
            _adopt(self.names, theirs)


class ThroughStore:
    """No collective: each rank leaves its part of a step in `store`, and rank 0 takes what is there.

    A thread sends, and on rank 0 a thread takes and adds up, so that training waits for neither. What comes late
    is merged into the step at which it comes. On other ranks than 0 nothing is evaluated.

    Args:
        store: a `torch.distributed.TCPStore` or `HashStore`, whose server is rank 0's.
        rank, world_size: this process, and how many there are.
        host: the name under which this rank is reported.
    """

    def __init__(self, store: Any, rank: int, world_size: int, host: str | None = None) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank: {rank} given, expected 0 … {world_size - 1}")
        self.names = Names()
        self._store, self._rank, self.leads = store, rank, rank == 0
        self._failed: list[Exception] = []
        self._agreed: list[str] = []
        """Keys of what this rank has said, the last ones."""
        self._host = host or socket.gethostname()
        self._id, self._sent = uuid.uuid4().hex[:8], 0
        self._thread = Writer(f"tracker_diag-rank-{rank}", UNSENT_STEPS)
        self._lock = Lock()
        self._others = [_Other(other) for other in range(1, world_size)] if rank == 0 else []
        for other in self._others:  # what an earlier process of ours has taken, or has missed, is past
            other.id, other.taken = self._count(other.rank)
        if rank:
            self._thread.put(lambda: self._set(f"{rank}/host", self._host.encode()))

    def merge(
        self, step: int, observed: Mapping[Pair, Observation], names: Names, seconds: float | None = None
    ) -> Merged:
        """On rank 0 the step with all that has come of the others; on these nothing, since they only send."""
        if self._rank:
            rows: dict[Dimension, list[str]] = {dimension: list(known) for dimension, known in names.rows.items()}
            kept = dict(observed)
            self._thread.put(lambda: self._send(step, seconds, rows, kept), droppable=True)
            return Merged({})
        with self._lock:
            _adopt(self.names, names.rows)
            merged: dict[Pair, Observation] = {pair: one.renamed(names, self.names) for pair, one in observed.items()}
            taken = {} if seconds is None else {Rank(0, self._host): seconds}
            missing: dict[Rank, int] = {}
            lost = 0
            for other in self._others:
                due = other.due(step, merged)
                if due and other.seconds is not None:
                    taken[other.label] = other.seconds
                lost, other.lost = lost + other.lost, 0
                other.silent = 0 if due or 0 < len(other.ready) < LATE_STEPS else other.silent + 1
                if other.silent:
                    missing[other.label] = other.silent
        self._thread.put(self._take, droppable=True)
        return Merged(merged, taken, missing, lost)

    def agree(self, step: int, message: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What rank 0 has left at `step`; the others wait for it, 5 seconds at most. Rank 0 waits for nobody."""
        key = f"agreed/{step}"
        try:
            if message is None:
                self._store.wait([f"tracker_diag/{key}"], WAIT)
                agreed: Mapping[str, Any] = json.loads(self._get(key) or b"null")
                return agreed
            self._set(key, json.dumps(message).encode())
            self._agreed.append(key)
            if len(self._agreed) > LATE_STEPS:
                self._store.delete_key(f"tracker_diag/{self._agreed.pop(0)}")
        except Exception as error:  # noqa: BLE001  # whatever a store raises
            self._failed.append(RuntimeError(f"no decision at step {step}: {type(error).__name__}: {error}"))
            return None
        return message

    def errors(self) -> Sequence[Exception]:
        """What could not be sent or read."""
        failed, self._failed = self._failed, []
        return [*failed, *self._thread.errors()]

    def close(self) -> Merged:
        """Send what is still to be sent; on rank 0 take once more what is there, whatever step it is of."""
        if self.leads:
            self._thread.put(self._take)
        self._thread.close(5.0)
        merged, missing, lost = dict[Pair, Observation](), dict[Rank, int](), 0
        with self._lock:
            for other in self._others:
                if not other.due(None, merged) and other.silent:
                    missing[other.label] = other.silent
                lost, other.lost = lost + other.lost, 0
        return Merged(merged, {}, missing, lost)

    def _send(
        self, step: int, seconds: float | None, rows: dict[Dimension, list[str]], observed: dict[Pair, Observation]
    ) -> None:
        state = {pair: one.state_dict() for pair, one in observed.items()}
        message = {"slot": self._sent, "step": step, "seconds": seconds, "names": rows, "observed": state}
        sent = zlib.compress(json.dumps(message | {"id": self._id}).encode(), 1)
        self._set(f"{self._rank}/{self._sent % LATE_STEPS}", sent)
        self._sent += 1
        self._set(f"{self._rank}/sent", f"{self._id}:{self._sent}".encode())

    def _take(self) -> None:
        for other in self._others:
            self._take_from(other)

    def _take_from(self, other: "_Other") -> None:
        """Read and add up what `other` has left since the last time."""
        if not other.host and (host := self._get(f"{other.rank}/host")) is not None:
            other.host = host.decode()
        process, sent = self._count(other.rank)
        if process != other.id:  # it was started anew
            other.id, other.taken = process, 0
        first = max(other.taken, sent - LATE_STEPS)
        lost, other.taken = first - other.taken, sent
        for slot in range(first, sent):
            raw = self._get(f"{other.rank}/{slot % LATE_STEPS}")
            message = json.loads(zlib.decompress(raw)) if raw is not None else {}
            if (message.get("id"), message.get("slot")) == (process, slot):
                self._add(other, message)
            else:  # overwritten meanwhile
                lost += 1
        with self._lock:
            other.lost += lost

    def _add(self, other: "_Other", message: Mapping[str, Any]) -> None:
        theirs = Names()
        _adopt(theirs, message["names"])
        packed: dict[str, Any] = message["observed"]
        unpacked: dict[Pair, Observation] = {
            pair: Observation.of_state(packed[pair]) for pair in PAIRS if pair in packed
        }
        with self._lock:
            _adopt(self.names, theirs.rows)
            at = other.ready.setdefault(int(message["step"]), {})
            for pair, one in unpacked.items():
                moved = one.renamed(theirs, self.names)
                at[pair] = at[pair] + moved if pair in at else moved
            other.seconds = message["seconds"]
            while len(other.ready) > LATE_STEPS:  # far ahead of us, or on another count of steps
                other.ready.pop(min(other.ready))
                other.lost += 1

    def _count(self, rank: int) -> tuple[str, int]:
        """Which process of `rank` has sent how many steps."""
        process, _, sent = (self._get(f"{rank}/sent") or b":0").decode().partition(":")
        return process, int(sent)

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
    id: str = ""
    taken: int = 0
    silent: int = 0
    lost: int = 0
    seconds: float | None = None
    ready: dict[int, dict[Pair, Observation]] = field(default_factory=dict[int, dict[Pair, Observation]])
    """What has come and is not merged yet, by step."""

    @property
    def label(self) -> Rank:
        return Rank(self.rank, self.host)

    def due(self, step: int | None, merged: dict[Pair, Observation]) -> bool:
        """Add what is of `step` or earlier, or all, to `merged`; gives whether there was any."""
        due = [at for at in self.ready if step is None or at <= step]
        for at in due:
            for pair, one in self.ready.pop(at).items():
                merged[pair] = merged[pair] + one if pair in merged else one
        return bool(due)


def _known(names: Names, agreed: Names) -> bool:
    """Whether `agreed` has all that could still get a row there."""
    return all(len(agreed.rows[d]) == NAMED_ROWS - 1 or set(names.rows[d]) <= set(agreed.rows[d]) for d in names.rows)


def _adopt(into: Names, rows: Mapping[Dimension, Sequence[str]]) -> None:
    for dimension, known in rows.items():
        for name in known:
            into.row(dimension, name)
