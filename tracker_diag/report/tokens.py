"""The worst sequences as they are shown: in a table, and in the page as strips and texts coloured by log-ratio."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Table, WorstSequence
from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray

WORST = PREFIX + "worst_sequences"
"""The table's name."""

BEFORE, AFTER, OF_TOOL = 40, 20, 24
"""Tokens that are shown before the largest, after it, and of the end of the tool result that stands before."""
STRENGTHS = (1, 2, 4, 8)
"""Multiples of the limit from which on a token is coloured, and more so."""
BROKEN = len(STRENGTHS) + 1
"""The strength of what is NaN or infinite."""

BARS = "·▂▄▆█×"
"""A strip of tokens without text, by strength."""
IN_STRIP = 16
"""Tokens on either side of the largest in such a strip."""
IN_TABLE = 300
"""Characters of an excerpt in the table."""
OF_TOKEN = 24
"""Characters of a token in the page."""

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


def strengths(one: WorstSequence) -> IntArray:
    """(W,) 0 where |log-ratio| is usual or not known, 1 to 4 by how far it is beyond that, 5 where it is no number."""
    sizes = np.abs(one.log_ratios)
    found = np.searchsorted(np.array(STRENGTHS) * one.limit, np.nan_to_num(sizes, nan=0.0), side="left")
    found = np.where(np.isfinite(sizes), found, BROKEN)
    return np.where(one.sampled, found, 0).astype(np.int64)


def excerpt(one: WorstSequence) -> list[range]:
    """The parts of the window whose text is shown: around the largest, and the end of what the tool said before."""
    at = one.position - one.first
    inside = np.flatnonzero(one.sampled | one.tool_output)  # the largest is, so there is one
    low, high = min(at, int(inside[0])), max(at, int(inside[-1])) + 1
    around = range(max(low, at - BEFORE), min(high, at + AFTER + 1))
    said = np.flatnonzero(one.tool_output[:at])
    if not len(said) or said[-1] >= around.start + OF_TOOL // 2:
        return [around]
    tool = range(max(low, int(said[-1]) + 1 - OF_TOOL), int(said[-1]) + 1)
    return [range(min(tool.start, around.start), around.stop)] if tool.stop >= around.start else [tool, around]


def visible(text: str) -> str:
    """`text` with a sign for each character that steers or is no character, and none that turns the line around."""
    return "".join(map(_seen, text))


def _seen(char: str) -> str:
    code = ord(char)
    if char in "\n\t":
        return "↵" if char == "\n" else "⇥"
    if code < 0x20:
        return chr(0x2400 + code)
    if char in "\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return char
    return f"⟨{code:X}⟩"


def worst_table(sequences: Sequence[WorstSequence]) -> Table:
    """One row a sequence, those of the worst steps first."""
    columns = (
        "pair", "slice", "onset", "moment", "step", "batch", "sequence", "tool", "position", "length", "log_ratio",
        "share", "excerpt",
    )  # fmt: skip
    rows = tuple(
        (
            one.pair,
            one.slice,
            one.onset,
            one.moment,
            one.step,
            one.batch,
            one.sequence,
            visible(one.tool),
            one.position,
            one.length,
            one.largest if math.isfinite(one.largest) else None,
            one.share,
            _in_line(one),
        )
        for one in sequences
    )
    return Table(WORST, columns, rows)


def _in_line(one: WorstSequence) -> str:
    """The excerpt in one line, «the largest» marked: as text with [what the tool said], else as a bar a token."""
    strong, at = strengths(one), one.position - one.first
    if one.texts is None:
        shown = range(max(0, at - IN_STRIP), min(len(strong), at + IN_STRIP + 1))
        bars = ["□" if one.tool_output[i] else BARS[strong[i]] if one.sampled[i] else " " for i in shown]
        bars[at - shown.start] = f"«{bars[at - shown.start]}»"
        return "".join(bars).strip()
    left = ""
    for before, part in zip((None, *excerpt(one)), excerpt(one), strict=False):
        left += " … " if before is not None else ""
        for tool, run in groupby(part, key=lambda i: bool(one.tool_output[i])):
            said = [(i, visible(one.texts[i])) for i in run]
            text = "".join(f"«{text}»" if i == at else text for i, text in said)
            left += f"[{text}]" if tool else text
    cut = left.find("«")
    if cut > IN_TABLE * 2 // 3:
        left = "…" + left[cut - IN_TABLE * 2 // 3 :]
    return left[:IN_TABLE]


@dataclass(frozen=True)
class Cell:
    """One token of a text: what it says, how it is coloured, and what it tells when pointed at."""

    text: str
    style: str
    says: str
    largest: bool = False


@dataclass(frozen=True)
class Run:
    """Tokens that stand together: of the policy, or of a tool; or how many are left out before the next."""

    cells: tuple[Cell, ...]
    tool: str | None = None
    left_out: int = 0


@dataclass(frozen=True)
class Strip:
    """One sequence as the page shows it. Lengths and places are in hundredths of the strip's width."""

    sequence: WorstSequence
    tool: str
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
    runs: tuple[Run, ...]
    """The text, if there is any."""


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
    less: str
    more: str
    shown: tuple[Strip, ...]
    folded: tuple[Strip, ...]


def groups(sequences: Sequence[WorstSequence]) -> list[Group]:
    """The page's section, by slice; what there is no room for stands in the table alone."""
    by_place: dict[tuple[str, str, int], list[WorstSequence]] = {}
    for one in sequences:
        by_place.setdefault((one.pair, one.slice, one.onset), []).append(one)
    found: list[Group] = []
    for (pair, slice, onset), kept in list(by_place.items())[:MOST_PLACES]:
        of = [one for moment, most in ROOM.items() for one in [one for one in kept if one.moment == moment][:most]]
        limit = of[0].limit
        top = max(2.0, *(float(_height(_largest(one), one.limit)) for one in of))
        strips = tuple(_strip(one, top) for one in of)
        edges = tuple(limit * times for times in STRENGTHS)
        found.append(Group(pair, visible(slice), onset, edges, 50 / top, *MEANS[pair], strips[:OPEN], strips[OPEN:]))
    return found


def _largest(one: WorstSequence) -> float:
    sizes = np.abs(one.log_ratios[one.sampled])
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _height(sizes: Float64Array | float, limit: float) -> Float64Array:
    """1 for what is at the limit, 2 for three times as much, and so on."""
    return np.asarray(np.log2(1 + sizes / limit))


def _strip(one: WorstSequence, top: float) -> Strip:
    inside = np.flatnonzero(one.sampled | one.tool_output)
    low, high = int(inside[0]), int(inside[-1]) + 1
    n, ratios, strong = high - low, one.log_ratios, strengths(one)
    heights = 50 * _height(np.abs(np.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)), one.limit) / top
    paths: dict[str, list[str]] = {"up": [], "down": [], "broken": []}
    for i in range(low, high):
        x = f"M{i - low + 0.5:g} "
        if strong[i] == BROKEN:
            paths["broken"].append(f"{x}0v100")
        elif one.sampled[i] and heights[i] >= 0.5:
            paths["up" if ratios[i] > 0 else "down"].append(f"{x}50v{-heights[i] if ratios[i] > 0 else heights[i]:.0f}")
    up, down, broken = ("".join(paths[name]) for name in ("up", "down", "broken"))
    tools = tuple((100 * (a - low) / n, 100 * (b - a) / n) for a, b in _stretches(one.tool_output))
    at = 100 * (one.position - one.first - low + 0.5) / n
    first = one.first + low
    runs = tuple(_runs(one)) if one.texts else ()
    return Strip(one, visible(one.tool), up, down, broken, n, tools, at, first, first + n - 1, runs)


def _stretches(flags: BoolArray) -> list[tuple[int, int]]:
    """Beginning and end of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _runs(one: WorstSequence) -> Iterator[Run]:
    texts, strong, ratios = one.texts or (), strengths(one), one.log_ratios
    before: range | None = None
    for part in excerpt(one):
        if before is not None:
            yield Run((), left_out=part.start - before.stop)
        before = part
        for tool, run in groupby(part, key=lambda i: bool(one.tool_output[i])):
            cells = []
            for i in run:
                sign = "m" if ratios[i] < 0 else "p"
                style = "" if not strong[i] else "nan" if strong[i] == BROKEN else f"{sign}{strong[i]}"
                said = f"position {one.first + i}: {ratios[i]:+.3g}" if strong[i] else ""
                text = visible(texts[i])
                short = text if len(text) <= OF_TOKEN else f"{text[: OF_TOKEN - 1]}…"
                cells.append(Cell(short, style, said, one.first + i == one.position))
            yield Run(tuple(cells), (visible(one.tool) or "tool") if tool else None)
