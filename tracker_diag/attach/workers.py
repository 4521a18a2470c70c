"""The policy pair from workers: sketched in the processes that make the loss, and taken in where the trainer logs.

Many trainers make their loss in other processes than the one that logs. A `Recorder` in each of those reduces the
tensors of a loss to counts and sums. It sends a few kB once an update. `Workers`, next to the `Monitor`, adds up what
has come of all ranks. A mailbox connects them, a small actor of Ray on the node of the monitor. So neither waits for
the other. What comes late belongs to the next step. What never comes is reported as a missing rank.

A step's first update has ratios of 1 by construction if its old log-probabilities are the updated policy's own. It is
sent separately from later updates, and left out if there are any. With old log-probabilities of another policy, such as
the sampler's, all updates count.
"""

import json
import os
import socket
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from tracker_diag.attach.kit import place_in_job, unless_changed
from tracker_diag.attach.mailbox import MAILBOX, Post, messages, opened
from tracker_diag.errors import BatchError, disabled
from tracker_diag.health import Health
from tracker_diag.hooks import Unlocked, when_imported
from tracker_diag.metrics.series import Pair, Rank
from tracker_diag.tensors.arrival import Arrival
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import Observation, add_observations, packed, renamed, unpacked
from tracker_diag.tensors.segments import reduced
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.worker import Writer

if TYPE_CHECKING:
    from tracker_diag.monitor.monitor import Monitor

UNSENT = 16
"""Updates that a worker keeps while its mailbox is slow."""


class Message(TypedDict):
    """What a worker sends of one update of the policy, in JSON values."""

    process: str
    sent: int
    """How many messages this process has sent before."""
    rank: int
    host: str
    world: int
    names: dict[str, Any]
    first: dict[str, Any]
    """Of the losses up to the first step of the optimiser."""
    rest: dict[str, Any]
    failures: dict[str, int]
    """By what was raised, since the last message."""


class Recorder(Unlocked):
    """In a worker: takes in the tensors of each loss, and sends what they come to once an update.

    Nothing is raised: under `guard` a failure is counted, and sent to the monitor with the next update. Tensors on a
    device stay there, and no call waits for it.

    Args:
        rank, world: this process and how many there are; by default those of `torch.distributed`.
        send: where messages go to; by default to the mailbox of this Ray job.
    """

    def __init__(
        self, rank: int | None = None, world: int | None = None, send: Callable[[bytes], object] | None = None
    ) -> None:
        super().__init__(self._count)
        self._given, self._post = (rank, world), send or Post()
        self._placed = False
        self._health, self._names = Health(), Names()
        self._parts: tuple[dict[Pair, Observation], dict[Pair, Observation]] = {}, {}
        self._updates, self._underway, self._asked, self._batches, self._sent = 0, False, False, 0, 0
        self._process = uuid.uuid4().hex[:8]
        self._failures = Counter[str]()
        self._writer: Writer | None = None

    def place(self, name: str, tested: str, hooks: Mapping[str, Callable[[Any], object]]) -> None:
        """Put an integration's hooks on, once in a process: by module what is called with it once it is imported.

        Nothing is imported by this. For `name` and `tested` see `tell_changed`.
        """
        if not self._placed:
            self._placed = True
            for module, put in hooks.items():

                def on_import(loaded: Any, put: Callable[[Any], object] = put) -> None:
                    with unless_changed(name, tested, "the policy pair of this worker is not seen"):
                        put(loaded)

                when_imported(module, on_import)

    def observe(self, *, clip: tuple[float, float] = (0.2, 0.2), **tensors: Any) -> None:
        """Take in one loss, which clips the ratio at `clip`; log-probabilities in `Tensors` may have a gradient."""
        with self.guard("integration_errors"):
            self._underway = self._asked = True
            given: Any = {name: value for name, value in tensors.items() if value is not None}
            rank, world = self._place()
            try:
                batch = TokenBatch.validated(check=False, **given)
            except BatchError as error:
                if error.masked:  # no token of this rank's is trained on
                    return
                raise
            into = self._parts[min(self._updates, 1)]
            group = 1 + rank + world * self._batches  # those of one process that observes all of them in turn
            add_observations(into, reduced(batch, self._names, group, clip))
            self._batches += 1

    @property
    def rank(self) -> int:
        return self._place()[0]

    def updated(self) -> None:
        """The optimiser has made a step: what comes now is of the next one."""
        self._updates += self._underway
        self._underway = False

    def hear_optimizers(self, *, send: bool = False) -> Callable[[], None]:
        """Take each step of any optimizer of torch for an update; gives a function that ends this.

        For a worker whose optimizer steps are all in one function. With `send`, each update is sent at once: use it if
        no other hook says that the worker is done.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(*_: Any) -> None:
            self.updated()
            if send:
                self.send()

        return register_optimizer_step_post_hook(stepped).remove

    def send(self, only: bool = True) -> None:
        """The update is done: send what its losses came to, even if that is nothing. Waits for nothing.

        Without a loss, as in an update of the critic, nothing is sent. Of ranks that have the same tokens, those that
        are not the `only` one forget them.
        """
        if not self._asked:
            return
        first, rest = self._parts
        self._parts, self._updates, self._underway, self._asked = ({}, {}), 0, False, False
        if not only:
            return
        with self.guard("integration_errors"):
            coming = [Arrival(part) for part in (first, rest)]  # copies begin now, and end without anyone's waiting
            rank, world = self._place()
            message: Message = {
                "process": self._process, "sent": self._sent, "rank": rank, "host": socket.gethostname(),
                "world": world, "names": self._names.state_dict(), "failures": dict(self._failures),
                "first": {}, "rest": {},
            }  # fmt: skip
            self._failures.clear()
            self._sent += 1

            def write() -> None:
                message["first"], message["rest"] = (packed(arrival.wait()) for arrival in coming)
                self._post(zlib.compress(json.dumps(message).encode(), 1))

            if self._writer is None:  # in the process that sends: threads do not survive a fork
                self._writer = Writer(f"{MAILBOX}-{os.getpid()}", UNSENT)
            for error in self._writer.errors():
                self._count("integration_errors", error)
            self._writer.put(write, droppable=True)

    def close(self, seconds: float = 5.0) -> None:
        """Wait until all is sent, at most `seconds`."""
        if self._writer is not None:
            self._writer.close(seconds)
            self._writer = None

    def _place(self) -> tuple[int, int]:
        rank, world = self._given
        if rank is None or world is None:
            rank, world = self._given = place_in_job()
        return rank, world

    def _count(self, kind: str, error: Exception) -> None:
        self._failures[f"{type(error).__name__}: {error}"[:200]] += 1
        self._health.record(kind, error)


class Workers:
    """Next to a monitor: what the recorders of all ranks have sent.

    Args:
        fresh: whether a step's old log-probabilities are those of the policy as the step begins. The first update's
            ratios are then 1 by construction, and left out if there are others.
        gaps: whether a gap in the mask is what a tool or the environment said. Where rejected tokens are gaps too, it
            is not known which tokens come after a tool.
        each: whether a message is of one update, as the worker does not know when a step ends. The earliest of each
            process since the last step is then that of the first update.
        every: how many ranks in a row have the same tokens and send them, of which the first one's count.
    """

    def __init__(
        self, monitor: "Monitor", *, fresh: bool = True, gaps: bool = True, each: bool = False, every: int = 1
    ) -> None:
        self._monitor, self._fresh, self._gaps, self._each = monitor, fresh, gaps, each
        self._every = every
        self._lock = threading.Lock()
        self._come: list[Message] = []
        self._silent: dict[Rank, int] = {}
        self._next: dict[int, tuple[str, int]] = {}
        """By rank its process, and how many messages that has sent, as far as we know."""

    def receive(self, message: bytes) -> None:
        """Keep what a worker sent for the next step; in any thread."""
        received: Message = json.loads(zlib.decompress(message))
        if received["rank"] % self._every == 0:
            with self._lock:
                self._come.append(received)

    def take_in(self) -> None:
        """Give the monitor all that has come, as a part of the step that is logged next. Waits for nobody."""
        with self._lock:
            come, self._come = self._come, []
        if not come:
            return
        lost, several = 0, Counter(message["process"] for message in come)
        earliest = {message["process"]: message["sent"] for message in sorted(come, key=lambda sent: -sent["sent"])}
        observed, names = dict[Pair, Observation](), Names()
        for message in sorted(come, key=lambda message: (message["rank"], message["process"], message["sent"])):
            with self._monitor.guard("rank_errors"):
                lost += self._lost(message)
                for what, times in message["failures"].items():
                    failed = RuntimeError(f"rank {message['rank']} on {message['host']}: {what} ({times} times)")
                    self._monitor.record("rank_errors", failed)
                theirs, parts = Names.of_state(message["names"]), self._counted(message)
                first = message["sent"] == earliest[message["process"]]
                if self._each and self._fresh and first and several[message["process"]] > 1:
                    continue
                add_observations(observed, renamed(parts, theirs, names))
        self._monitor.observe_parts(observed, names, missing=self._missing(come), lost=lost)

    def _counted(self, message: Message) -> dict[Pair, Observation]:
        first, rest = unpacked(message["first"]), unpacked(message["rest"])
        counted = rest if self._fresh and rest else first
        if counted is first:
            add_observations(counted, rest)
        return counted if self._gaps else {pair: observation.without_context() for pair, observation in counted.items()}

    def _lost(self, message: Message) -> int:
        rank, process, sent = message["rank"], message["process"], message["sent"]
        known, due = self._next.get(rank, (process, sent))
        self._next[rank] = process, sent + 1
        return max(sent - (due if process == known else 0), 0)  # else it was started anew

    def _missing(self, come: list[Message]) -> dict[Rank, int]:
        """Updates since each rank was last heard of, of those that were heard of once and are not now."""
        heard = {Rank(message["rank"], message["host"]) for message in come}
        numbers = {rank.number for rank in heard}
        self._silent = {rank: n + 1 for rank, n in self._silent.items() if rank.number not in numbers}
        self._silent |= dict.fromkeys(heard, 0)
        return {rank: n for rank, n in self._silent.items() if n}

    def open(self) -> "Workers":
        """Make the mailbox of this Ray job, if it is one, or take it over; a thread reads it."""
        with self._monitor.guard("rank_errors"):
            if not disabled() and (mailbox := opened()) is not None:
                threading.Thread(target=self._read, args=(mailbox,), name=MAILBOX, daemon=True).start()
        return self

    def _read(self, mailbox: Any) -> None:
        try:
            for message in messages(mailbox):
                with self._monitor.guard("rank_errors"):
                    self.receive(message)
        except Exception as error:  # noqa: BLE001  # the mailbox has died
            self._monitor.record("rank_errors", error)
