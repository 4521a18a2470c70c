"""A metric or a log-ratio that is NaN or infinite."""

import re
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal

OF_UPDATE = frozenset(
    {"loss", "losses", "grad", "gradient", "gradients", "gradnorm", "param", "params", "parameter", "weight", "weights",
     "ratio", "logprob", "logprobs", "logp", "logps", "logits", "kl", "entropy", "advantage", "advantages", "reward",
     "return", "returns", "lr", "nonfinite"}
)  # fmt: skip
"""Words in the names of metrics that reach the parameters. The plural "rewards" names single reward functions.
`nonfinite` is our own count of log-ratios, in a log that is read again."""
OF_GRADIENT = frozenset({"grad", "gradient", "gradients", "gradnorm"})
"""The words of the gradient among them."""


@dataclass(config=CLOSED, kw_only=True)
class NonFinite(Signal):
    """A metric is NaN or infinite, or the log-ratio of a model token is.

    `update`: metrics that reach the parameters, such as loss, gradient, log-ratios and reward, by the words of their
    names. `gradient`: only the gradient. `beside_gradient`: `update` without the gradient. `rest`: all others, such as
    the mean of a reward function that was not used at this step.
    """

    kept: ClassVar[tuple[str, ...]] = ("_step", "_seen")

    kind: Literal["non_finite"] = "non_finite"
    which: Literal["any", "update", "gradient", "beside_gradient", "rest"] = "any"
    after: int = Field(default=0, ge=0)
    """Steps that must come before."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._bad: tuple[str, ...] = ()
        self._step, self._seen = -1, 0

    def update(self, observed: Observed) -> None:
        if observed.step != self._step:
            self._step, self._seen = observed.step, self._seen + 1
        self._bad = tuple(name for name in observed.non_finite if self._is_asked(name))
        self.holds = bool(self._bad) and self._seen > self.after if self._bad or observed.checked else None

    def reading(self) -> Reading:
        if self._bad:
            return Reading("", self._bad[0], self.holds, n=len(self._bad), onset=self._step if self.holds else None)
        if self.holds is None:
            return Reading("", "any", None, unknown=reason(Why.UNCHECKED))
        return Reading("", "any", False, n=0)

    def _is_asked(self, name: str) -> bool:
        words = set(re.split(r"[^a-z]+", name.lower()))
        update, gradient = (not words.isdisjoint(known) for known in (OF_UPDATE, OF_GRADIENT))
        asked = {"update": update, "gradient": gradient, "beside_gradient": update and not gradient, "rest": not update}
        return asked.get(self.which, True)
