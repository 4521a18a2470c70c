"""GRPO's tensors of one micro-batch, as `Monitor.observe` takes them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import torch

from tracker_diag import Monitor
from tracker_diag.attach.kit import place_in_job
from tracker_diag.hooks import Seen
from tracker_diag.metrics.series import Pair
from tracker_diag_trl.rows import Rows

Hooked: TypeAlias = Mapping[str, tuple[Sequence[str], Seen]]
"""By the name of a function of the trainer: the arguments that it must take, and what is called after it."""

HINTS: Mapping[Pair, str] = {
    "policy": "on-policy by construction, set num_iterations above 1",
    "mismatch": "set use_vllm",
    "reference": "set beta above 0",
}
"""What to set so that a pair has a signal."""


class GrpoTensors:
    """What the two hooks keep between them, and when each ratio pair is reported.

    A generation is trained on in several steps, the same micro-batches `num_iterations` times. Until the first update
    after it, the policy is still the one that is kept as the old one. Its ratio is then 1 by construction, and is left
    out. Otherwise every quantile would depend on the number of such steps in the window. The sampler's ratio is the
    same each time, so it is reported the first time.
    """

    generates = "_generate_and_score_completions"
    """The trainer's function that gives the rows of a generation."""
    hints: ClassVar[Mapping[Pair, str]] = HINTS
    """As `HINTS`, as far as the trainer has these settings."""

    def __init__(self, trainer: Any, monitor: Monitor) -> None:
        args = trainer.args
        self._trainer, self._monitor = trainer, monitor
        self.rows = Rows(trainer)
        self._steps, self._every = self._schedule(args)
        self.stale = int(args.gradient_accumulation_steps) % self._every != 0
        """Whether some of a generation is trained on after an update."""
        self.sampled_elsewhere = bool(getattr(trainer, "use_vllm", False)) or (
            getattr(trainer, "rollout_func", None) is not None
        )
        self.has_reference = self._has_reference(args)
        self.ratio_expected = self.stale or self.has_reference or self.sampled_elsewhere
        self._masks = bool(getattr(trainer, "mask_truncated_completions", False))
        self._marks = torch.tensor(_added_tokens(trainer.processing_class))
        self._logprobs: Any = None
        self._generated_at = 0
        self._shown_once = False
        self._left_out: dict[str, Any] = {}

    def _schedule(self, args: Any) -> tuple[int, int]:
        """Micro-steps that a generation is split into, and those until the next one."""
        steps = int(args.steps_per_generation)
        return steps, steps * int(args.num_iterations)

    def _has_reference(self, args: Any) -> bool:
        return bool(getattr(args, "beta", 1.0) != 0)  # without the setting it is looked for

    @property
    def blind(self) -> dict[Pair, str | None]:
        """The pairs that will not come, each with what would change that."""
        comes: dict[Pair, bool] = {
            "policy": self.stale, "mismatch": self.sampled_elsewhere, "reference": self.has_reference
        }  # fmt: skip
        return {pair: self.hints.get(pair) for pair, there in comes.items() if not there}

    @property
    def hooked(self) -> Hooked:
        """The trainer's functions that are looked at."""
        return {
            "_get_per_token_logps_and_entropies": (("model",), self.log_probabilities),
            "_compute_loss": (("model", "inputs"), self.loss),
        }

    def owner(self, name: str) -> Any:
        """What has the function `name` of `hooked`."""
        return self._trainer

    def log_probabilities(self, result: Any, given: Mapping[str, Any]) -> None:
        """After `_get_per_token_logps_and_entropies`: keep those of the policy that is being trained."""
        if torch.is_grad_enabled():  # else they are the old policy's or the reference's, or it is an evaluation
            self._logprobs = result[0].detach()  # of two values or three, depending on the version

    def loss(self, result: Any, given: Mapping[str, Any]) -> None:
        """After `_compute_loss`: tell the monitor what is known of the tokens of this micro-batch."""
        logprobs, self._logprobs = self._logprobs, None
        if logprobs is None:
            return
        inputs, now = given["inputs"], self._trainer.state.global_step
        # Micro-steps since the generation; a trainer that generates for each has no count of them.
        since = self._trainer._step % self._every if self._every > 1 else 0  # noqa: SLF001
        if since == 0:
            self._generated_at = now
        lag = now - self._generated_at
        shown = self._tokens(inputs)
        first = since < self._steps
        if self._masks:
            if first:
                self._count("masked_sequences", ~shown["response_mask"].any(1))
            # Nothing is left to tell; but several processes come together by what each one tells.
            if not shown["model_mask"].any() and place_in_job()[1] == 1:
                return
        if first:
            self._tell_mismatch(logprobs, inputs, shown)
        old, ref = inputs.get("old_per_token_logps"), inputs.get("ref_per_token_logps")
        if self.stale and lag == 0:
            old = None
        elif not self.stale and old is None and not self._shown_once:
            old = logprobs.detach()  # once, as TRL itself does, so that rules can say why it is no signal
        pairs = {name: values for name, values in (("old_logprobs", old), ("ref_logprobs", ref)) if values is not None}
        if pairs:
            self._monitor.observe(logprobs=logprobs, **pairs, **shown)
            self._shown_once = True

    def left_out(self) -> dict[str, int]:
        """How many sequences and tokens were not seen since the last time of asking, by kind."""
        counts, self._left_out = self._left_out, {}
        return {kind: n for kind, counted in counts.items() if (n := int(counted))}

    def _tokens(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Masks and labels of the tokens. The tool mask is padded with 1, and may be absent."""
        response = inputs["completion_mask"].bool()
        ids = inputs["completion_ids"]
        if self._marks.device != ids.device:
            self._marks = self._marks.to(ids.device)
        model = response & inputs["tool_mask"].bool() if "tool_mask" in inputs else response
        return {
            "response_mask": response,
            "advantages": inputs.get("advantages"),
            "control": torch.isin(ids, self._marks),
            "token_ids": ids,
        } | self.rows.about(inputs, model)

    def _tell_mismatch(self, logprobs: Any, inputs: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
        rollout = inputs.get("sampling_per_token_logps")
        if rollout is None:
            return
        # NaN is TRL's mark for what vLLM could not score. Nothing is known of these tokens, which is no fault of
        # numerics. A ratio of 1 would understate the mismatch.
        scored = ~rollout.isnan()
        self._count("unscored_tokens", shown["model_mask"] & ~scored)
        masks = {name: shown[name] & scored for name in ("response_mask", "model_mask")}
        old = inputs.get("old_per_token_logps")
        weights = inputs.get("importance_sampling_ratio")  # a value per sequence is not one of any token's
        applied = {} if weights is None or weights.shape != rollout.shape else {"applied_weights": weights}
        self._monitor.observe(
            old_logprobs=logprobs if old is None else old,  # none is kept if there is no update between the two
            rollout_logprobs=rollout,
            **{**shown, **masks, **applied},
        )

    def _count(self, kind: str, flags: Any) -> None:
        """Add how many of `flags` are set, where they are: nothing waits for a device before the next log."""
        self._left_out[kind] = self._left_out.get(kind, 0) + flags.sum()


def _added_tokens(processing_class: Any) -> list[int]:
    """Ids of the tokens outside the vocabulary: chat marks, tool-call marks; no ids if they are unknown."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)  # that of a processor, for images too
    return sorted(getattr(tokenizer, "added_tokens_decoder", {}))
