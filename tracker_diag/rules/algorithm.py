"""Which algorithm a run's settings name: some limits depend on it."""

from collections.abc import Mapping

from tracker_diag.metrics.registry import Algorithm

TEXTS: dict[Algorithm, tuple[str, ...]] = {
    "gspo": ("gspo", "sequence"),
    "grpo": ("grpo", "rloo", "dapo", "dr_grpo", "reinforce"),
    "ppo": ("ppo", "gae"),
    "dpo": ("dpo", "orpo", "kto", "simpo", "ipo", "cpo", "apo_", "bco", "rewardtrainer"),
    "sft": ("sft",),
}
"""Texts that tell an algorithm, the first that matches."""

SETTINGS = frozenset({
    "algorithm", "adv_estimator", "loss_type", "trainer", "algo", "loss_agg_mode", "importance_sampling_level",
    "advantage_estimator", "trainer_type",
})  # fmt: skip
"""Last parts of the names of settings that say it."""


def algorithm_of(config: Mapping[str, object]) -> Algorithm | None:
    """The algorithm that a run's settings, by dotted name, tell; None if they tell none."""
    named = [
        value.lower() for key, value in config.items() if isinstance(value, str) and key.rsplit(".", 1)[-1] in SETTINGS
    ]
    for algorithm, texts in TEXTS.items():
        if any(text in value for text in texts for value in named):
            return algorithm
    return None
