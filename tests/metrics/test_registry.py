import pytest

from tracker_diag.errors import UnknownName
from tracker_diag.metrics import alias_files, own, registry
from tracker_diag.metrics.keys import canonical
from tracker_diag.metrics.statistics import STATISTICS


def test_names_stand_once_and_are_explained():
    for family in (tuple(STATISTICS.values()), own.HEALTH, registry.TRAINING, own.OWN):
        names = [metric.name for metric in family]
        assert len(names) == len(set(names))
        assert all(metric.meaning and metric.unit for metric in family)


def test_names_of_training_are_plain_words():
    assert all(metric.name.isidentifier() and metric.name.islower() for metric in registry.TRAINING)


# What no trainer logs under a name of its own: the user does, or the monitor, or it follows from other metrics.
BY_CANONICAL_NAME = {
    "adapter_missing",
    "advantage_ess",
    "advantage_success_correlation",
    "advantage_top_share",
    "canary_difference",
    "claimed_success",
    "component_variance_share",
    "concurrency",
    "dead_component_share",
    "diversity",
    "env_reward_best",
    "episode_overdue",
    "essential_tool_share",
    "evaluation",
    "expert_reward",
    "human_score",
    "judge_score",
    "judge_style_correlation",
    "kl_target",
    "length_limit",
    "loss_scale",
    "memory_limit",
    "positive_logprob",
    "private_score",
    "public_score",
    "random_reward",
    "rank_time_ratio",
    "recovery_rate",
    "refusal_rate",
    "repeated_call_share",
    "return_std",
    "reward_after_tool_failure",
    "reward_after_tool_success",
    "reward_agreement",
    "reward_max_share",
    "reward_p50",
    "reward_p99",
    "reward_scale",
    "reward_skew",
    "reward_top_share",
    "reward_zero_share",
    "skipped_steps",
    "tokens_per_success",
    "tool_entropy",
    "tool_result_tokens",
    "tool_share",
    "tool_timeouts",
    "tool_truncated_share",
    "unversioned_share",
    "utilisation",
    "value_std",
    "verified_success",
    "verifier_score",
    "weights_arrived",
    "weights_behind",
}


def test_every_name_is_some_trainers_or_the_users():
    mapped = {name for file in alias_files.FOLDER.glob("*.yaml") for name in alias_files.load(file).metrics}
    assert mapped | BY_CANONICAL_NAME == {metric.name for metric in registry.TRAINING}
    assert not mapped & BY_CANONICAL_NAME


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("reward", "reward"),
        ("train/reward", "reward"),
        ("losses/clip_fraction", "clip_fraction"),
        ("eval/reward", None),
        ("val-core/gsm8k/reward", None),
        ("eval-rollout/reward", None),
        ("critic/grad_norm", None),
        ("critic/value_loss", "value_loss"),
        ("eval/eval_score", "eval_score"),
        ("value_loss", "value_loss"),
        ("tools/tool_calls:search", "tool_calls:search"),
        ("tool_calls:", None),
        ("kl:search", None),
        ("diag/policy/all/kl", None),
        ("reward_spread", None),
        ("my reward", None),
    ],
)
def test_a_trainers_key_is_known_by_its_last_part(key, name):
    assert canonical(key) == name


def test_a_member_has_its_familys_definition():
    assert registry.training("tool_failure_rate:search") is registry.training("tool_failure_rate")
    with pytest.raises(UnknownName):
        registry.training("kl:search")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownName, match="metric: 'rewards' given, expected one of reward, kl"):
        registry.training("rewards")
