"""Lead times: when the same alarm would have gone off on the signals that people usually watch."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from tracker_diag.detect.cusum import BlockCusum
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.statistics import declared

WINDOW = 8
"""Steps that a trainer's metric is averaged over, as the statistics are: equal noise for all signals."""

SIGNALS: dict[str, Literal["rising", "falling"]] = {
    "reference/post_tool/p95": "rising",
    "reference/text_only/p95": "rising",
    "reference/all/p95": "rising",
    "policy/post_tool/p95": "rising",
    "policy/all/p95": "rising",
    "kl": "rising",
    "clip_fraction": "rising",
    "entropy": "falling",
    "grad_norm": "rising",
    "loss": "rising",
    "reward": "falling",
}
"""What is compared, with the direction that counts as worse. Each is judged on its own series alone."""


@dataclass(frozen=True)
class Lead:
    """When the alarm goes off on a signal; if it does not, `note` says why not."""

    step: int | None
    note: Literal["", "never", "no value", "no baseline"]


def leads(rows: Iterable[Mapping[str, float]]) -> dict[str, Lead]:
    """The step at which growth first holds on each signal of a metrics file's `rows`."""
    kept = list(rows)
    return {name: _lead(name, [row for row in kept if _key(name) in row]) for name in SIGNALS}


def _key(name: str) -> str:
    return PREFIX + name if "/" in name else name


def _lead(name: str, rows: Iterable[Mapping[str, float]]) -> Lead:
    metric = declared(name)
    detector = BlockCusum(scale=metric.scale, direction=SIGNALS[name], matters=metric.matters)
    recent = deque[float](maxlen=1 if "/" in name else WINDOW)
    for row in rows:
        recent.append(row[_key(name)])
        detector.update(int(row["step"]), fmean(recent))
        if detector.holds:
            return Lead(int(row["step"]), "")
    return Lead(None, "no value" if detector.seen == 0 else "no baseline" if detector.holds is None else "never")
