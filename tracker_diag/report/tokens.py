"""The worst sequences as they are shown: in a table, and in the page as strips and texts coloured by log-ratio."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Table, WorstSequence
from tracker_diag.stats.arrays import Float64Array, IntArray

WORST = PREFIX + "worst_sequences"
"""The table's name."""

BEFORE, AFTER, OF_TOOL = 40, 20, 24
"""Tokens that are shown before the largest, after it, and of the end of the tool result before."""
STRENGTHS = (1, 2, 4, 8)
"""Multiples of the limit from which on a token is coloured, and more so."""
BROKEN = len(STRENGTHS) + 1
"""The strength of what is NaN or infinite."""

IN_TABLE = 300
"""Characters of an excerpt in the table."""

STEER = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of Unicode whose characters are not shown as they are, but for two that join letters."""
SIGNS = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {"\n": "↵", "\t": "⇥"}

MOST_PLACES, OPEN = 6, 3
"""In the page: slices, and sequences of each that are not folded."""
ROOM = {"worst": 8, "first": 2, "last": 2}
"""In the page: sequences of each step of a slice."""
MEANS = {
    "policy": ("less likely since the update", "more likely"),
    "mismatch": ("less likely for the trainer than for the sampler", "more likely"),
    "reference": ("less likely than under the reference", "more likely"),
}
"""What a negative and a positive log-ratio say of a token."""


def strengths(sequence: WorstSequence) -> IntArray:
    """(W,) 0: |log-ratio| is usual or unknown; 1 to 4: by how far it is beyond; 5: it is no number."""
    sizes = np.abs(sequence.log_ratios)
    levels = np.searchsorted(np.array(STRENGTHS) * sequence.limit, np.nan_to_num(sizes, nan=0.0), side="left")
    levels = np.where(np.isfinite(sizes), levels, BROKEN)
    return np.where(sequence.sampled, levels, 0).astype(np.int64)


def excerpt(sequence: WorstSequence) -> list[range]:
    """The parts of the window whose text is shown: around the largest, and the end of the tool result before it."""
    at = sequence.position - sequence.first
    inside = np.flatnonzero(sequence.sampled | sequence.tool_output)  # the largest is, so there is one
    low, high = min(at, int(inside[0])), max(at, int(inside[-1])) + 1
    around = range(max(low, at - BEFORE), min(high, at + AFTER + 1))
    results = np.flatnonzero(sequence.tool_output[:at])
    if not len(results) or results[-1] >= around.start + OF_TOOL // 2:
        return [around]
    tool = range(max(low, int(results[-1]) + 1 - OF_TOOL), int(results[-1]) + 1)
    return [range(min(tool.start, around.start), around.stop)] if tool.stop >= around.start else [tool, around]


def visible(text: str) -> str:
    """`text` with a sign for each character that steers or is no character, and none that turns the line around."""
    steers = {char for char in {*text} if unicodedata.category(char) in STEER} - {"\u200c", "\u200d"}
    return text.translate({ord(char): SIGNS.get(char, f"⟨{ord(char):X}⟩") for char in steers})


def worst_table(sequences: Sequence[WorstSequence]) -> Table:
    """One row a sequence, those of the worst steps first."""
    columns = (
        "pair", "slice", "onset", "moment", "step", "batch", "sequence", "tool", "position", "length", "log_ratio",
        "share", "excerpt",
    )  # fmt: skip
    rows = tuple(
        (
            it.pair, it.slice, it.onset, it.moment, it.step, it.batch, it.sequence, visible(it.tool), it.position,
            it.length, it.largest if math.isfinite(it.largest) else None, it.share, _in_line(it),
        )
        for it in sequences
    )  # fmt: skip
    return Table(WORST, columns, rows)


def _in_line(sequence: WorstSequence) -> str:
    """The excerpt in one line, «the largest» marked: as text with [the tool's output], else as a bar a token."""
    strong, at = strengths(sequence), sequence.position - sequence.first
    if sequence.texts is None:
        shown = range(max(0, at - 16), min(len(strong), at + 17))
        signs = "·▂▄▆█×"  # by strength
        bars = ["□" if sequence.tool_output[i] else signs[strong[i]] if sequence.sampled[i] else " " for i in shown]
        bars[at - shown.start] = f"«{bars[at - shown.start]}»"
        return "".join(bars).strip()
    line = ""
    for left_out, tool, cells in _runs(sequence, strong):
        text = "".join(f"«{word}»" if style.endswith("largest") else word for word, style, _ in cells)
        line += " … " * bool(left_out) + (f"[{text}]" if tool else text)
    cut = line.find("«")
    if cut > IN_TABLE * 2 // 3:
        line = "…" + line[cut - IN_TABLE * 2 // 3 :]
    return line[:IN_TABLE]


@dataclass(frozen=True)
class Strip:
    """One sequence as the page shows it. Lengths and places are in hundredths of the strip's width."""

    sequence: WorstSequence
    up: str
    down: str
    broken: str
    """Paths in a box of the tokens' number × 100."""
    tokens: int
    tools: tuple[tuple[float, float], ...]
    """Left end and width of each tool result."""
    at: float
    """The middle of the largest."""
    first: int
    last: int
    """Positions of the strip's first and last token."""
    runs: tuple[tuple[int, bool, list[tuple[str, str, str]]], ...]
    """The text, if there is any: tokens left out before, whether it is a tool's, and of each token text, style, title.

    The style of the largest ends with " largest".
    """


@dataclass(frozen=True)
class Group:
    """The sequences of one slice: those of the worst step, the first ones open, and those of other steps."""

    pair: str
    slice: str
    onset: int
    edges: tuple[float, ...]
    """Nats from which on a token has each strength."""
    usual: float
    """Height of the limit in the strips, of 50."""
    shown: tuple[Strip, ...]
    folded: tuple[Strip, ...]


def groups(sequences: Sequence[WorstSequence]) -> list[Group]:
    """The page's section, by slice; what there is no room for is in the table alone."""
    by_place: dict[tuple[str, str, int], list[WorstSequence]] = {}
    for sequence in sequences:
        by_place.setdefault((sequence.pair, sequence.slice, sequence.onset), []).append(sequence)
    shown: list[Group] = []
    for (pair, slice, onset), kept in list(by_place.items())[:MOST_PLACES]:
        chosen = [it for moment, most in ROOM.items() for it in [it for it in kept if it.moment == moment][:most]]
        top = max(2.0, *(float(_heights(it)[it.sampled].max()) for it in chosen))
        strips = tuple(_strip(it, top) for it in chosen)
        edges = tuple(chosen[0].limit * times for times in STRENGTHS)
        shown.append(Group(pair, visible(slice), onset, edges, 50 / top, strips[:OPEN], strips[OPEN:]))
    return shown


def _heights(sequence: WorstSequence) -> Float64Array:
    """(W,) 1 for what is at the limit, 2 for three times as much, and so on; 0 for what is no number."""
    sizes = np.abs(np.nan_to_num(sequence.log_ratios, nan=0.0, posinf=0.0, neginf=0.0))
    return np.asarray(np.log2(1 + sizes / sequence.limit))


def _strip(sequence: WorstSequence, top: float) -> Strip:
    inside = np.flatnonzero(sequence.sampled | sequence.tool_output)
    low, high = int(inside[0]), int(inside[-1]) + 1
    n, ratios, strong = high - low, sequence.log_ratios, strengths(sequence)
    heights = 50 * _heights(sequence) / top
    tall = sequence.sampled & (heights >= 0.5) & (strong != BROKEN)
    up = "".join(f"M{i - low + 0.5:g} 50v{-heights[i]:.0f}" for i in np.flatnonzero(tall & (ratios > 0)))
    down = "".join(f"M{i - low + 0.5:g} 50v{heights[i]:.0f}" for i in np.flatnonzero(tall & (ratios <= 0)))
    broken = "".join(f"M{i - low + 0.5:g} 0v100" for i in np.flatnonzero(strong == BROKEN))
    flags = sequence.tool_output.astype(np.int8)
    begun, ended = (np.flatnonzero(np.diff(flags, prepend=0, append=0) == sign).tolist() for sign in (1, -1))
    tools = tuple((100 * (a - low) / n, 100 * (b - a) / n) for a, b in zip(begun, ended, strict=True))
    at = 100 * (sequence.position - sequence.first - low + 0.5) / n
    first = sequence.first + low
    return Strip(sequence, up, down, broken, n, tools, at, first, first + n - 1, tuple(_runs(sequence, strong)))


def _runs(sequence: WorstSequence, strong: IntArray) -> Iterator[tuple[int, bool, list[tuple[str, str, str]]]]:
    texts, ratios, end = sequence.texts, sequence.log_ratios, None
    if texts is None:
        return
    for part in excerpt(sequence):
        left_out, end = 0 if end is None else part.start - end, part.stop
        for tool, run in groupby(part, key=lambda i: bool(sequence.tool_output[i])):
            cells = []
            for i in run:
                sign = "m" if ratios[i] < 0 else "p"
                style = "" if not strong[i] else "nan" if strong[i] == BROKEN else f"{sign}{strong[i]}"
                position = sequence.first + i
                title = f"position {position}: {ratios[i]:+.3g}" if strong[i] else ""
                cells.append((visible(texts[i]), style + " largest" * (position == sequence.position), title))
            yield left_out, tool, cells
            left_out = 0
