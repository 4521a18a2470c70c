"""Engines: where the parts of a token log are folded. All of them give the same states in the same order."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.errors import SourceError, require
from tracker_diag.health import private
from tracker_diag.runs.replay.fold import Folded, fold
from tracker_diag.trackers.tokens.log import Part
from tracker_diag.trackers.tokens.skipped import Skipped

AHEAD = 2
"""Parts for each process that are folded or wait to be judged; it bounds the memory."""
STATE_VERSION = 2


@dataclass(frozen=True)
class PartFolded:
    """What a part comes to."""

    steps: Sequence[tuple[int, Folded]]
    skipped: Skipped

    def state_dict(self) -> dict[str, Any]:
        """The same in JSON values."""
        steps = [[step, folded.state_dict()] for step, folded in self.steps]
        return {"steps": steps, "skipped": [self.skipped.count, [self.skipped.first]]}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "PartFolded":
        """What `state_dict` was taken of."""
        count, errors = state["skipped"]
        steps = [(step, Folded.of_state(folded)) for step, folded in state["steps"]]
        return cls(steps, Skipped(count=count, first=next(iter(errors), "")))


@dataclass(frozen=True)
class Work:
    """How parts are folded: `clip` and `means` as in `fold`; with `skip_bad`, what cannot be read is left out."""

    clip: tuple[float, float] = (0.2, 0.2)
    skip_bad: bool = False
    means: bool = False

    def __call__(self, part: Part) -> PartFolded:
        skipped = Skipped(self.skip_bad)
        steps = part.steps(None, skipped)
        return PartFolded([(step, fold(tensors, self.clip, means=self.means)) for step, tensors in steps], skipped)


Engine: TypeAlias = Callable[[Work, Sequence[Part]], Iterable[PartFolded]]
"""Folds parts, and gives what they come to in their order."""


def processes(number: int) -> Engine:
    """In `number` processes of this machine; a few parts alone are folded in this one."""

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[PartFolded]:
        if number == 1 or len(parts) <= number:
            yield from map(work, parts)
            return
        upcoming = iter(parts)
        with ProcessPoolExecutor(number, get_context("spawn")) as pool:
            try:
                waiting = deque(pool.submit(work, part) for part in islice(upcoming, AHEAD * number))
                while waiting:
                    yield waiting.popleft().result()
                    waiting.extend(pool.submit(work, part) for part in islice(upcoming, 1))
            except BrokenProcessPool as error:
                raise SourceError("a process that reads was killed, perhaps for its memory; try --workers 1") from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    return engine


def on_ray(address: str | None = None) -> Engine:
    """On Ray Data; a part whose worker dies is folded again elsewhere.

    The cluster is that at `address`, by default at RAY_ADDRESS, or else one on this machine.
    """
    ray = require("ray", "rllib")
    data: Any = require("ray.data", "rllib")

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[PartFolded]:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        context = data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False

        def folded(row: dict[str, Any]) -> dict[str, Any]:
            return {"state": json.dumps(work(parts[row["item"]]).state_dict())}

        numbers = data.from_items([*range(len(parts))], override_num_blocks=len(parts))
        try:
            for row in numbers.map(folded).iter_rows():
                yield PartFolded.of_state(json.loads(row["state"]))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, SourceError):
                raise error.cause from error
            raise

    return engine


def kept(engine: Engine, folder: Path) -> Engine:
    """As `engine`, with what each part comes to kept in `folder`; a later replay of these rows continues from there."""

    def engine_with_states(work: Work, parts: Sequence[Part]) -> Iterator[PartFolded]:
        about = [f"{STATE_VERSION} {work} {part.stamp()}" for part in parts]  # of its files and the way of folding
        files = [folder / f"{sha256(text.encode()).hexdigest()[:32]}.json" for text in about]
        new = iter(engine(work, [part for part, file in zip(parts, files, strict=True) if not file.exists()]))
        for file in files:
            if file.exists():
                yield PartFolded.of_state(json.loads(file.read_text()))
            else:
                folded = next(new)
                private(file, json.dumps(folded.state_dict()))
                yield folded

    return engine_with_states
