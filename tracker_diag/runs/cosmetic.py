"""Metrics whose value says nothing by construction, so that nobody takes them for a finding."""

from collections.abc import Iterator, Mapping

FEWEST = 2
"""Rows with a loss of exactly 0 from which on it is no coincidence."""


def by_construction(framework: str | None, series: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """What is known from the log alone: a loss of exactly 0 in TRL's GRPO, while its gradient is not 0.

    With one update per batch the ratio is 1, and the advantages of a group add up to 0. So the value of the loss is 0,
    but for the KL term; its gradient is not. Where the gradient is 0 as well, nothing is said.

    Args:
        framework: whose names the metrics have.
        series: by canonical name and step.
    """
    loss, gradient = series.get("loss", {}), series.get("grad_norm", {})
    if framework != "TRL" or not {"loss", "reward", "reward_std"} <= series.keys():
        return
    zeros = [step for step, value in loss.items() if value == 0 and gradient.get(step, 0.0) > 0]
    if len(zeros) >= FEWEST:
        yield (
            f"the loss is exactly 0 in {len(zeros)} of {len(loss)} rows, while the gradient is not: with one update "
            "per batch the loss of GRPO is 0 by construction, but for its KL term. It is cosmetic; look at the reward"
        )
