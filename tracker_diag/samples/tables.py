"""The table to read: the sequences with the highest and the lowest reward, and some that were drawn at random."""

import re
from collections.abc import Sequence

import numpy as np

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import SAMPLES, Cell, Histogram, Table
from tracker_diag.samples.rewards import known
from tracker_diag.samples.samples import Samples

EACH = 4
"""Sequences of each kind."""

LONGEST = 2000
"""Characters of a text that are shown: its first and its last half of them."""

BINS = 32

NAME = f"{PREFIX}samples"
SHOWN = (
    "reward", "advantage", "success", "correct", "verifier", "judge", "human", "length", "truncated", "turns", "calls",
    "refuses", "claims", "repeats",
)  # fmt: skip
"""Columns of the table next to the parts of the reward, where they are known."""


def samples_table(samples: Samples, step: int, suspicious: Sequence[int] = ()) -> Table:
    """Up to twelve sequences, none twice, and those that are `suspicious`; without rewards the random ones alone.

    Which ones are random follows from the step, so that a resumed run shows the same.
    """
    reward = samples["reward"]
    scored = np.flatnonzero(np.isfinite(reward))
    order = scored[np.argsort(reward[scored], kind="stable")]
    lowest = order[: min(EACH, len(order) // 2)]
    highest = order[::-1][: min(EACH, len(order) - len(lowest))]
    rest = np.setdiff1d(np.arange(samples.n), [*highest, *lowest, *suspicious])
    chosen = np.sort(np.random.default_rng(step).permutation(rest)[:EACH])
    of_kind = {"suspicious": suspicious, "highest": highest, "lowest": lowest, "random": chosen}
    kinds = [(kind, int(i)) for kind, places in of_kind.items() for i in places]
    parts = [name for name in SHOWN if name in samples.columns]
    components = samples.components
    with_env = any(env is not None for env, _ in samples.shown)
    with_text = any(text is not None for _, text in samples.shown)
    columns = ("step", "kind", "sequence", *parts, *components, *["env"] * with_env, *["text"] * with_text)
    rows: list[tuple[Cell, ...]] = []
    for kind, i in kinds:
        env, text = samples.shown[i]
        cells: list[Cell] = [step, kind, i, *(_number(samples[name][i]) for name in parts)]
        cells += [_number(values[i]) for values in components.values()]
        rows.append((*cells, *[env] * with_env, *[_text(text)] * with_text))
    return Table(NAME, columns, tuple(rows))


def reward_histogram(samples: Samples) -> Histogram | None:
    """The rewards of the step in up to 32 bins; None where there are none. Edges are those of this step."""
    rewards = known(samples["reward"])
    if not len(rewards):
        return None
    low, high = float(rewards.min()), float(rewards.max())
    if not (high > low and np.isfinite(high - low)):
        half = max(0.5, abs(low) * 1e-6)
        low, high = low - half, low + half
    counts, edges = np.histogram(rewards, bins=BINS, range=(low, high))
    return Histogram(f"{NAME}/reward/hist", SAMPLES, "reward", counts, edges, np.zeros_like(counts))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _text(given: object) -> str | None:
    """As it is shown: cut in the middle, and without control characters."""
    if given is None:
        return None
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} […] {text[-LONGEST // 2 :]}"
    return re.sub(r"[^\S\n\t ]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text)
