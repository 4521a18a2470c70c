"""Arrival: what was observed on a device, on its way to the host."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracker_diag.metrics.series import Pair
from tracker_diag.stats.arrays import namespace
from tracker_diag.tensors.observation import Observation


class Arrival:
    """Observations on their way from a device to the host, in one copy; until `wait` nothing waits for it.

    Those that are on the host already stay as they are.
    """

    def __init__(self, observed: Mapping[Pair, Observation]) -> None:
        self._observed = observed
        self._arrays: list[Any] = []
        if all(namespace(observation.sums[0]) is np for observation in observed.values()):
            return
        import torch

        self._arrays = [a for observation in observed.values() for a in observation.arrays()]
        device = self._arrays[0].device
        # float64 bits travel as int64, so that one buffer holds both.
        packed = torch.cat([a.contiguous().view(torch.int64).reshape(-1) for a in self._arrays])
        self._done: Any = None
        if device.type != "cuda":
            self._host = packed.cpu()
            return
        with torch.cuda.device(device):  # the event goes into the stream of the tensors' own device
            self._host = torch.empty(packed.shape, dtype=torch.int64, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def wait(self) -> dict[Pair, Observation]:
        """The observations, in numpy arrays."""
        if not self._arrays:
            return dict(self._observed)
        if self._done is not None:
            self._done.synchronize()
        flat, start, arrays = self._host.numpy(), 0, []
        for like in self._arrays:
            part = flat[start : start + like.numel()].reshape(tuple(like.shape))
            arrays.append(part.view(np.float64) if like.is_floating_point() else part)
            start += like.numel()
        arrived = iter(arrays)
        return {pair: observation.rebuilt(arrived) for pair, observation in self._observed.items()}


def on_host(observed: Mapping[Pair, Observation]) -> dict[Pair, Observation]:
    """`observed` in numpy arrays; waits for a device if it is on one."""
    return Arrival(observed).wait()
