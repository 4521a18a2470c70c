"""Worst: the sequences of a batch with most of a slice's tail, each as a window of tokens around its largest.

A sequence is ranked by its *tail mass*: the sum of what its tokens of the slice exceed the p99 of the baseline by, in
nats. One token that is far off counts for as much as many that are a little off. What is usual counts for nothing.
Ranked by its largest token, a sequence would be chosen by one outlier while another carries the growth. Ranked by the
number of tokens beyond p99, it would be chosen by its length.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracker_diag.metrics.series import ALL, NAMED_ROWS, PAIRS, Dimension, Pair
from tracker_diag.records import WorstSequence
from tracker_diag.stats.arrays import Array, Float64Array, float64, namespace, on_device
from tracker_diag.stats.histogram import HIGHEST, QUANTILE_VALUES, quantiles
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names

MOST = 8
"""Sequences of one slice and step."""
BEFORE, WIDTH = 384, 512
"""Tokens that are kept before the largest, and in all: what led to it is before."""

CAP = 2.0**HIGHEST
"""Nats from which on a log-ratio counts no more, as in the sketch."""
BROKEN = 1e6
"""What NaN and infinity are ranked as."""

LARGEST_ID = 2.0**53
"""What a larger token id is kept as; no vocabulary has any."""

KNOWN, MODEL, TOOL, IN_SLICE = 1, 2, 4, 8
"""Bits of a token's kind: inside its sequence, sampled by the policy, a tool's or the environment's, of the slice."""

HEAD = ("mass", "batch", "sequence", "length", "first", "position", "tool")
"""The first columns of a row; then come `WIDTH` of both log-probabilities, the kinds, and the ids, −1 for none."""
FIELDS = 4


class Place(NamedTuple):
    """One slice of one pair."""

    pair: Pair
    slice: str


@dataclass(frozen=True)
class Found:
    """The worst sequences of one place at one step, on the host."""

    rows: Float64Array
    """(n, len(HEAD) + FIELDS × WIDTH), n ≤ `MOST`, the largest tail mass first."""
    limit: float
    """Nats of |log-ratio| beyond which the tail begins."""
    tools: tuple[str, ...]
    """(n,) the tool that answered last before the largest token; empty where none is known."""
    step: int = 0
    window: float = 0.0
    """Tail mass of the slice's window at that step."""

    @property
    def mass(self) -> float:
        return float(self.rows[:, 0].sum())

    def sequences(self, make: Callable[..., WorstSequence]) -> Iterator[WorstSequence]:
        """Each row as a value that can be shown; `make` is WorstSequence with the fields that the caller knows."""
        for row, tool in zip(self.rows, self.tools, strict=True):
            mass, *whole = row[: len(HEAD)]
            new, old, kind, ids = row[len(HEAD) :].reshape(FIELDS, WIDTH)
            kinds = kind.astype(np.int64)
            known = kinds & KNOWN > 0
            ids = np.clip(ids[known], -1, LARGEST_ID).astype(np.int64)
            yield make(
                **dict(zip(HEAD[1:-1], map(int, whole), strict=False)),
                tool=tool,
                limit=self.limit,
                share=min(float(mass) / self.window, 1.0) if mass < BROKEN / 2 and self.window > 0 else None,
                logprobs=np.stack([new[known], old[known]]),
                sampled=(kinds & MODEL > 0)[known],
                tool_output=(kinds & TOOL > 0)[known],
                in_slice=(kinds & IN_SLICE > 0)[known],
                token_ids=ids if (ids >= 0).any() else None,
            )


class WorstTokens:
    """Finds the worst sequences of the places that are asked for; nothing is done, and nothing costs, for others."""

    def __init__(self) -> None:
        self.limits: Mapping[Place, float] = {}
        """The places to look at, each with the |log-ratio| beyond which its tail begins."""
        self._rows: dict[Place, Array] = {}
        self._asked: dict[Place, float] = {}
        """The limit that each of `_rows` was found with."""
        self._batches = 0
        """Observations since they were last taken."""
        self.given_ids = False
        """Whether the last batch that was looked at had token ids."""

    def observe(self, batch: TokenBatch, labels: Mapping[Dimension, Array], names: Names) -> None:
        """Look at the sequences of a batch. On a device nothing waits for it."""
        number, self._batches = self._batches, self._batches + 1
        asked = {place.pair for place in self.limits}
        sizes = {pair: _sizes(batch, pair) for pair in batch.pairs if pair in asked}
        for place, limit in self.limits.items():
            member = _member(place, batch, labels, names) if place.pair in sizes else None
            if member is not None:
                self.given_ids = batch.token_ids is not None
                excess = sizes[place.pair] * member
                excess -= limit  # in place: fresh arrays cost more in page faults than in arithmetic
                mass = batch.by_sequence(namespace(excess).clip(excess, 0.0, None, out=excess))
                chosen = _top(mass, MOST)
                start, end = _ends(batch, chosen)
                at = _largest_token(batch, sizes[place.pair], member, (chosen, start, end))
                of_tool = labels["tool"][at] if "tool" in labels else 0 * at + NAMED_ROWS
                head = {"mass": mass[chosen], "batch": 0 * at + number, "sequence": chosen, "tool": of_tool}
                rows = _rows(batch, place.pair, member, head | {"start": start, "end": end, "at": at})
                self._asked.setdefault(place, limit)
                if place in self._rows:
                    both = namespace(rows).concatenate([self._rows[place], rows])
                    rows = both[_top(both[:, 0], MOST)]
                self._rows[place] = rows

    def taken(self, names: Names) -> dict[Place, Found]:
        """What was found since the last call; waits for a device if it is there."""
        rows, self._rows, asked, self._asked, self._batches = self._rows, {}, self._asked, {}, 0
        values = list(rows.values())
        if values and on_device(values[0]):
            parts = namespace(values[0]).concatenate(values).cpu().numpy()
            rows = dict(zip(rows, np.split(parts, np.cumsum(list(map(len, values)))[:-1]), strict=True))
        named = {row: name.partition(":")[2] for name, row in names.slices("tool").items()}
        worst: dict[Place, Found] = {}
        for place, each in rows.items():
            kept = np.asarray(each, np.float64)
            kept = kept[kept[:, 0] > 0]  # what has no tail there, or is no sequence at all
            if len(kept):
                kept = kept[np.argsort(-kept[:, 0], kind="stable")]
                tools = tuple(named.get(int(row), "") for row in kept[:, HEAD.index("tool")])
                worst[place] = Found(kept, asked[place], tools)
        return worst


def beyond(window: SliceWindow) -> float:
    """Where the tail of a slice begins, in nats: p99 of |log-ratio| in the reference period; without one, of now."""
    then = window.then if window.then.any() else window.magnitudes
    limit = quantiles(then, [0.99])[0] if then.any() else 0.0
    return max(limit, 1e-9)  # what is off the slice counts as 0, and must not be beyond


def tail_mass(window: SliceWindow, limit: float) -> float:
    """Nats beyond `limit`, summed over all finite tokens of a window."""
    return float(window.magnitudes @ np.maximum(QUANTILE_VALUES - limit, 0.0))


def _member(place: Place, batch: TokenBatch, labels: Mapping[Dimension, Array], names: Names) -> Array | None:
    """(N,) which tokens are of the slice; None where the batch does not tell."""
    if place.slice == ALL:
        return batch.model_mask
    for dimension, rows in labels.items():
        if (row := names.slices(dimension).get(place.slice)) is not None:
            return rows == row
    return None


def _sizes(batch: TokenBatch, pair: Pair) -> Array:
    """(N,) |log-ratio|, of what is not finite `BROKEN`."""
    size = abs(batch.log_ratio(pair))
    xp = namespace(size)
    finite = xp.isfinite(size)
    return xp.where(finite, xp.clip(size, None, CAP, out=size), BROKEN)


def _ends(batch: TokenBatch, chosen: Array) -> tuple[Array, Array]:
    """(n,) where each of the `chosen` sequences begins and ends among all tokens."""
    if batch.ids is None:
        width = batch.width or 1
        return chosen * width, chosen * width + width
    xp = namespace(chosen)
    return xp.searchsorted(batch.ids, chosen, side="left"), xp.searchsorted(batch.ids, chosen, side="right")


def _rows(batch: TokenBatch, pair: Pair, member: Array, head: Mapping[str, Array]) -> Array:
    """(n, len(HEAD) + FIELDS × WIDTH) float64, where the batch is.

    Args:
        member: (N,) True on the tokens of the slice.
        head: (n,) of each sequence what `HEAD` names, and where it starts, ends, and has its largest.
    """
    xp, at, start, end = namespace(member), head["at"], head["start"], head["end"]
    begin = xp.minimum(xp.maximum(at - BEFORE, start), xp.maximum(end - WIDTH, start))
    index = begin[:, None] + batch.arange(WIDTH)
    known = index < end[:, None]
    index = xp.clip(index, 0, len(member) - 1)
    kind = known * (
        KNOWN + MODEL * batch.model_mask[index] + TOOL * batch.tool_output[index] + IN_SLICE * member[index]
    )
    ids = 0 * kind - 1 if batch.token_ids is None else xp.where(known, float64(batch.token_ids[index]), -1.0)
    given = {} if batch.given_ids is None else {"sequence": batch.given_ids[at]}
    whole = {**head, **given, "length": end - start, "first": begin - start, "position": at - start}
    new, old = (batch.logprobs[name][index] for name in PAIRS[pair])
    parts = [
        xp.stack([float64(whole[name]) for name in HEAD], 1),
        *(float64(values) for values in (new, old, kind, ids)),
    ]
    return xp.concatenate(parts, 1)


def _largest_token(batch: TokenBatch, size: Array, member: Array, sequences: tuple[Array, Array, Array]) -> Array:
    """(n,) place among all tokens of the largest `size` (N,) of the slice in each sequence: number, start and end."""
    (chosen, start, end), xp = sequences, namespace(size)
    if xp is np:
        ends = zip(start, end, strict=True)
        return np.array([s + (size[s:e] * member[s:e]).argmax() for s, e in ends], np.int64)
    if batch.width is not None:
        rows = size.reshape(-1, batch.width)[chosen] * member.reshape(-1, batch.width)[chosen]
        return start + rows.argmax(1)
    # Where a sequence ends is known to the device alone: each is looked for among all tokens.
    return xp.stack([xp.where((batch.ids == sequence) & member, size, -1.0).argmax() for sequence in chosen])


def _top(values: Array, most: int) -> Array:
    """(≤ most,) int64 index of the largest of `values`."""
    n = min(most, len(values))
    return np.argsort(-values, kind="stable")[:n] if namespace(values) is np else values.topk(n).indices
