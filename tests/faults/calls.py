"""What a training gives a monitor, kept so that it can be given again: `observe`, `samples` and `log`, in order."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tracker_diag as td
from tracker_diag.rules.triage import Summary
from tracker_diag.tensors.ranks import ThroughStore

READ_SECONDS = 0.02
"""That ranks have to send and read, as a step takes longer than its replay."""
KINDS = {"f": np.float32, "b": np.bool_, "i": np.int16}


class Calls:
    """The calls of one run. Arrays are kept once, however often they are given."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        """Of each step the metrics, the columns of samples, and what each rank observed, update by update."""
        self._arrays: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
        self._sizes = dict.fromkeys(KINDS, 0)
        self._known: dict[int, tuple[np.ndarray, Any]] = {}
        self._open: dict[str, Any] = {"observed": []}

    def observe(self, rank: int, **given: np.ndarray) -> None:
        self._open["observed"].append([rank, {name: self._kept(parent) for name, parent in given.items()}])

    def samples(self, **columns: Any) -> None:
        self._open["samples"] = {name: _plain(parent) for name, parent in columns.items()}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.steps.append(self._open | {"step": step, "metrics": dict(metrics)})
        self._open = {"observed": []}
        self._known.clear()

    def _kept(self, array: np.ndarray) -> Any:
        """Where the array is: kind, offset, shape, and what its numbers stand for."""
        names: list[str] = []
        if array.dtype.kind == "U":
            unique, array = np.unique(array, return_inverse=True)
            names = unique.tolist()
        kind = array.dtype.kind if array.dtype.kind in KINDS else "i"
        flat = array.astype(KINDS[kind]).reshape(-1)
        for before, place in self._known.values():
            if place[0] == kind and before.shape == flat.shape and np.array_equal(before, flat) and place[3] == names:
                return place
        place = [kind, self._sizes[kind], list(array.shape), names]
        self._known[len(self._known)] = flat, place
        self._arrays[kind].append(flat)
        self._sizes[kind] += flat.size
        return place

    def write(self, file: Path, label: Mapping[str, Any]) -> None:
        """Keep them, with what is known of the run."""
        arrays = {kind: np.concatenate([*parent, np.zeros(0, KINDS[kind])]) for kind, parent in self._arrays.items()}
        text = json.dumps({"label": label, "steps": self.steps}).encode()
        unfinished = file.with_suffix(".tmp.npz")
        np.savez_compressed(unfinished, text=np.frombuffer(text, np.uint8), **arrays)
        unfinished.rename(file)


class Kept:
    """What `Calls.write` has kept."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as data:
            self._arrays = {kind: data[kind] for kind in KINDS}
            content = json.loads(data["text"].tobytes())
        self.label: dict[str, Any] = content["label"]
        self.steps: list[dict[str, Any]] = content["steps"]

    def given(self, places: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The tensors of one call."""
        return {name: self._array(*place) for name, place in places.items()}

    def _array(self, kind: str, begin: int, shape: list[int], names: list[str]) -> np.ndarray:
        parent = self._arrays[kind][begin : begin + int(np.prod(shape))].reshape(shape)
        return np.array(names)[parent] if names else parent

    def judged(self) -> Summary:
        """What the monitor of this checkout makes of the run."""
        settings = self.label["settings"]
        ranks = settings["ranks"]
        store = None
        if ranks > 1:
            from torch.distributed import HashStore

            store = HashStore()
        monitors = [
            td.Monitor(
                ranks=ThroughStore(store, rank, ranks, f"host-{rank}") if store else None,
                algorithm=settings["algorithm"].lower(), source="alerts",
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for monitor in monitors:
            monitor.expect(rows=len(self.steps))
        for step in self.steps:
            for rank, places in step["observed"]:
                monitors[rank].observe(**self.given(places))
            if "samples" in step:
                monitors[0].samples(**step["samples"])
            for rank in sorted({rank for rank, _ in step["observed"]}, reverse=True):
                monitors[rank].log({} if rank else step["metrics"], step["step"])
                time.sleep(0.0 if ranks == 1 else READ_SECONDS)
        summaries = [monitor.close() for monitor in reversed(monitors)]
        return summaries[-1]


def _plain(given: Any) -> Any:
    """What is given, in JSON; six digits are enough of a reward."""
    if isinstance(given, Mapping):
        return {name: _plain(part) for name, part in given.items()}
    return [round(value, 6) for value in given.tolist()] if isinstance(given, np.ndarray) else given
