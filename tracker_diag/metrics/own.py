"""The names that this package logs itself: its health and state, and what it measures where a trainer does not."""

from tracker_diag.metrics.registry import PREFIX, Metric

SAMPLES, CANARY = f"{PREFIX}samples/", f"{PREFIX}canary/"
"""What we measure that a trainer may log itself, each under its canonical name."""

HEALTH = (
    Metric("rejected_batches", "batches", "observations refused after the first: see the warning in the log", "higher"),
    Metric("rejected_samples", "calls", "calls of `samples` refused: see the log", "higher"),
    Metric("canary_errors", "checks", "checks of the canary that failed: see the log; training continued", "higher"),
    Metric("canary_late", "checks", "checks of the canary that took longer than their time", "higher"),
    Metric("late_steps", "steps", "observations or metrics refused because their step went backwards", "higher"),
    Metric("interrupted_steps", "steps", "steps that a signal, such as Ctrl-C, interrupted", "higher"),
    Metric("after_close", "calls", "calls that came after the diagnostics had ended, and were left out", "higher"),
    Metric("nonfinite_tokens", "tokens", "model tokens with a NaN or infinite log-ratio, in all pairs", "higher"),
    Metric("nonfinite_metrics", "values", "NaN or infinite values among the metrics that you log", "higher"),
    Metric("nonfinite_samples", "columns", "columns of rewards or advantages given with NaN or inf in them", "higher"),
    Metric("rank_errors", "errors", "parts of a rank that could not be sent; training continued", "higher"),
    Metric("lost_rank_steps", "steps", "steps of other ranks that were overwritten before they were read", "higher"),
    Metric("rank_time_ratio", "ratio", "slowest rank's own seconds over the median rank's, as they say", "higher"),
    Metric("internal_errors", "errors", "failures inside the diagnostics; training continued", "higher"),
    Metric("masked_sequences", "sequences", "completions that the trainer took out of the loss", "higher"),
    Metric("unscored_tokens", "tokens", "model tokens that the rollout engine gave no log-probability for", "higher"),
    Metric("integration_errors", "errors", "failures in reading a trainer; training continued", "higher"),
    Metric("dropped_histograms", "records", "histograms left out since a tracker is slower than the run", "higher"),
    Metric("dropped_steps", "steps", "steps left out since neither disk nor tracker took them", "higher"),
    Metric("spool_errors", "errors", "entries that the disk did not take; they were kept in memory", "higher"),
    Metric("sync_errors", "errors", "syncs of a journal that failed; a power cut may then cost its lines", "higher"),
    Metric("damaged_lines", "lines", "lines of a journal that were damaged on disk, and left out", "higher"),
    Metric("decode_errors", "errors", "sequences whose text the decoder could not make; shown without it", "higher"),
    Metric("checkpoint_errors", "errors", "checkpoints that could not be registered: see the log", "higher"),
    Metric("undelivered", "trackers", "trackers that did not get all at the end; a warning says where it is", "higher"),
    Metric("tracker_errors", "errors", "failed calls into a tracker; training continued", "higher"),
)
"""Health of the diagnostics themselves, logged as `diag/health/<name>` from its first count on."""

SAMPLED: dict[str, str] = {
    "reward": "reward", "reward_std": "reward", "reward_min": "reward", "reward_max": "reward", "reward_p50": "reward",
    "reward_p99": "reward", "reward_skew": "reward", "reward_zero_share": "reward", "reward_max_share": "reward",
    "reward_top_share": "reward", "reward_component": "components", "reward_component_std": "components",
    "component_variance_share": "components", "dead_component_share": "components", "format_reward": "components",
    "env_reward": "env and reward", "env_reward_best": "env and reward",
    "scorer_error_share": "scorer_error", "success_rate": "success or correct", "claimed_success": "text",
    "verified_success": "success", "human_score": "human", "judge_score": "judge",
    "verifier_score": "verifier, correct, or a component called so",
    "judge_style_correlation": "judge with length or text",
    "response_length": "length", "response_length_max": "length", "truncated_share": "truncated",
    "retokenised_share": "retokenised",
    "response_length_right": "length and success or correct", "response_length_wrong": "length and success or correct",
    "turns": "turns", "repeat_ratio": "text or tokens", "refusal_rate": "text", "diversity": "calls, text or tokens",
    "tool_calls": "calls", "tool_failure_rate": "calls", "tool_share": "calls", "repeated_call_share": "calls",
    "tool_entropy": "calls", "recovery_rate": "calls",
    "tokens_per_success": "length and success or correct",
    "essential_tool_share": "calls", "malformed_call_rate": "calls",
    "void_turn_rate": "void_turns, or calls and text", "tool_seconds": "calls", "tool_timeouts": "calls",
    "tool_result_tokens": "calls", "tool_truncated_share": "calls",
    "reward_after_tool_failure": "calls and reward", "reward_after_tool_success": "calls and reward",
    "zero_std_share": "group and reward", "effective_groups": "group and reward",
    "group_reward_std": "group and reward", "advantage_std": "advantage", "advantage_max": "advantage",
    "advantage_top_share": "advantage", "advantage_ess": "advantage",
    "advantage_success_correlation": "advantage and success or correct",
    "positive_logprob": "advantage and logprob", "version_span": "policy_version",
    "unversioned_share": "policy_version",
}  # fmt: skip
"""What `samples` counts where the trainer does not log it, as `diag/samples/<name>`, and of what columns."""

BY_CANARY = ("weights_arrived", "weights_behind", "adapter_missing", "canary_difference")
"""What a canary measures, as `diag/canary/<name>`."""
BY_INTEGRATION = {"reward_scale": "SB3", "reward_agreement": "SB3", "episode_overdue": "SB3"}
"""What an integration measures, as `diag/samples/<name>`, and of which framework."""


def key_of(measured: str) -> str:
    """The key of what a canary or an integration has measured, by its canonical name."""
    return f"{CANARY if measured in BY_CANARY else SAMPLES}{measured}"


OWN = (
    Metric("step", "step", "the training step that the diagnostics of a row belong to", "neither"),
    Metric("rule/<ID>", "state", "−1 unknown, 0 healthy, 1 pending, 2 firing; once it has been pending", "higher"),
)
