"""The registry of the metrics that trainers log, by canonical name.

What this package adds is in `own` and `statistics`. docs/metrics.md is made of all three.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tracker_diag.errors import UnknownName

PREFIX = "diag/"
Algorithm: TypeAlias = Literal["ppo", "grpo", "gspo", "dpo", "sft"]
"""What names and limits may depend on. gspo: any ratio per sequence; dpo: any loss on pairs; sft: any loss on given
text."""
Worse: TypeAlias = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """One name: its unit, what it means, and which way it gets worse."""

    name: str
    unit: str
    meaning: str
    worse: Worse
    scale: Literal["log", "linear"] = "linear"
    """The scale on which growth is judged: `log` for what is positive and spans decades."""
    matters: float = 0.0
    """On the linear scale: a change below this, in the metric's unit, is never growth."""
    per: str = ""
    """What it may also be logged for one at a time: with `tool`, the tool search has `<name>:search`."""
    outcome: bool = False
    """Whether it says how good the run is as a whole: one may go back to its best step."""


def _share(name: str, meaning: str, worse: Worse = "higher", *, matters: float = 0.02, per: str = "") -> Metric:
    """A share between 0 and 1, of which a change below `matters` is never growth."""
    return Metric(name, "share", meaning, worse, matters=matters, per=per)


def _correlation(name: str, meaning: str, worse: Worse) -> Metric:
    """A correlation between -1 and 1, of which a change below 0.05 is never growth."""
    return Metric(name, "correlation", meaning, worse, matters=0.05)


TRAINING = (
    # What is optimised.
    Metric("reward", "reward", "mean training reward; of an episode, its return", "lower", outcome=True),
    Metric("kl", "nat", "mean KL to the reference policy, whatever its estimator", "higher", "log"),
    Metric("entropy", "nat", "mean token entropy of the policy", "lower", "log"),
    Metric("loss", "loss", "training loss: the policy's in RL, that of labels or pairs elsewhere", "higher",
           matters=0.01, outcome=True),
    Metric("grad_norm", "norm", "gradient norm before clipping", "higher", "log"),
    Metric("clip_fraction", "share", "share of ratios outside the clip range", "higher", matters=0.01),
    Metric("approx_kl", "nat", "mean KL between the policy before and after its update", "higher", "log"),
    Metric("kl_target", "nat", "the KL that a controller or an early stop aims at", "neither"),
    Metric("kl_coefficient", "weight", "weight of the KL to the reference in loss or reward", "neither"),
    Metric("learning_rate", "rate", "learning rate of the policy", "neither", "log"),
    _share("exploration_rate", "actions that are drawn at random, epsilon of DQN", "neither"),
    # Reward: its distribution over a batch, its parts, and what it should agree with.
    Metric("reward_std", "reward", "standard deviation of the rewards of a batch", "lower"),
    Metric("group_reward_std", "reward", "standard deviation within a prompt's samples, mean over prompts", "lower"),
    Metric("reward_min", "reward", "smallest reward of a batch", "neither"),
    Metric("reward_max", "reward", "largest reward of a batch", "neither"),
    Metric("reward_p50", "reward", "median reward of a batch", "lower"),
    Metric("reward_p99", "reward", "99th percentile of the rewards of a batch", "neither"),
    Metric("reward_skew", "ratio", "skewness of the rewards of a batch", "higher", matters=0.5),
    _share("reward_zero_share", "samples whose reward is exactly 0"),
    _share("reward_max_share", "samples whose reward is the highest that there is", "neither"),
    _share("reward_top_share", "largest absolute reward over the sum of all absolute rewards"),
    Metric("env_reward", "reward", "mean reward of one environment", "lower", per="env"),
    Metric("env_reward_best", "reward", "mean reward of the environment in which it is highest", "lower"),
    Metric("reward_component", "reward", "mean of one part of the reward", "neither", per="component"),
    Metric("reward_component_std", "reward", "standard deviation of one part of the reward", "lower", per="component"),
    _share("component_variance_share", "largest part's variance over the sum of all parts'"),
    _share("dead_component_share", "parts of the reward whose standard deviation is exactly 0"),
    Metric("reward_scale", "reward", "mean absolute reward of an environment step, as the learner gets it", "neither",
           "log"),
    _correlation("reward_agreement", "correlation of what the learner was paid in an episode with the recorded return",
                 "lower"),
    Metric("format_reward", "reward", "the part of the reward that is paid for format", "neither"),
    _share("scorer_error_share", "samples whose scoring raised or timed out"),
    _share("success_rate", "training episodes that solved their task", "lower"),
    _share("claimed_success", "episodes whose text claims success", "neither"),
    _share("verified_success", "episodes whose final state was verified to be right", "lower"),
    Metric("human_score", "score", "mean score that people gave", "lower"),
    Metric("judge_score", "score", "mean score that a judge model gave", "lower"),
    Metric("verifier_score", "score", "mean score that a program's check gave", "lower", outcome=True),
    _correlation("judge_style_correlation", "strongest correlation of the judge's score with style", "higher"),
    Metric("expert_reward", "reward", "mean reward of a known good policy, under the same reward", "lower"),
    Metric("random_reward", "reward", "mean reward of a random policy, under the same reward", "neither"),
    # Evaluation: never the training metric of the same name.
    Metric("eval_score", "score", "mean score or return of the evaluation", "lower", outcome=True),
    Metric("evaluation", "score", "score of one more evaluation", "lower", outcome=True, per="eval"),
    Metric("public_score", "score", "score on the evaluation set that choices are made by", "lower"),
    Metric("private_score", "score", "score on an evaluation set that nothing was chosen by", "lower"),
    Metric("eval_loss", "loss", "loss on held-out data", "higher", matters=0.01, outcome=True),
    Metric("eval_best_of_n", "score", "mean of the best of N samples, as pass@N", "lower"),
    Metric("eval_majority", "score", "score of what most of N samples answer", "lower"),
    _share("eval_truncated_share", "evaluation responses that were cut at a limit"),
    _share("eval_tool_failure_rate", "tool calls of the evaluation that failed"),
    Metric("eval_turns", "turns", "mean turns of an evaluation episode", "neither", "log"),
    # What the policy does.
    Metric("response_length", "tokens", "mean tokens of a response", "neither", "log"),
    Metric("response_length_max", "tokens", "longest response of a batch", "neither", "log"),
    Metric("response_length_right", "tokens", "mean tokens of the responses that solved their task", "neither", "log"),
    Metric("response_length_wrong", "tokens", "mean tokens of the responses that did not", "neither", "log"),
    Metric("length_limit", "tokens", "where a response is cut", "neither", "log"),
    _share("truncated_share", "responses or episodes that were cut at a limit"),
    _share("retokenised_share", "responses whose token ids in training are not those that were sampled"),
    _share("aborted_share", "responses without any token, as they were aborted"),
    _share("terminated_share", "episodes that reached a terminal state", "lower"),
    Metric("episode_length", "steps", "mean environment steps of an episode", "neither", "log"),
    Metric("episode_overdue", "limits", "time limits that have passed in which no episode has ended", "higher"),
    Metric("turns", "turns", "mean turns of an episode", "neither", "log"),
    _share("repeat_ratio", "text that repeats itself; of what, the source says"),
    _share("refusal_rate", "responses that refuse"),
    _share("diversity", "distinct behaviours among the samples of a group, mean over groups", "lower"),
    # Tools and the environment.
    Metric("tool_calls", "calls", "mean tool calls of an episode", "neither", "log", per="tool"),
    _share("tool_failure_rate", "tool calls that failed", per="tool"),
    _share("tool_share", "calls of one tool among all calls", "neither", per="tool"),
    _share("repeated_call_share", "tool calls that repeat an earlier one of their episode, name and arguments alike"),
    _share("recovery_rate", "failed tool calls after which a later call of their episode worked", "lower"),
    Metric("tokens_per_success", "tokens", "tokens of all responses for each task that was solved", "higher", "log"),
    Metric("tool_entropy", "nat", "entropy of the choice among tools", "lower", matters=0.02),
    _share("essential_tool_share", "least share of all calls among the tools declared essential", "lower", per="tool"),
    _share("malformed_call_rate", "tool calls that could not be parsed"),
    _share("void_turn_rate", "turns, or episodes with one, that neither call a tool nor answer"),
    Metric("tool_seconds", "s", "mean time in tools or the environment", "higher", "log", per="tool"),
    _share("tool_timeouts", "tool calls that ran out of time", per="tool"),
    Metric("tool_result_tokens", "tokens", "mean tokens of a tool's result", "neither", "log", per="tool"),
    _share("tool_truncated_share", "tool results that were cut", per="tool"),
    Metric("concurrency", "episodes", "episodes under way at once", "neither", "log"),
    Metric("reward_after_tool_failure", "reward", "mean reward of episodes whose last tool call failed", "higher",
           matters=0.02),
    Metric("reward_after_tool_success", "reward", "mean reward of episodes whose last tool call worked", "lower",
           matters=0.02),
    # Advantages and groups.
    _share("zero_std_share", "groups of samples whose rewards are all the same"),
    _share("filtered_share", "groups of samples that are left out of training"),
    _share("solved_none_share", "groups in which no sample solved the task"),
    _share("solved_all_share", "groups in which every sample solved the task"),
    Metric("effective_groups", "groups", "groups of samples whose rewards are not all the same", "lower"),
    _share("advantage_top_share", "absolute advantage of the top twentieth of the samples over that of all"),
    Metric("advantage_std", "advantage", "standard deviation of the advantages", "neither", "log"),
    Metric("advantage_max", "advantage", "largest advantage of a batch", "higher", "log"),
    _share("advantage_ess", "effective sample size of |advantage| over trajectories, over n", "lower"),
    _correlation("advantage_success_correlation", "correlation of advantage and success over trajectories", "lower"),
    Metric("positive_logprob", "nat", "mean log-prob of tokens whose advantage is positive", "lower", matters=0.02),
    # Given text.
    _share("token_accuracy", "tokens of the labels that the model holds for likeliest", "lower"),
    # Preference pairs.
    Metric("chosen_reward", "reward", "mean (implicit) reward of the chosen answers", "lower"),
    Metric("rejected_reward", "reward", "mean (implicit) reward of the rejected answers", "neither"),
    Metric("pair_loss", "nat", "the part of the loss that is of the pair alone; ln 2 where both are alike", "higher"),
    Metric("reward_margin", "reward", "mean of chosen less rejected reward", "lower"),
    Metric("preference_accuracy", "share", "pairs whose chosen answer has the higher reward", "lower", matters=0.02,
           outcome=True),
    Metric("chosen_logprob", "nat", "mean log-prob of a chosen answer, summed over its tokens", "lower", matters=1.0),
    Metric("rejected_logprob", "nat", "mean log-prob of a rejected answer, summed over its tokens", "neither",
           matters=1.0),
    # Trainer against sampler, as a trainer reports it.
    Metric("mismatch_kl", "nat", "KL(sampler ‖ trainer), k3 where there is a choice", "higher", "log"),
    Metric("mismatch_chi2", "ratio", "χ² divergence of raw token weights; log-ratios clamped at ±20", "higher", "log"),
    Metric("logprob_difference", "nat", "mean absolute difference of sampler and trainer log-probs", "higher", "log"),
    Metric("logprob_difference_max", "nat", "largest absolute difference of sampler and trainer log-probs", "higher",
           "log"),
    Metric("probability_difference", "probability",
           "mean absolute difference of sampler's and trainer's probabilities of sampled tokens", "higher", "log"),
    _share("applied_ess", "effective sample size of the weights after truncation: hides the tail", "lower"),
    Metric("probability_correlation", "correlation",
           "Pearson correlation of sampler's and trainer's probabilities of sampled tokens", "lower", matters=0.02),
    _share("out_of_bounds_share", "importance weights beyond their limits"),
    _share("masked_share", "tokens or sequences that a correction takes out of the loss"),
    # Freshness.
    Metric("policy_lag", "updates", "mean updates between sampling and training", "higher", matters=0.5),
    Metric("policy_lag_max", "updates", "most updates between sampling and training", "higher", matters=0.5),
    Metric("version_span", "updates", "mean difference of newest and oldest policy version in a trajectory", "higher",
           matters=0.5),
    _share("unversioned_share", "trajectories that do not say which policy sampled them"),
    _share("weights_arrived",
           "by the canary: of what training has changed since its first check, what has reached the sampler at most",
           "lower", matters=0.05),
    _share("weights_behind",
           "by the canary: of the newest update, what the sampler lacks at least; 1 is a version behind", matters=0.05),
    _share("adapter_missing",
           "by the canary: of what the adapter does, what the sampler lacks at least; 1 is without it", matters=0.05),
    Metric("canary_difference", "nat",
           "p95 of the absolute difference of sampler and trainer log-probs of the canary's tokens", "higher", "log"),
    # Critic.
    Metric("critic_grad_norm", "norm", "gradient norm of the critic, before clipping", "higher", "log"),
    Metric("critic_learning_rate", "rate", "learning rate of the critic", "neither", "log"),
    _share("value_clip_fraction", "predicted values outside their clip range"),
    Metric("value_loss", "loss", "loss of the value function", "higher", "log"),
    _share("explained_variance", "1 − Var(return − value) / Var(return)", "lower"),
    Metric("value_mean", "reward", "mean predicted value", "neither"),
    Metric("value_std", "reward", "standard deviation of the predicted values", "neither", "log"),
    Metric("return_mean", "reward", "mean of the value function's targets", "neither"),
    Metric("return_std", "reward", "standard deviation of the value function's targets", "neither", "log"),
    Metric("return_max", "reward", "largest of the value function's targets", "neither", "log"),
    # Numbers and machines.
    Metric("loss_scale", "factor", "loss scale of mixed precision", "lower", "log"),
    Metric("skipped_steps", "updates", "optimiser steps that were skipped because of overflow", "higher", matters=0.5),
    Metric("throughput", "1/s", "tokens, samples or steps a second; compare only with itself", "lower", "log"),
    Metric("step_seconds", "s", "time of a training step, all parts", "higher", "log"),
    Metric("rollout_seconds", "s", "time of a step in sampling", "higher", "log"),
    Metric("weight_sync_seconds", "s", "time of a step in handing weights to the sampler", "higher", "log"),
    Metric("preemptions", "times", "mean times that the engine put a sequence off", "higher"),
    Metric("reward_seconds", "s", "time of a step in scoring", "higher", "log"),
    _share("wait_share", "part of a step in which the trainer waits for rollouts"),
    Metric("memory_reserved", "GiB", "accelerator memory that is reserved, at its peak", "higher", "log"),
    Metric("memory_limit", "GiB", "accelerator memory that there is", "neither", "log"),
    _share("utilisation", "share of time in which the accelerator computes", "lower"),
    Metric("rank_time_ratio", "ratio", "slowest rank's own seconds a step, over the median rank's", "higher", "log"),
)  # fmt: skip
"""Metrics that a trainer logs itself; read by the rules under these names, with any prefix."""

_TRAINING = {metric.name: metric for metric in TRAINING}


def training(name: str) -> Metric:
    """The trainer's metric with the canonical `name`, also of one member (`tool_calls:search`); else UnknownName."""
    metric = find(name)
    if metric is None:
        raise UnknownName("metric", name, tuple(_TRAINING))
    return metric


def find(name: str) -> Metric | None:
    """The trainer's metric with the canonical `name`, also of one member; None if there is none."""
    if name in _TRAINING:
        return _TRAINING[name]
    family, _, member = name.partition(":")
    metric = _TRAINING.get(family)
    return metric if metric and metric.per and member else None
