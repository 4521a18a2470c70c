"""What an RLlib result and a learner's mini-batches are to the diagnostics; Ray is not needed here."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.attach.kit import plain
from tracker_diag.trackers.keys import flat


def joined(minibatches: list[dict[str, Any]]) -> dict[str, Any]:
    """What `observe` takes; each action is a sequence of its own, as each is a sample of its own in PPO's loss."""
    import torch

    together = {
        name: torch.cat([minibatch[name] for minibatch in minibatches])
        for name in ("logprobs", "old_logprobs", "advantages")
    }
    anchor = together["logprobs"]
    masks = [
        torch.ones_like(minibatch["logprobs"], dtype=torch.bool)
        if minibatch["model_mask"] is None
        else minibatch["model_mask"]
        for minibatch in minibatches
    ]
    ids = torch.arange(len(anchor), device=anchor.device)
    return {**together, "model_mask": torch.cat(masks), "sequence_ids": ids}


def row(result: Mapping[str, Any], *, kl_computed: bool = True) -> dict[str, Any]:
    """What a result holds besides the configuration, nested names joined by `/`.

    RLlib writes NaN for what was not logged in an iteration, such as an episode's return when none ended. Only of what
    a learner computes NaN is NaN. It writes 0 for a KL that it does not compute. That would look like a policy that
    does not move.
    """
    left_out = () if kl_computed else ("mean_kl_loss", "curr_kl_coeff")
    numbers = {
        name: value
        for name, value in flat(result, "/")
        if "config" not in name.split("/")[:-1]
        if value == value  # noqa: PLR0124  # all but NaN
        or (name.startswith("learners/") and not name.rpartition("/")[2].startswith("num_"))
    }
    return {name: value for name, value in numbers.items() if name.rpartition("/")[2] not in left_out}


def settings(config: Any) -> dict[str, object]:
    """The settings of the algorithm that are plain values, by name."""
    return {**plain(config.to_dict()), "trainer": type(config).__name__}
