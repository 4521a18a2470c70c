"""Store: the observations of several ranks come together in a `torch.distributed` store, and nobody waits."""

import json
import socket
import uuid
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median_low
from threading import Lock
from typing import Any

from tracker_diag.metrics.series import Dimension, Pair, Rank
from tracker_diag.tensors.observation import Observation, add_observations, packed, renamed, unpacked
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.worker import Writer

WAIT = timedelta(seconds=5)
"""How long a rank waits for the others, at most; then it continues by the store, for good."""
LATE_STEPS = 64
"""Steps that a store keeps of each rank for rank 0 to take; older ones are overwritten, and counted."""
UNSENT_STEPS = 16
"""Steps that a rank keeps while its store is slow; further ones are dropped and reported."""


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
        self._host = host or socket.gethostname()
        self._id, self._sent = uuid.uuid4().hex[:8], 0
        self._looks = False
        """Whether it was looked for what has come, by `merge`, since `said` was asked."""
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
            kept, message = dict(observed), {"step": step, "seconds": seconds, "names": rows}
            self._thread.put(lambda: self._leave({**message, "observed": packed(kept)}), droppable=True)
            return Merged({})
        with self._lock:
            self.names.adopt(names.rows)
            merged = renamed(observed, names, self.names)
            taken = {} if seconds is None else {Rank(0, self._host): seconds}
            missing, lost = dict[Rank, int](), 0
            for other in self._others:
                due = other.due(step, merged)
                if due and other.seconds is not None:
                    taken[other.label] = other.seconds
                lost, other.lost = lost + other.lost, 0
                other.silent = 0 if due or 0 < len(other.ready) < LATE_STEPS else other.silent + 1
                if other.silent:
                    missing[other.label] = other.silent
        self._thread.put(self._take, droppable=True)
        self._looks = True
        return Merged(merged, taken, missing, lost)

    @property
    def together(self) -> bool:
        """Never: nobody waits for the others, so they cannot act together."""
        return False

    def exchange(self, step: int, message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
        """None, as where `AllReduce` does not come together."""
        return None

    def settle(self, word: str) -> str | None:
        """None, as where `AllReduce` cannot learn the word."""
        return None

    def send(self, message: Mapping[str, Any]) -> None:
        """Leave `message` for rank 0, in order with the steps that this rank sends. Rank 0 has nobody to say it to."""
        if self._rank:
            self._thread.put(lambda: self._leave({"sent": message}), droppable=True)

    def received(self) -> Sequence[Mapping[str, Any]]:
        """On rank 0, what has come; what else is there is taken meanwhile."""
        messages: list[Mapping[str, Any]] = []
        with self._lock:
            for other in self._others:
                messages += other.received
                other.received.clear()
        if self._others and not self._looks:
            self._thread.put(self._take, droppable=True)
        self._looks = False
        return messages

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

    def _leave(self, message: Mapping[str, Any]) -> None:
        sent = zlib.compress(json.dumps({**message, "slot": self._sent, "id": self._id}).encode(), 1)
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
            if (message.get("id"), message.get("slot")) != (process, slot):  # overwritten meanwhile
                lost += 1
            elif "sent" in message:  # which may be long
                with self._lock:
                    other.received.append(message["sent"])
                self._store.delete_key(f"tracker_diag/{other.rank}/{slot % LATE_STEPS}")
            else:
                self._add(other, message)
        with self._lock:
            other.lost += lost

    def _add(self, other: "_Other", message: Mapping[str, Any]) -> None:
        theirs, observed = Names(), unpacked(message["observed"])
        theirs.adopt(message["names"])
        with self._lock:
            self.names.adopt(theirs.rows)
            at = other.ready.setdefault(int(message["step"]), {})
            add_observations(at, renamed(observed, theirs, self.names))
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
    received: deque[Mapping[str, Any]] = field(default_factory=lambda: deque[Mapping[str, Any]](maxlen=LATE_STEPS))
    """What it has sent, and nobody has asked for yet."""

    @property
    def label(self) -> Rank:
        return Rank(self.rank, self.host)

    def due(self, step: int | None, merged: dict[Pair, Observation]) -> bool:
        """Add what is of `step` or earlier, or all, to `merged`; gives whether there was any."""
        due = [at for at in self.ready if step is None or at <= step]
        for at in due:
            add_observations(merged, self.ready.pop(at))
        return bool(due)
