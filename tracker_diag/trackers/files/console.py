"""Console logs: verl's lines, the dictionaries of TRL and other Hugging Face trainers, and lines of one's own loop.

Such logs carry colour codes and progress bars, repeat lines, mix processes and break off; what is no metrics is passed
over, and a log without any says so.
"""

import re
from dataclasses import replace
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.csv_table import cell
from tracker_diag.trackers.files.printed import PrintedLines
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
WIDEST = 1 << 14
"""Characters of a row that a terminal has broken into lines."""
PAIR = re.compile(rf"['\"]([^'\"]+)['\"]:\s*(?:[\w.]+\(|['\"])?({NUMBER})(?=[\s),'\"}}])")
HUGGING_FACE = {"epoch", "loss", "train_runtime", "eval_loss", "step", "global_step"}
"""A dictionary with one of these is a row of metrics; others are settings that were printed."""
BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d{1,18})/(\d{1,18}) \[")
"""A progress bar without a title, as the trainer's own."""
DROPPED = re.compile(
    r"Tried to log to step (\d{1,18}) that is less than the current step (\d{1,18})"
    r"|Step must only increase in log calls\.\s+Step (\d{1,18}) < (\d{1,18})"
    r"|[Uu]ser provided step: (\d{1,18}) is less than current step: (\d{1,18})"
)
"""What W&B says, in newer and older versions, of a row that it does not take. Some versions print the row with it."""
REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
"""How Ray shortens lines that repeat."""


def read_console(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from a console log.

    TRL's rows do not say their step. They are counted from 1. If the trainer's progress bar is in the log, it gives the
    steps between two rows. If there are no rows of verl or TRL, lines with well-known names are read.
    """
    log = ConsoleLog()
    number = 0
    for number, line, ended in read_lines(file, progress):
        log.read_line(line, f"line {number}", ended=ended)
    if run := log.finish(source):
        return run
    raise SourceError(
        f"{file}: no metrics in {number} lines, expected steps of verl, dictionaries of TRL, or five lines such as "
        "'step 12 | loss: 0.31 | reward: 0.5', with ':' or '=' before each number, and a well-known name"
    )


class ConsoleLog:
    """Rows of the lines that a trainer prints."""

    def __init__(self) -> None:
        self._verl = Rows(in_order=True)
        self._trl = _Trl()
        self._printed = PrintedLines()
        self._rounded = True
        self._cut = ""  # where the last line breaks off
        self._dropped, self._first_dropped = 0, ""

    def read_line(self, line: str, where: str, *, ended: bool = True) -> None:
        """Read `line`; `ended`: whether it is complete."""
        self._cut = ""
        for text in COLOUR.sub("", line).split("\r"):
            if match := DROPPED.search(text):
                step, current = filter(None, match.groups())
                self._dropped += int(REPEATED.search(text)[1]) if REPEATED.search(text) else 1  # type: ignore[index]
                self._first_dropped = self._first_dropped or f"step {step} came after step {current}, {where}"
            elif match := VERL.search(text):
                items = VERL_ITEM.findall(text[match.end() :])
                # The last number of a log that breaks off may lack digits.
                items = items if ended or text.rstrip().endswith(")") else items[:-1]
                self._cut = "" if ended else where
                self._rounded = self._rounded and all(ROUNDED.fullmatch(value) for _, value in items)
                self._verl.put_row(int(match[1]), {key: cell(value) for key, value in items}, where)
            elif not self._verl.added:
                self._trl.read_line(text, where)
                if not self._trl.rows.added:
                    self._printed.read_line(text, where)

    def finish(self, source: str) -> FinishedRun | None:
        """The run; None without any row."""
        verl = self._verl
        if not verl.added and not self._trl.rows.added:
            return self._printed.finish(source)
        if self._dropped:
            (verl if verl.added else self._trl.rows).warn(
                f"W&B dropped {self._dropped} rows, by its own warnings in this log, first: {self._first_dropped}; "
                "its run lacks them: log with rising steps, or give the metrics their own axis with define_metric"
            )
        if not verl.added:
            return self._trl.finish(source)
        if self._cut:
            verl.note(f"the last line, {self._cut.removeprefix('line ')}, breaks off; its last number was left out")
        if self._rounded:
            verl.note("the log rounds to three decimals: what is small, as a learning rate or a KL, reads as 0")
        return replace(verl.finish(source), quantum=0.001 if self._rounded else 0.0)


class _Trl:
    """Rows of a Hugging Face trainer, by their count until the end tells how many steps lie between two."""

    def __init__(self) -> None:
        self.rows = Rows(in_order=True)
        self._count = 0
        self._epoch = 0.0
        self._begun: list[int] = []  # counts of the rows at which the epoch fell
        self._total = ""
        self._shown = 0
        self._named = False
        self._begun_row, self._begun_at = "", ""
        """What a line has of a row that it does not end, and where."""

    def read_line(self, text: str, where: str) -> None:
        if match := BAR.match(text):
            # The trainer's bar is the first; evaluations draw their own, with other totals.
            self._total = self._total or match[2]
            self._shown = max(self._shown, int(match[1])) if match[2] == self._total else self._shown
        if self._begun_row:
            text = self._continued(text)
        for dictionary in DICTIONARY.findall(text):
            pairs = {key: float(value) for key, value in PAIR.findall(dictionary)}
            if pairs.keys() & HUGGING_FACE or any(key.startswith("eval_") for key in pairs):
                self._add(pairs, where)
        if begun := BEGUN.search(text):
            self._begun_row, self._begun_at = begun[0].rstrip("\r\n"), self._begun_at or where

    def _continued(self, text: str) -> str:
        """`text` after what a terminal of limited width has left on the lines before; that alone if it is no part."""
        begun, self._begun_row = self._begun_row, ""
        if "{" not in text.partition("}")[0] and len(begun) + len(text) < WIDEST:
            if "}" in text:
                self._begun_at = ""
            return begun + text
        self._broken_off()
        return text

    def _broken_off(self) -> None:
        self.rows.count("rows that break off, left out", self._begun_at)
        self._begun_at = ""

    def _add(self, pairs: dict[str, float], where: str) -> None:
        step = pairs.pop("step", pairs.pop("global_step", None))
        if step is not None and step.is_integer():
            self._named = True
            self.rows.put_row(int(step), pairs, where)
            return
        # An evaluation, and the sums at the end, belong to the training row before them.
        aside = "train_runtime" in pairs or all(key.startswith("eval_") or key == "epoch" for key in pairs)
        self._count += not (aside and self._count)
        epoch = pairs.get("epoch", self._epoch)
        if epoch < self._epoch and not aside:
            self._begun.append(self._count)
        self._epoch = epoch
        self.rows.put_row(self._count, pairs, where)

    def finish(self, source: str) -> FinishedRun:
        if self._begun_row:
            self._broken_off()
        if not self._named:
            stride = max(self._shown // max(self._count, 1), 1)
            self.rows.every(stride)
            by = f"a row every {stride} steps, as the progress bar shows" if stride > 1 else "a step a row"
            self.rows.note(f"the log does not say its steps: they were counted, {by}")
            if self._begun:
                at = ", ".join(map(str, self._begun[:5])) + (", ..." if self._begun[5:] else "")
                phases = len(self._begun) + 1
                self.rows.warn(f"the epoch falls at row {at}: {phases} phases, all rows are kept and counted on")
        return self.rows.finish(source)
