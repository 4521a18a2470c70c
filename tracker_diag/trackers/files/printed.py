"""Lines that a training loop of one's own prints: `step 12 | loss=0.31 | reward: 0.5`, with anything between them."""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from tracker_diag.metrics.aliases import key_map
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.keys import STEPS
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.rows import Rows

NUMBER = r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|nan|inf|NaN)"
WORD = r"[A-Za-z_][\w./@]*"
ITEM = re.compile(rf"(?:^|[\s|,;(\[{{'\"])({WORD}(?: {WORD}){{0,2}})['\"]?\s*[:=]\s*({NUMBER})(%?)(?=[\s|,;)\]}}]|$)")
"""`reward=0.5`, `Avg reward: 0.5`, `'reward': 0.5` or `acc: 12.5%`."""
BARE = re.compile(rf"(?:^|[\s|,;(\[])({WORD})\s+({NUMBER})(?=[\s|,;)\]]|$)")
"""`reward 0.5`, which counts only of a well-known name, in a line that has nothing of the other form."""
STEP = re.compile(r"\b(?:step|iter|iteration|update)\b[\s:=#\[(]*(\d{1,18})\b", re.IGNORECASE)
EPISODE = re.compile(r"\bepisode\b[\s:=#\[(]*(\d{1,18})\b", re.IGNORECASE)
"""A step, if the line names no other."""
PART = re.compile(r"(?<![\d/.])(\d{1,18})/(\d{1,18})(?![\d/.])")
"""`12/300`: a step of so many. Of several, such as an epoch and a step, the last one counts."""
OF_EVALUATION = re.compile(r"(?<![\w./-])(?:eval|evaluation|val|validation)(?![\w./-])", re.IGNORECASE)
"""What a line of an evaluation begins with: `[EVAL] step 20: reward=0.5`."""
FEWEST = 5
"""Lines with the same names that make metrics of them."""

Keys: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    where: str
    step: int | None
    keys: Keys
    numbers: tuple[float, ...]


class PrintedLines:
    """Rows of lines that have numbers under the same names, of which one is well known: a reward or a loss."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._first: dict[Keys, str] = {}
        """An example for each set of names."""

    def read_line(self, text: str, where: str) -> None:
        """Keep the numbers of `text`, and the step that comes before them."""
        values: dict[str, float] = {}
        begins = len(text)
        items = [(item, 100 if item[3] else 1) for item in ITEM.finditer(text)]
        for match, unit in items or [(item, 1) for item in BARE.finditer(text) if _is_known(item[1].lower())]:
            begins = min(begins, match.start(1))
            values.setdefault(match[1].lower().replace(" ", "_"), float(match[2]) / unit)
        step = next((int(values.pop(name)) for name in STEPS if values.get(name, 0.5).is_integer()), None)
        if not values:
            return
        prefix = "eval_" if OF_EVALUATION.search(text[:begins]) else ""
        keys = tuple(name if name.startswith(("eval", "val_", "validation")) else prefix + name for name in values)
        line = _Line(where, _step_in(text[:begins]) if step is None else step, keys, tuple(values.values()))
        self._first.setdefault(line.keys, text.strip()[:80])
        self._lines.append(line)

    def finish(self, source: str) -> FinishedRun | None:
        """The run; None if no line with a well-known name came five times."""
        lines = Counter(line.keys for line in self._lines)
        stepped = Counter(line.keys for line in self._lines if line.step is not None)
        known = key_map(dict.fromkeys(key for keys in lines for key in keys)).mapped
        names = {keys: frozenset(known[key].name for key in keys if key in known) for keys in lines}
        kinds = [keys for keys, n in lines.items() if n >= FEWEST and names[keys]]
        if not kinds:
            return None
        # The line with most metrics is that of the training, also where it has more or fewer of them.
        main = max(kinds, key=lambda keys: (len(names[keys]), stepped[keys] >= FEWEST, lines[keys]))
        training = {keys for keys in lines if keys[0] == main[0] and (set(keys) <= set(main) or set(main) <= set(keys))}
        trained = frozenset(name for keys in training for name in names[keys])
        others = {keys for keys, n in lines.items() if keys not in training and n >= FEWEST}
        others = {keys for keys in others if names[keys].isdisjoint(trained)}
        rows = Rows(in_order=True)
        rows.note(f"read from lines such as {self._first[main]!r}")
        named = sum(stepped[keys] for keys in training) >= FEWEST
        if not named:
            rows.note("the log does not say its steps: they were counted, a step a line")
        left = [keys for keys, n in lines.items() if n > 1 and names[keys] and keys not in training | others]
        if left:
            n, first = sum(lines[keys] for keys in left), self._first[left[0]]
            why = "they come fewer than five times, or have names that other lines have"
            rows.note(f"{n} lines were left out, such as {first!r}: {why}")
        for step, values, where in self._rows(training, others, rows, named=named):
            rows.put_row(step, values, where)
        return rows.finish(source)

    def _rows(
        self, training: Collection[Keys], others: Collection[Keys], odd: Odd, *, named: bool
    ) -> list[tuple[int, dict[str, float], str]]:
        """A row for each line of `training`, with what the lines of `others` have of its step."""
        rows: list[tuple[int, dict[str, float], str]] = []
        last: dict[int, int] = {}  # the last row of each step
        early: list[_Line] = []  # lines whose row is still to come, if there is one

        def put_into(line: _Line, at: int) -> None:
            _, row, _ = rows[at]
            for key, value in zip(line.keys, line.numbers, strict=True):
                if row.setdefault(key, value) != value and not any(key in keys for keys in training):
                    odd.count("values that come again for the same row, left out", f"{key!r} at {line.where}")

        for line in self._lines:
            if line.keys in training and (line.step is not None or not named):
                step = line.step if named and line.step is not None else len(rows) + 1
                rows.append((step, dict(zip(line.keys, line.numbers, strict=True)), line.where))
                last[step] = len(rows) - 1
                for other in early:
                    put_into(other, len(rows) - 1 - (other.step != step and len(rows) > 1))
                early = []
            elif line.keys in others and named and line.step in last:
                put_into(line, last[line.step])
            elif line.keys in others:
                early.append(line)
        for line in early if rows else ():
            put_into(line, len(rows) - 1)
        return rows


@lru_cache(1024)
def _is_known(name: str) -> bool:
    return bool(key_map([name]).mapped)


def _step_in(text: str) -> int | None:
    """The step that `text` before the first number names."""
    if named := STEP.findall(text) or EPISODE.findall(text):
        return int(named[-1])
    parts = [int(at) for at, total in PART.findall(text) if 0 <= int(at) <= int(total) > 1]
    return parts[-1] if parts else None
