"""Console logs: the lines that verl prints a step, and the dictionaries that TRL and other Hugging Face trainers print.

Such logs carry colour codes and progress bars, repeat lines, mix processes and break off; what is no metrics is passed
over, and a log without any says so.
"""

import re
from dataclasses import replace
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.rows import Rows

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[[0-9;]{1,5}m")
NUMBER = r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?|NaN|Infinity)"
VERL = re.compile(r"\bstep:(\d{1,18}) - (?=\S+:)")
VERL_ITEM = re.compile(rf"(?:^| - )(\S+):(?:[\w.]+\()?({NUMBER}|True|False)(?=[\s),]|$)")
"""`actor/entropy:0.4`, or `actor/entropy:np.float64(0.4)` as newer numpy has it."""
ROUNDED = re.compile(r"-?\d+\.\d{3}|[a-zA-Z]+")
"""How older versions of verl print every number."""
DICTIONARY = re.compile(r"\{\s*['\"][^{}]*\}")
BEGUN = re.compile(r"\{\s*['\"](?:loss|reward|eval_\w+|train_runtime)['\"]:[^{}]*$")
PAIR = re.compile(rf"['\"]([^'\"]+)['\"]:\s*(?:[\w.]+\(|['\"])?({NUMBER})(?=[\s),'\"}}])")
HUGGING_FACE = {"epoch", "loss", "train_runtime", "eval_loss", "step", "global_step"}
"""A dictionary with one of these is a row of metrics; others are settings that were printed."""
BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d{1,18})/(\d{1,18}) \[")
"""A progress bar without a title, as the trainer's own."""
WORDS = {"True": 1.0, "False": 0.0}


def read_console(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from a console log.

    TRL's rows do not say their step. They are counted from 1, and where the trainer's progress bar stands in the log,
    by as many steps as it shows between two rows.

    Raises:
        SourceError: "file: what is wrong"; also where the log has no line of metrics at all.
    """
    verl, trl = Rows(), _Trl()
    rounded = True
    number = 0
    ended = True
    line = ""
    for number, line, ended in read_lines(file, progress, errors="replace"):
        for text in COLOUR.sub("", line).split("\r"):
            if match := VERL.search(text):
                items = VERL_ITEM.findall(text[match.end() :])
                # The last number of a log that breaks off may lack digits.
                items = items if ended or text.rstrip().endswith(")") else items[:-1]
                rounded = rounded and all(ROUNDED.fullmatch(value) for _, value in items)
                verl.add(int(match[1]), {key: _float(value) for key, value in items}, f"line {number}")
            elif not verl.added:
                trl.read(text, f"line {number}")
    if verl.added:
        if not ended and VERL.search(line):
            verl.note(f"the last line, {number}, breaks off; its last number was left out")
        if rounded:
            verl.note("the log rounds to three decimals: what is small, as a learning rate or a KL, reads as 0")
        return replace(verl.finish(source), quantum=0.001 if rounded else 0.0)
    if not trl.rows.added:
        raise SourceError(f"{file}: no metrics in {number} lines: neither a step of verl nor a dictionary of TRL")
    return trl.finish(source)


def _float(value: str) -> float:
    return WORDS[value] if value in WORDS else float(value)


class _Trl:
    """Rows of a Hugging Face trainer, by their count until the end tells how many steps lie between two."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._count = 0
        self._total = ""
        self._shown = 0
        self._named = False

    def read(self, text: str, where: str) -> None:
        if match := BAR.match(text):
            # The trainer's bar is the first; evaluations draw their own, with other totals.
            self._total = self._total or match[2]
            self._shown = max(self._shown, int(match[1])) if match[2] == self._total else self._shown
        for found in DICTIONARY.findall(text):
            pairs = {key: float(value) for key, value in PAIR.findall(found)}
            if pairs.keys() & HUGGING_FACE or any(key.startswith("eval_") for key in pairs):
                self._add(pairs, where)
        if BEGUN.search(text):
            self.rows.count("rows that break off, left out", where)

    def _add(self, pairs: dict[str, float], where: str) -> None:
        step = pairs.pop("step", pairs.pop("global_step", None))
        if step is not None and step.is_integer():
            self._named = True
            self.rows.add(int(step), pairs, where)
            return
        # An evaluation, and the sums at the end, belong to the training row before them.
        aside = "train_runtime" in pairs or all(key.startswith("eval_") or key == "epoch" for key in pairs)
        self._count += not (aside and self._count)
        self.rows.add(self._count, pairs, where)

    def finish(self, source: str) -> FinishedRun:
        if not self._named:
            stride = max(self._shown // max(self._count, 1), 1)
            self.rows.every(stride)
            by = f"a row every {stride} steps, as the progress bar shows" if stride > 1 else "a step a row"
            self.rows.note(f"the log does not say its steps: they were counted, {by}")
        return self.rows.finish(source)
