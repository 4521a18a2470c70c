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
