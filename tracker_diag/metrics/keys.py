"""What a trainer's own key means by itself, where no table of its framework has it."""

import re

from tracker_diag.metrics.registry import PREFIX, find

OF_SEVERAL_KINDS = frozenset({"approx_kl", "clip_fraction", "entropy", "grad_norm", "kl", "learning_rate", "loss"})
"""Names whose meaning depends on what is before them: `critic/loss` is no loss of the policy."""

_PLAIN = frozenset({
    "train", "training", "trainer", "learner", "learners", "default_policy", "actor", "policy", "rollout", "metrics",
    "stats", "loss", "losses", "optim", "optimizer", "update", "ppo", "grpo", "gspo", "dpo", "sft", "rl",
})  # fmt: skip
"""Parts of a key that leave the usual meaning of its last part as it is."""

_EVALUATION = re.compile(r"(?:^|/)(?:eval|evaluation|val|validation|test)(?:[-_][^/]*)?/")
"""A part of a key, before its last, that says that the value is of an evaluation."""


def canonical(key: str) -> str | None:
    """The canonical name of a trainer's own `key`, with or without a prefix; None if it is none.

    >>> canonical("train/reward")
    'reward'
    """
    before, _, last = key.rpartition("/")
    if find(last) is None or key.startswith(PREFIX) or not same_kind(last, before):
        return None
    return last if last.startswith("eval_") or not of_evaluation(key) else None


def same_kind(name: str, before: str) -> bool:
    """Whether the canonical `name` keeps its meaning below `before`, the parts of a key that come first.

    >>> same_kind("kl", "train"), same_kind("kl", "rollout_correction")
    (True, False)
    """
    return name not in OF_SEVERAL_KINDS or _PLAIN.issuperset(before.lower().split("/") if before else ())


def of_evaluation(key: str) -> bool:
    """Whether `key` itself says that it is of an evaluation: `eval/reward`, `val-core/...`, `eval_reward`."""
    return bool(_EVALUATION.search(key)) or key.startswith("eval_")
