"""The windows of all ratio pairs that tensors have come of."""

from collections.abc import Collection, Mapping
from typing import Any

from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.windows import PairWindow


class PairWindows(dict[Pair, PairWindow]):
    """The window of each pair, begun with the pair's first tensors.

    Args:
        steps: of a window.
        clip: how far below and above 1 the trainer clips the ratio.
        burn_in, baseline: steps before the reference period, and of it.

    Raises:
        ValueError: `steps` or `clip` make no sense.
    """

    def __init__(self, steps: int, clip: tuple[float, float], burn_in: int, baseline: int) -> None:
        if steps < 1:
            raise ValueError(f"window: {steps} given, expected at least 1 step")
        if not (0 < clip[0] < 1 and clip[1] > 0):
            raise ValueError(f"clip: {clip} given, expected a share below 1 and one above 0")
        super().__init__()
        self._steps, self.clip, self.burn_in, self.baseline = steps, clip, burn_in, baseline

    def push(self, observed: Mapping[Pair, Observation], begun: Collection[Pair]) -> list[Pair]:
        """Take in what was observed; as a part of their last step for the pairs in `begun`, else as a new step.

        Gives the pairs whose step counts: those of which there is something new to say.
        """
        counted: list[Pair] = []
        for pair, observation in observed.items():
            window = self[pair] if pair in self else self._begun(pair)
            if (window.amend if pair in begun else window.push)(observation):
                counted.append(pair)
        return counted

    def rebaseline(self) -> None:
        """Begin all of them again with the next step that has a signal."""
        for window in self.values():
            window.rebaseline()

    @property
    def settled(self) -> bool:
        """Whether every pair has a signal, so that none waits for the ratio to leave 1."""
        return all(window.signal for window in self.values())

    def state_dict(self) -> dict[str, Any]:
        return {pair: window.state_dict() for pair, window in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        for pair in PAIRS:
            if pair in state:
                self._begun(pair).load_state_dict(state[pair])

    def _begun(self, pair: Pair) -> PairWindow:
        window = self[pair] = PairWindow(pair, self._steps, self.burn_in, self.baseline, self.clip)
        return window
