"""Lines that a training loop of one's own prints: `step 12 | loss=0.31 | reward: 0.5`, with anything between them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracker_diag.metrics.aliases import key_map
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.keys import STEPS
from tracker_diag.trackers.rows import Rows

NUMBER = r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|nan|inf|NaN)"
WORD = r"[A-Za-z_][\w./@]*"
ITEM = re.compile(rf"(?:^|[\s|,;(\[{{'\"])({WORD}(?: {WORD}){{0,2}})['\"]?\s*[:=]\s*({NUMBER})(%?)(?=[\s|,;)\]}}]|$)")
"""`reward=0.5`, `Avg reward: 0.5`, `'reward': 0.5` or `acc: 12.5%`."""
STEP = re.compile(r"\b(?:step|iter|iteration|update)\b[\s:=#\[(]*(\d{1,18})\b", re.IGNORECASE)
PART = re.compile(r"(?<![\d/.])(\d{1,18})/(\d{1,18})(?![\d/.])")
"""`12/300`: a step of so many. Of several, such as an epoch and a step, the last one counts."""
FEWEST = 5
"""Lines with the same keys that make a metric of them."""


@dataclass(frozen=True, slots=True)
class _Line:
    where: str
    step: int | None
    values: Mapping[str, float]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.values)


class PrintedLines:
    """Rows of lines with well-known names, such as a reward or a loss, each with a number."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._first: dict[tuple[str, ...], str] = {}
        """An example for each set of keys."""

    def read_line(self, text: str, where: str) -> None:
        """Keep the well-known numbers of `text`, and the step that comes before them."""
        values: dict[str, float] = {}
        begins = len(text)
        for match in ITEM.finditer(text):
            begins = min(begins, match.start(1))
            values.setdefault(match[1].lower().replace(" ", "_"), float(match[2]) / (100 if match[3] else 1))
        step = next((int(values.pop(name)) for name in STEPS if values.get(name, 0.5).is_integer()), None)
        if known := {name: values[name] for name in key_map(values).mapped}:
            line = _Line(where, _step_in(text[:begins]) if step is None else step, known)
            self._lines.append(line)
            self._first.setdefault(line.keys, text.strip()[:80])

    def finish(self, source: str) -> FinishedRun | None:
        """The run; None if no line came five times."""
        lines = Counter(line.keys for line in self._lines)
        stepped = Counter(line.keys for line in self._lines if line.step is not None)
        kinds = [keys for keys, n in lines.items() if n >= FEWEST]
        if not kinds:
            return None
        # The line with most metrics is that of the training. Of others, only what it lacks is read.
        main = max(kinds, key=lambda keys: (len(_names(keys)), stepped[keys] >= FEWEST, lines[keys]))
        read = {keys for keys in kinds if keys == main or _names(keys).isdisjoint(_names(main))}
        named = stepped[main] >= FEWEST
        rows = Rows(in_order=True)
        step: int | None = None
        for line in self._lines:
            if line.keys not in read:
                continue
            if not named:
                step = (step or 0) + (line.keys == main)
            elif line.step is not None:
                step = line.step
            if step is not None:
                rows.put_row(step, line.values, line.where)
        rows.note(f"read from lines such as {self._first[main]!r}")
        if not named:
            rows.note("the log does not say its steps: they were counted, a step a line")
        return rows.finish(source)


def _names(keys: Iterable[str]) -> frozenset[str]:
    return key_map(keys).names


def _step_in(text: str) -> int | None:
    """The step that `text` before the first number names."""
    if named := STEP.findall(text):
        return int(named[-1])
    parts = [int(at) for at, total in PART.findall(text) if 0 <= int(at) <= int(total) > 1]
    return parts[-1] if parts else None
