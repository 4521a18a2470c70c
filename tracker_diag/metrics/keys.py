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

_SCORE = re.compile(
    r"(?:^|/)(?:eval|evaluation|val|validation|test)(?:[-_/](?!(?:.*/)?(?:rewards|effective)/).*)?[-_/]"
    r"(?:reward|return|score|accuracy|acc|exact_match|em|f1|correct|success|(?:success|solve|pass|win)_rate"
    r"|pass(?:@|_at_)\d+)(?:[/_](?:mean|avg))?$"
)
"""The key of an evaluation whose last word says that more is better. One of a component of the reward, or of a part of
the samples (`effective`, of prime-rl), is none."""

_REWARD = re.compile(r"[-_/](?:reward|return)s?(?:[/_](?:mean|avg|total))?(?:@\d+)?$")


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


def by_words(key: str) -> str | None:
    """What `key` means by its own words, where no file of a trainer has it.

    >>> by_words("eval_exact_match"), by_words("eval_exact_match_std"), by_words("mine/reward")
    ('eval_score', None, 'reward')
    """
    return "eval_score" if _SCORE.search(key) else canonical(key)


def by_reward(key: str) -> bool:
    """Whether `key` is the score of an evaluation that scores by the reward.

    >>> by_reward("eval/mean_reward"), by_reward("eval/aime/reward/mean"), by_reward("eval_accuracy")
    (True, True, False)
    """
    return bool(_REWARD.search(key))


def of_evaluation(key: str) -> bool:
    """Whether `key` itself says that it is of an evaluation: `eval/reward`, `val-core/...`, `eval_reward`."""
    return bool(_EVALUATION.search(key)) or key.startswith("eval_")
