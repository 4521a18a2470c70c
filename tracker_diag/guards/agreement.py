"""Agreement: all ranks do what the first one proposes, or none of them does.

Each step the ranks exchange their messages in one collective. To act, each rank writes its word to the store by which
the ranks have found each other. The first word counts on all of them: the proposal of a rank that has received
everything, or no of a rank that has not. So a rank that is slow or dies between the two makes no difference.

A checkpoint is read by every rank before the first one proposes it. Nobody waits for that: each says at the next
steps what came of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.guards.checkpoints import Checkpoint, Register, glance, of_state
from tracker_diag.health import Health
from tracker_diag.tensors.ranks import Ranks

NO = ""
"""The word against."""


class Agreement:
    """Of the ranks of one run, on what guards do."""

    def __init__(self, ranks: Ranks, register: Register, health: Health) -> None:
        self._ranks, self._register, self._health = ranks, register, health
        self._asked: Checkpoint | None = None
        """What all ranks are to read."""
        self._wanted: Checkpoint | None = None
        """On the first rank, what is to be asked next."""
        self._heard: Sequence[Mapping[str, Any]] = ()
        """What each rank said at the last step."""
        self._refused: dict[str, str] = {}
        """By digest, what a rank has said against a checkpoint, while the first one looks for another."""

    @property
    def possible(self) -> bool:
        """Whether the ranks have a collective; through a store alone guards only recommend."""
        return self._ranks.together

    def others(self, checkpoint: Checkpoint) -> str | None:
        """What other ranks say is wrong with it, as a `Check`."""
        problems = [vote["problem"] for vote in self._heard[1:] if vote["digest"] == checkpoint.digest]
        if problem := next((f"rank {rank}: {text}" for rank, text in enumerate(problems, 1) if text), ""):
            self._refused[checkpoint.digest] = problem
        if checkpoint.digest in self._refused:
            return self._refused[checkpoint.digest]
        self._wanted = checkpoint
        return None if not problems or len(problems) < len(self._heard) - 1 or None in problems else ""

    def reach(self, step: int, proposal: Mapping[str, Any] | None, *, acts: bool) -> Mapping[str, Any] | None:
        """What is done at `step` by all ranks; None where they do not agree.

        Args:
            proposal: of the first rank; None where it has none.
            acts: whether it does anything.
        """
        if not self.possible:
            return proposal if not acts else None
        asks, self._wanted = self._wanted, None
        about = self._asked
        message = {
            "proposal": proposal, "acts": acts, "asks": None if asks is None else asks.state_dict(),
            "digest": "" if about is None else about.digest,
            "problem": None if about is None else glance(about) or self._register.reread(about),
        }  # fmt: skip
        self._heard = self._ranks.exchange(step, message) or ()
        for error in self._ranks.errors():
            self._health.record("rank_errors", error)
        if self._heard:
            first = self._heard[0]
            self._asked = of_state(first["asks"]) if first["asks"] else None
            if self._asked is None:
                self._refused.clear()
                self._register.forget()
            if not first["acts"]:
                agreed: Mapping[str, Any] | None = first["proposal"]
                return agreed
        word = self._ranks.settle(json.dumps(self._heard[0]["proposal"]) if self._heard else NO)
        settled: Mapping[str, Any] | None = json.loads(word) if word else None
        if settled is None and self._heard:
            self._health.record("rank_errors", RuntimeError(f"step {step}: a rank did not agree, and no guard acts"))
        return settled
