"""What a user hands over to `preflight`; each check takes what it needs of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict


class Given(TypedDict, total=False):
    """All is optional: a check for which something is missing says what to give."""

    env: Any
    """An environment with `reset` and `step` as Gymnasium or OpenEnv has them, or a function or class that makes
    one."""
    policy: Callable[[Any], Any]
    """A weak expert: from an observation to an action."""
    random_policy: Callable[[Any], Any]
    """Acts at random where the environment has no `action_space`: from an observation to an action."""
    rewards: Any
    """(n,) rewards of the untrained policy. Without them the returns of the episodes in `env` are taken."""
    groups: Sequence[object]
    """n ids: the prompt of each sample."""
    success: Any
    """(n,) 1 where the task was solved, else 0."""
    rewards_before: Any
    """(n,) rewards of the same samples by the definition that `rewards` is to replace."""
    advantage: Callable[[Any, Any], Any]
    """From rewards (n,) and group ids (n,) to advantages (n,), as the trainer makes them."""
    overfit: Any
    """(n,) loss of one and the same batch, before each of n updates on it alone; above 0."""
    evaluate: Callable[[], Any]
    """Evaluates one checkpoint, the same at each call, and returns its score."""
    returns: Any
    """(n,) returns of one rollout."""
    values: Any
    """(n,) the critic's values of the same steps, after it was trained on this rollout alone."""
    features: Any
    """(n, d) what the critic sees."""
    batch: Mapping[str, Any]
    """One real batch: what `Monitor.observe` takes, of shape (B, T), or (N,) with `sequence_ids`; and with it
    `loss_mask` (what is trained on), `attention_mask` (0 on padding), `token_ids`, and `logprobs_again` (a second pass
    of the trainer over the same tokens, with another batch size)."""
    sampled_ids: Sequence[Sequence[int]]
    """Token ids of each sequence, as the engine returned them."""
    trained_ids: Sequence[Sequence[int]]
    """The same as the loss gets them."""
    tokenizer: Any
    """With a chat template, and `messages`: who wrote a token, where the batch has no masks for it."""
    messages: Sequence[Any]
    """The conversation of each sequence of the batch: a list of messages, or a mapping with `messages` and `tools`."""
    pad_id: int
    eos_id: int
    """The token that ends a response."""
    preferences: Sequence[Mapping[str, Any]]
    """Mappings with `prompt`, `chosen`, `rejected`, and `chosen_score`, `rejected_score` if they are known."""
    perturb: Callable[[], Any]
    """Changes the trainer's weights and syncs them to the sampler; may return a function that takes it back."""
    sample: Callable[[], Any]
    """Log-probabilities of fixed tokens by the sampler, or greedy text."""
    config: Mapping[str, Any]
    """The run's settings, nested or by dotted name, those of the evaluation among them."""
    framework: str
    """trl, verl, openrlhf or sb3, if the settings do not show it."""
    tool: Callable[..., Any]
    """A tool, or another function that is called often, such as a verifier; it may be asynchronous."""
    tool_arguments: Sequence[Any]
    """What to call it with, in turn: mappings of names, tuples, or single values."""
    memory: Mapping[str, Any]
    """What a device is to hold: the fields of `preflight.memory.Plan`."""
