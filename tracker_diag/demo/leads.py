"""Lead times: when the same alarm would have gone off on the signals that people usually watch."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from tracker_diag.detect.cusum import BlockCusum
from tracker_diag.metrics.registry import PREFIX, Metric, training
from tracker_diag.metrics.statistics import statistic as stat

WINDOW = 8
"""Steps that a trainer's metric is averaged over, as the statistics are: equal noise for all signals."""

SIGNALS: dict[str, tuple[Metric, str]] = {
    "reference/post_tool/p95": (stat("p95"), "rising"),
    "reference/text_only/p95": (stat("p95"), "rising"),
    "reference/all/p95": (stat("p95"), "rising"),
    "policy/post_tool/p95": (stat("p95"), "rising"),
    "policy/all/p95": (stat("p95"), "rising"),
    "kl": (training("kl"), "rising"),
    "clip_fraction": (training("clip_fraction"), "rising"),
    "entropy": (training("entropy"), "falling"),
    "grad_norm": (training("grad_norm"), "rising"),
    "loss": (training("loss"), "rising"),
    "reward": (training("reward"), "falling"),
}
"""What is compared, with the direction that counts as worse. Each is judged on its own series alone."""


@dataclass(frozen=True)
class Lead:
    """When the alarm goes off on a signal; if it does not, `note` says why not."""

    step: int | None
    note: Literal["", "never", "no value", "no baseline"]


def leads(rows: Iterable[Mapping[str, float]]) -> dict[str, Lead]:
    """The step at which growth first holds on each signal of a metrics file's `rows`."""
    detectors = {
        name: BlockCusum(
            scale=metric.scale, direction="falling" if way == "falling" else "rising", matters=metric.matters
        )
        for name, (metric, way) in SIGNALS.items()
    }
    recent: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in SIGNALS}
    fired: dict[str, int | None] = dict.fromkeys(SIGNALS)
    for row in rows:
        step = int(row["step"])
        for name, detector in detectors.items():
            value = row.get(PREFIX + name) if "/" in name else row.get(name)
            if value is None:
                continue
            if "/" not in name:
                recent[name].append(value)
                value = fmean(recent[name])
            detector.update(step, value)
            if detector.holds and fired[name] is None:
                fired[name] = step
    return {name: _lead(fired[name], detector) for name, detector in detectors.items()}


def _lead(step: int | None, detector: BlockCusum) -> Lead:
    if step is not None:
        return Lead(step, "")
    if detector.seen == 0:
        return Lead(None, "no value")
    return Lead(None, "no baseline" if detector.holds is None else "never")
