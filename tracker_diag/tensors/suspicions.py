"""What looks like a mistake in the tensors of a first batch, each with what was assumed and what to do."""

from collections.abc import Collection, Iterator, Mapping

from tracker_diag.metrics.series import Dimension
from tracker_diag.stats.arrays import Array

GAPS = (
    "response_mask has gaps, and no model_mask was given: the gaps are taken for tool output, and what follows them "
    "for post_tool. If they are something else, give model_mask too, True on sampled tokens."
)


def suspicions(given: Collection[str], rows: Mapping[Dimension, Array]) -> Iterator[str]:
    """A sentence or two each.

    Args:
        given: names of the tensors that came.
        rows: (N,) row of each token by dimension, as `label` gives it; on a device, to look at them waits for it.
    """
    if "response_mask" in given and not {"model_mask", "after_tool"} & {*given} and (rows["context"] == 1).any():
        yield GAPS


def told_by(given: Collection[str]) -> str:
    """From which of the tensors that came it is taken which tokens come after a tool."""
    if "after_tool" in given:
        return "as after_tool says"
    if "model_mask" in given:
        return (
            "what follows a gap of model_mask within response_mask"
            if "response_mask" in given
            else ("what follows a gap of model_mask")
        )
    return "what follows a gap of response_mask" if "response_mask" in given else ""


UNHEARD = 5
"""Steps observed without a word of metrics, after which that is no delay any more."""

UNOBSERVED = 50
"""Steps logged without tensors, after which these have ceased to come."""


class Silence:
    """What does not come: a `log` after observations, or tensors after some had come. Each is said once.

    What was usual so far counts: a step may have several micro-batches, and not every step need have tensors.
    """

    def __init__(self) -> None:
        self._batches, self._most_batches = 0, 1
        self._last_observed: int | None = None
        self._steps, self._most_steps = 0, 0
        self._last_logged: int | None = None
        self._unsaid = {"metrics", "tensors"}

    def observed(self, step: int | None) -> str | None:
        """A batch has come, of `step` if that was said; what is to be said."""
        self._batches += step is None or step != self._last_observed
        self._last_observed = step
        self._most_steps, self._steps = max(self._steps, self._most_steps), 0
        if self._batches < UNHEARD * self._most_batches or "metrics" not in self._unsaid:
            return None
        self._unsaid.discard("metrics")
        return (
            f"{self._batches} batches were observed, and no metrics were heard since. Rules about reward, loss and KL "
            "see nothing, and batches without a step are taken for micro-batches of one. Log through the tracker that "
            "was wrapped, or call run.diag.log(metrics, step) after each observe(...)."
        )

    def logged(self, step: int, last_with_tensors: int | None) -> str | None:
        """Metrics of `step` have come; what is to be said."""
        if self._batches:
            self._most_batches, self._batches = max(self._batches, self._most_batches), 0
        self._steps += step != self._last_logged
        self._last_logged = step
        usual = max(UNOBSERVED, UNHEARD * self._most_steps)
        if last_with_tensors is None or self._steps <= usual or "tensors" not in self._unsaid:
            return None
        self._unsaid.discard("tensors")
        return (
            f"{usual} steps were logged without tensors since step {last_with_tensors}: tails, ESS and the rules over "
            "them see nothing any more. Call run.diag.observe(...) in each step, before its log."
        )
