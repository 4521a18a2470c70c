"""Intake: the samples of the step that is underway, and what their aggregates become: series, records, a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.health import Health
from tracker_diag.metrics.own import SAMPLES
from tracker_diag.metrics.series import NAMED_ROWS
from tracker_diag.records import Record, Scalar, Table
from tracker_diag.samples.aggregates import aggregates
from tracker_diag.samples.columns import Columns, free_key
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.tables import reward_histogram, samples_table
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.tensors.slices import key_part

EVERY = 50
"""Steps from one table to the next, where nothing is reported."""


@dataclass(frozen=True)
class Taken:
    """What the samples of a step come to."""

    series: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """By canonical name."""
    records: tuple[Record, ...] = ()
    broken: tuple[str, ...] = ()
    """Columns with NaN or infinity in them."""


class SampleIntake:
    """Takes what `samples` is given: with several ranks each gives its own share, and the first counts those of all.

    Args:
        ranks: how those of several ranks come together; this process alone if None.
        essential: tools that the task needs, by name.
        texts: whether completions may be shown in the table.
    """

    def __init__(self, health: Health, ranks: Ranks | None, essential: Sequence[str], *, texts: bool) -> None:
        if isinstance(essential, str):
            raise BatchError("essential_tools", repr(essential), "a list of names")
        self._health, self._ranks, self._texts = health, ranks, texts
        self._essential = tuple(dict.fromkeys(key_part(name) for name in essential))
        self._incoming: Samples | None = None
        self._of_step: tuple[int, Samples] | None = None
        """What has come of the last step, so that what comes of it later adds to it."""
        self._range = (np.inf, -np.inf)
        """Lowest and highest reward so far: which one is the highest that there is."""
        self._tools: dict[str, str] = {}
        """Tools with series of their own, in the order in which they came, and their names in those."""
        self._envs: dict[str, str] = {}
        """The same of environments."""
        self._table_at: int | None = None

    def __bool__(self) -> bool:
        return self._incoming is not None

    def put_columns(self, columns: Mapping[str, Any]) -> None:
        """Take in one call."""
        self._add(Samples.from_columns(cast("Columns", columns), texts=self._texts))

    def _add(self, new: Samples) -> None:
        self._incoming = new if self._incoming is None else self._incoming.merged(new)

    def gather(self) -> bool:
        """Hand what is there to the rank that leads; on it, add what has come of the others. Texts stay where they are.

        Returns:
            Whether there is anything.
        """
        if self._ranks is not None:
            with self._health.guard("rank_errors"):
                if self._incoming is not None and not self._ranks.leads:
                    self._ranks.send(self._incoming.state_dict())
                for state in self._ranks.received():
                    self._add(Samples.from_state(state))
        return bool(self)

    def taken(self, step: int) -> Taken:
        """What all samples of `step` come to, if there are new ones."""
        new, self._incoming = self._incoming, None
        if new is None or not new.n:
            return Taken()
        samples = self._of_step[1].merged(new) if self._of_step and self._of_step[0] == step else new
        self._of_step = (step, samples)
        self._health.counts["nonfinite_samples"] += len(new.broken)
        self._name(samples)
        lowest, highest = self._range
        values = aggregates(
            samples, lowest=lowest, highest=highest, tools=self._tools, envs=self._envs, essential=self._essential
        )
        self._range = min(lowest, values.get("reward_min", lowest)), max(highest, values.get("reward_max", highest))
        series = {name: Scalar(name, value, samples.n) for name, value in values.items() if np.isfinite(value)}
        records: list[Record] = [Scalar(SAMPLES + name, value.value, value.n) for name, value in series.items()]
        if (histogram := reward_histogram(samples)) is not None:
            records.append(histogram)
        return Taken(series, tuple(records), new.broken)

    def tables(self, *, noticed: bool = False, step: int | None = None, last: bool = False) -> list[Table]:
        """The table of the last samples: every so often, where an incident is `noticed` at their `step`, at the end."""
        if self._of_step is None:
            return []
        at, samples = self._of_step
        new = at == step and at != self._table_at
        if not (last or (new and (noticed or self._table_at is None or at - self._table_at >= EVERY))):
            return []
        self._table_at = at
        return [samples_table(samples, at)]

    def _name(self, samples: Samples) -> None:
        """Give series of their own to essential tools, and to the tools called most until there are sixteen.

        To environments in the order in which they come.
        """
        counts = np.bincount(samples.calls["tool"], minlength=len(samples.calls.names))
        ranked = sorted(zip(-counts, samples.calls.names, strict=True))
        tools = sorted((name for _, name in ranked), key=lambda name: key_part(name) not in self._essential)
        envs = dict.fromkeys(env for env, _ in samples.shown if env)
        for names, keys in ((tools, self._tools), (envs, self._envs)):
            for name in names:
                if name not in keys and len(keys) < NAMED_ROWS:
                    keys[name] = free_key(name, keys.values())

    def state_dict(self) -> dict[str, Any]:
        return {
            "incoming": self._incoming and self._incoming.state_dict(),
            "of_step": self._of_step and [self._of_step[0], self._of_step[1].state_dict()],
            "range": list(self._range) if np.isfinite(self._range[0]) else None,
            "tools": [[name, key] for name, key in self._tools.items()],
            "envs": [[name, key] for name, key in self._envs.items()],
            "table_at": self._table_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._incoming = Samples.from_state(state["incoming"]) if state["incoming"] else None
        self._of_step = (state["of_step"][0], Samples.from_state(state["of_step"][1])) if state["of_step"] else None
        self._range = (state["range"][0], state["range"][1]) if state["range"] else (np.inf, -np.inf)
        self._tools, self._envs = dict(state["tools"]), dict(state["envs"])
        self._table_at = state["table_at"]
