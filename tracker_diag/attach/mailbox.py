"""The mailbox between workers and the monitor of a Ray job: a small actor on the monitor's node.

Neither waits for the other. What is put there while nobody takes it is kept, the latest messages of it.
"""

import logging
import sys
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

from tracker_diag.errors import require

MAILBOX = "tracker_diag_policy"
"""The name of the mailbox among the actors of a job."""

KEPT = 4096
"""Messages that a mailbox keeps while nobody takes them; older ones go, and are counted as lost."""

LOOKS = 1.0
"""Seconds after which the reader of a mailbox looks whether Ray is there still."""

TRIES = 5
"""Updates without a mailbox after which a worker says so."""

_held: list[Any] = []
"""Mailboxes that this process has made or taken over."""

_log = logging.getLogger("tracker_diag")


def opened() -> Any:
    """The mailbox of this Ray job, made if there is none; None in a process that is not part of a Ray job."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    scheduling: Any = require("ray.util.scheduling_strategies", "rllib")
    here = scheduling.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    kind = ray.remote(num_cpus=0)(Mailbox)
    made = kind.options(name=MAILBOX, get_if_exists=True, scheduling_strategy=here).remote()
    _held.append(made)  # an actor ends with the first of its handles
    return made


def messages(mailbox: Any) -> Iterator[bytes]:
    """What is put into `mailbox` from now on, until a later reader has come or Ray has been shut down."""
    ray: Any = require("ray", "rllib")
    reader = uuid.uuid4().hex
    try:
        while (taken := _come(mailbox.take_all.remote(reader), ray)) is not None:
            yield from taken
    except Exception:
        if ray.is_initialized():  # else it was shut down as it was asked
            raise


def _come(asked: Any, ray: Any) -> list[bytes] | None:
    """What `asked`, a reference of Ray, comes to; None once Ray has been shut down.

    In `ray.get` this thread would wait inside Ray. It would still be there while the trainer's thread shuts Ray down.
    """
    future = asked.future()
    while not wait((future,), LOOKS).done:
        if not ray.is_initialized():
            return None
    messages: list[bytes] | None = future.result()
    return messages


class Mailbox:
    """The actor of Ray: keeps what workers put, for the latest reader to take."""

    def __init__(self) -> None:
        import asyncio

        self._kept = deque[bytes](maxlen=KEPT)
        self._there = asyncio.Condition()
        self._reader, self._was = "", set[str]()

    async def put(self, message: bytes) -> None:
        """Keep `message`."""
        async with self._there:
            self._kept.append(message)
            self._there.notify_all()

    async def take_all(self, reader: str) -> list[bytes] | None:
        """All that is kept, as soon as there is any; None where a later reader has come."""
        async with self._there:
            if reader not in self._was:
                self._was.add(reader)
                self._reader = reader
                self._there.notify_all()
            await self._there.wait_for(lambda: self._kept or self._reader != reader)
            if self._reader != reader:
                return None
            taken = list(self._kept)
            self._kept.clear()
            return taken


class Post:
    """Puts messages into the mailbox, once there is one; runs in the writer's thread."""

    def __init__(self) -> None:
        self._mailbox: Any = None
        self._tries = 0

    def __call__(self, message: bytes) -> None:
        ray: Any = require("ray", "rllib")
        if self._mailbox is None:
            try:
                self._mailbox = ray.get_actor(MAILBOX)
            except ValueError:  # the trainer has not begun yet, or has no monitor
                self._tries += 1
                if self._tries == TRIES:
                    _log.warning(
                        "no monitor in this Ray job: the policy pair of this worker is not seen. The process that "
                        "logs needs tracker_diag too."
                    )
                return
        try:
            ray.get(self._mailbox.put.remote(message))
        except ray.exceptions.RayActorError:
            self._mailbox = None  # another may have been made
            raise
