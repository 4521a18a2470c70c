"""Canary: fixed sequences that trainer and sampler score every few syncs, to see whether new weights arrive.

Training moves the trainer's log-probabilities of a fixed token by x. Those of a sampler with the same weights move by y
= x. So the least-squares slope of y over x is 1 if all weights have arrived. It is 0 if the sampler still has the first
ones, and between if a part is missing. The same slope over the newest update says whether the sampler is a version
behind. Over the effect of an adapter it says whether that is applied. Kernels and precision make y noisy. So of each
slope, the end of its interval that is nearer to health counts. Until the first slope has a standard error below
`RESOLVED`, the answer is unknown.
"""

import random
import sys
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import numpy as np

from tracker_diag.canary.scores import Score, Sequences
from tracker_diag.errors import BatchError, DiagError
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.stats.arrays import Float64Array

FEWEST = 64
"""Tokens that a slope needs, without the first of each sequence."""
RESOLVED = 0.1
"""Standard error of the first slope above which it says nothing: a choice, as is the next."""
ERRORS = 4.0
"""Standard errors between a slope and what is reported of it."""


def _slope(x: Float64Array, y: Float64Array) -> tuple[float, float]:
    """Least squares through the origin of `y` (n,) over `x` (n,): the slope and its standard error, inf without `x`."""
    square = float(x @ x)
    if not square:
        return 0.0, np.inf
    value = float(x @ y) / square
    rest = y - value * x
    return value, float(np.sqrt(rest @ rest / (len(x) - 1) / square))


class Canary:
    """Watches whether new weights reach the sampler.

    Call `monitor.synced()` after each sync of weights, before the next update, on every rank. TRL's integration does
    so. Results are the series `diag/canary/*` of `monitor`, which rule FRE007 reads. Nothing is generated, and no
    random state of Python, NumPy or torch is moved.

    Args:
        monitor: `run.diag` of `td.wrap`, or what an integration's `attach` returns.
        sequences: token ids of each sequence, the same throughout; 65 tokens at least, and some hundred are better.
        trainer: scores with the weights that the trainer has now; see `scores_of_model`.
        sampler: scores with what generates the rollouts; see `scores_of_vllm`, `scores_of_sglang`, `scores_of_model`.
        base: scores with the trainer's weights without the adapter, where one is trained.
        every: syncs from one check to the next.
        lag: syncs that the sampler is behind on purpose, as in asynchronous training.
        seconds: that the sampler may take for a check. Where it takes longer, checks come half as often from then on.

    Raises:
        DiagError: too few tokens, or numbers below their least.
    """

    def __init__(
        self,
        monitor: Monitor,
        sequences: Sequences,
        *,
        trainer: Score,
        sampler: Score,
        base: Score | None = None,
        every: int = 10,
        lag: int = 0,
        seconds: float = 5.0,
    ) -> None:
        self._sequences = tuple(tuple(int(token) for token in ids) for ids in sequences)
        tokens = sum(max(len(ids) - 1, 0) for ids in self._sequences)
        if tokens < FEWEST:
            raise DiagError(f"sequences: {tokens} tokens to score given, expected at least {FEWEST}; take more")
        if every < 1 or lag < 0 or seconds <= 0:
            raise DiagError(
                f"every={every}, lag={lag}, seconds={seconds} given; expected every of at least 1, lag of at least "
                "0 and seconds above 0"
            )
        monitor.on_sync = self.check
        self._monitor, self._trainer, self._sampler, self._base = monitor, trainer, sampler, base
        self._every, self._lag, self._seconds = every, lag, seconds
        self._stretch = 1
        self._syncs = 0
        self._trained: deque[Float64Array] = deque(maxlen=lag + 2)
        """The trainer's scores of the last syncs, as far as they were taken."""
        self._first: tuple[Float64Array, Float64Array] | None = None
        """Scores of trainer and sampler at the first check."""

    def check(self) -> None:
        """Score if it is time to; `Monitor.synced` calls it.

        Nothing is raised: a failure is counted in `diag/health/canary_errors`. What is measured belongs to the step of
        the monitor's next `log`.
        """
        sync, self._syncs = self._syncs, self._syncs + 1
        until = -sync % self._every  # syncs before the next check
        with self._monitor.guard("canary_errors"), _own_random_state():
            # The trainer's scores follow the count alone: on several ranks they are one forward pass of all.
            if until <= self._lag + 1:
                self._trained.append(self._scored(self._trainer))
            if until:
                return
            base = self._scored(self._base) if self._base else None
            if sync % (self._every * self._stretch) == 0:
                sampled = self._timed()
                self._monitor.measure(self._compared(sampled, base))

    def _timed(self) -> Float64Array:
        """The sampler's scores; of one that is slow, checks come half as often. The first time may hold its start."""
        begun = time.monotonic()
        try:
            return self._scored(self._sampler)
        finally:
            if self._first is not None and time.monotonic() - begun > self._seconds:
                self._stretch *= 2
                self._monitor.health["canary_late"] += 1

    def _scored(self, score: Score) -> Float64Array:
        """(n,) log-probabilities of all tokens."""
        answers = [np.asarray(values, np.float64).reshape(-1) for values in score(self._sequences)]
        lengths, expected = [len(values) for values in answers], [len(ids) - 1 for ids in self._sequences]
        if lengths != expected:
            raise BatchError("canary", f"{sum(lengths)} scores", f"{sum(expected)}; do both have one tokenizer?")
        scores = np.concatenate(answers)
        if not np.isfinite(scores).all() or scores.max() > 1e-3:
            raise BatchError("canary", "scores that are NaN, infinite or above 0", "log-probabilities in nats")
        return scores

    def _compared(self, sampled: Float64Array, base: Float64Array | None) -> dict[str, float]:
        """The series of one check, by canonical name."""
        at = max(len(self._trained) - 1 - self._lag, 0)
        now = self._trained[at]
        if self._first is None:
            self._first = now, sampled
        at_first, sampled_at_first = self._first
        moved, followed = now - at_first, sampled - sampled_at_first
        series = {"canary_difference": float(np.quantile(np.abs(sampled - now), 0.95))}
        arrived, error = _slope(moved, followed)
        if error < RESOLVED:
            series["weights_arrived"] = arrived + ERRORS * error
        missing = {"weights_behind": _slope(now - self._trained[at - 1], moved - followed)} if at else {}
        if base is not None:
            missing["adapter_missing"] = _slope(base - now, sampled - now)
        lowest = {name: value - ERRORS * error for name, (value, error) in missing.items() if np.isfinite(error)}
        return series | {name: max(value, -1.0) for name, value in lowest.items()}


@contextmanager
def _own_random_state() -> Generator[None]:
    """Whatever is drawn inside moves no generator that training draws from."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the global one, if somebody uses it
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = [torch.cuda.current_device()] if torch and cuda else []
    with torch.random.fork_rng(devices) if torch else nullcontext():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
