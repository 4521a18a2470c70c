"""Intake: what was observed and not judged yet, of this rank and of all."""

from collections.abc import Mapping
from typing import Any, cast

from tracker_diag.health import Health
from tracker_diag.metrics.series import Pair, Rank
from tracker_diag.tensors.arrival import on_host
from tracker_diag.tensors.batch import Tensors, TokenBatch
from tracker_diag.tensors.observation import Observation, add_observations, packed, renamed, unpacked
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.segments import reduced
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.suspicions import shown_by, suspicions
from tracker_diag.tensors.worst import WorstTokens


class Intake:
    """Reduces batches as they come, and brings those of one step together.

    Args:
        ranks: how the observations of several ranks come together; this process alone if None.
        clip: how far below and above 1 the trainer clips the ratio.
    """

    def __init__(self, health: Health, ranks: Ranks | None, clip: tuple[float, float] = (0.2, 0.2)) -> None:
        self._health, self._ranks, self._clip = health, ranks, clip
        self._names = Names()
        self._incoming: dict[Pair, Observation] = {}
        """Of this rank, since the last `gather`."""
        self._gathered: dict[Pair, Observation] = {}
        """Of all ranks; left over where the step could not be begun."""
        self.worst = WorstTokens()
        """Of this rank alone."""
        self._batches = 0
        self.shown_by = ""
        """From what it was taken which tokens come after a tool."""
        self.asked = False
        """Whether `observe` was called since the last `gather`, whatever became of it."""
        self._seconds: float | None = None
        self.step: int | None = None
        """The step that the tensors were said to be of, if it was said."""
        self.says_step = False
        """Whether it is said, as a rule: it was the last time."""
        self.time_ratio: float | None = None
        """Slowest rank's seconds over the median rank's, where ranks tell theirs."""
        self.missing: Mapping[Rank, int] | None = None
        """Steps since a rank was last heard of, by rank, where ranks report through a store."""

    def __bool__(self) -> bool:
        return bool(self._incoming or self._gathered)

    @property
    def names(self) -> Names:
        """The names that the rows of tools and environments go by, after `gather`."""
        return self._ranks.names if self._ranks else self._names

    def observe(self, tensors: Tensors, step: int | None, seconds: float | None) -> None:
        """Reduce one batch, and add it to what is there.

        Raises:
            BatchError: the tensors do not fit together; in the first batch also, if they hold NaN or inf.
        """
        self._batches += 1
        self.came(step, seconds)  # one that is rejected counts too, as the other ranks wait for it
        tensors = cast("Tensors", {name: value for name, value in tensors.items() if value is not None})
        batch = TokenBatch.validated(check=self._health.strict, **tensors)
        first, on_host_already = self._health.strict, not batch.is_on_device
        # Of a batch on the host labels of all tokens are made for what needs them alone.
        labels = {} if on_host_already and not (first or self.worst.limits) else label(batch, self._names)
        if first:
            self._health.warn(suspicions(tensors, batch, labels))
            self.shown_by = shown_by(tensors)
        add_observations(self._incoming, reduced(batch, self._names, self._batches, self._clip, labels))
        self.worst.observe(batch, labels, self._names)

    def add_observed(
        self, observed: Mapping[Pair, Observation], names: Names, missing: Mapping[Rank, int] | None, lost: int
    ) -> None:
        """Add what other processes have observed, with rows of their `names`, to what is there."""
        self._batches += 1
        self._incoming = on_host(self._incoming)
        add_observations(self._incoming, renamed(observed, names, self._names))
        self._heard(missing, lost)

    def came(self, step: int | None, seconds: float | None) -> None:
        """Something has come of `step`, if only the time that this rank took for itself."""
        self.asked, self.step, self.says_step = True, step, step is not None
        if seconds is not None:
            self._seconds = (self._seconds or 0.0) + seconds

    def gather(self, step: int) -> dict[Pair, Observation]:
        """All that is there, that of all ranks where there are several; it stays until `taken`.

        Every rank comes here with its first `log` after an `observe`, whatever else it logs.
        """
        asked, self.asked = self.asked, False
        observed, self._incoming = self._incoming, {}
        if self._ranks is not None and asked:
            with self._health.guard("rank_errors"):
                seconds, self._seconds = self._seconds, None
                merged = self._ranks.merge(step, on_host(observed), self._names, seconds)
                observed, self.time_ratio = merged.observed, merged.time_ratio
                self._heard(merged.missing, merged.lost)
            self._count_errors(self._ranks)
        add_observations(self._gathered, observed)
        return self._gathered

    def _heard(self, missing: Mapping[Rank, int] | None, lost: int) -> None:
        self.missing = missing
        self._health.counts["lost_rank_steps"] += lost

    def _count_errors(self, ranks: Ranks) -> None:
        for error in ranks.errors():
            self._health.record("rank_errors", error)

    def taken(self) -> dict[Pair, Observation]:
        """What was gathered, in numpy arrays; waits for a device if it is on one."""
        gathered, self._gathered, self.step = self._gathered, {}, None
        return on_host(gathered)

    def close(self) -> bool:
        """Send what is still to be sent to other ranks, and gather the rest of theirs; gives whether there was any."""
        if self._ranks is None:
            return False
        with self._health.guard("rank_errors"):
            merged = self._ranks.close()
            self._heard(merged.missing, merged.lost)
            add_observations(self._gathered, merged.observed)
        self._count_errors(self._ranks)
        return bool(self._gathered)

    def state_dict(self) -> dict[str, Any]:
        return {
            "names": [self.names.state_dict(), self._names.state_dict()],
            "observed": [packed(on_host(self._incoming)), packed(on_host(self._gathered))],
            "asked": self.asked,
            "step": [self.step, self.says_step],
            "batches": self._batches,
            "time_ratio": self.time_ratio,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        shown, local = (Names.of_state(part) for part in state["names"])
        self._incoming, self._gathered = (unpacked(part) for part in state["observed"])
        if self._ranks:
            self._ranks.names, self._names = shown, local
        else:  # saved with several ranks, perhaps: what is one rank's own goes by its own names
            self._incoming = renamed(self._incoming, local, shown)
            self._names = shown
        self.asked, self._batches, (self.step, self.says_step) = state["asked"], state["batches"], state["step"]
        self.time_ratio = state["time_ratio"]
