"""Console: what a person is to see without looking for it, in a terminal or a notebook."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

QUIET = "TRACKER_DIAG_QUIET"
"""Environment variable: set to anything but 0, only warnings are shown."""


CONTROL: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # halves of a character, which no stream takes
}


def clean(text: str) -> str:
    """`text` without what steers a terminal or cannot be written: names of metrics and messages may hold anything."""
    return text.translate(CONTROL)


class Terminal(Console):
    """A console on which text is text: nothing in it is markup, or steers the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


def announce(*lines: RenderableType) -> None:
    """Show `lines` on standard error, unless quiet was asked for; a terminal that is gone is no matter."""
    if os.environ.get(QUIET, "0") in ("", "0"):
        _show(*lines)


def near(path: str | Path) -> str:
    """`path` as one types it here: from the working directory, if it is there."""
    try:
        return str(Path(path).absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def unbroken(line: Text) -> RenderableType:
    """`line` without a break that is ours, as it holds what a person copies."""
    line.no_wrap, line.overflow = True, "ignore"
    return Group(line)  # a text alone is joined with others, and then broken


def plain(line: RenderableType) -> str:
    """`line` as text of 100 columns without colours."""
    console = Terminal(width=100, color_system=None, file=StringIO())
    with console.capture() as shown:
        console.print(line, crop=False)
    return "\n".join(row.rstrip() for row in shown.get().splitlines())


class Screen(logging.Handler):
    """Shows the package's warnings in a readable form where nobody has set up logging; elsewhere it keeps still."""

    def emit(self, record: logging.LogRecord) -> None:
        handlers = [*logging.getLogger().handlers, *logging.getLogger(record.name).handlers]
        if any(not isinstance(handler, Screen) for handler in handlers):
            return
        head, _, rest = record.getMessage().partition("\n")
        color = {logging.WARNING: "bold yellow", logging.ERROR: "bold red"}.get(record.levelno, "bold")
        text = Text.assemble(("tracker_diag: ", "dim"), (head, color))
        _show(text, *([Text(rest)] if rest else []))


def _show(*lines: RenderableType) -> None:
    console = Terminal(stderr=True)
    with contextlib.suppress(OSError, ValueError):  # it is closed, or takes no more
        if console.is_jupyter:
            console.print(*lines, sep="\n")
            return
        with console.capture() as shown:
            for line in lines:
                console.print(line, crop=False)
        # Not by the console itself: a progress bar that is on the screen has put something in the stream's place.
        sys.stderr.write(shown.get())
        sys.stderr.flush()


def labelled(width: int) -> Table:
    """A table of labels, in a column of `width` at least, and what they say."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=width)
    rows.add_column()
    return rows


def digits(value: float) -> str:
    """`value` with three digits, or with all before its point up to a million: 0.0268, 3,976, 1.2e+07."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def cut(text: str, most: int) -> str:
    """`text` in one line of `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def one_line(text: str, style: str = "") -> Text:
    """`text` without line breaks and tabs, cut where the screen ends."""
    return Text(" ".join(text.split()), style=style, no_wrap=True, overflow="ellipsis")


def add_rows(table: Table, heading: str, lines: Iterable[RenderableType]) -> None:
    """A row for each of `lines`; the first has the `heading`."""
    for number, line in enumerate(lines):
        table.add_row("" if number else heading, line)
