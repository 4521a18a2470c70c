"""A token log: any source as a plan of parts, and in words what it would be read as."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import Pair
from tracker_diag.trackers.tokens.columns import IMPLIED, PAIR_COLUMNS
from tracker_diag.trackers.tokens.convert import from_rollouts, from_tensors, in_order
from tracker_diag.trackers.tokens.files import ROLLOUTS, TENSORS, files_of
from tracker_diag.trackers.tokens.plan import Piece, TablePart, cut, is_scattered, pieces_of
from tracker_diag.trackers.tokens.prime_rl import ExportPart, exports_of
from tracker_diag.trackers.tokens.skipped import Skipped
from tracker_diag.trackers.tokens.table import Texts

Part: TypeAlias = TablePart | ExportPart
"""Some steps of a token log, whole, that can be read by themselves in any process."""
SCATTERED = "rows of a step are all over the files: they are brought together on this disk first"


class TokenLog(AbstractContextManager["TokenLog"]):
    """A token log, open for a while: files that have to be converted are kept until `close`.

    Args:
        source, columns, since, skip_bad: as in `replay`.
        audit: whether to read the columns for checks before training as well.
    """

    def __init__(
        self, source: str | Path, *, columns: Mapping[str, str] | None = None, since: int | None = None,
        skip_bad: bool = False, audit: bool = False,
    ) -> None:  # fmt: skip
        self.source, self._columns, self._since, self._audit = str(source), columns or {}, since, audit
        self.skipped = Skipped(skip_bad)
        self.converted = ""
        """Which files were converted; empty where none was."""
        self._open = ExitStack()
        self._pieces: list[Piece] = []
        self._exports: list[ExportPart] = []
        try:
            self._read_footers()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was converted."""
        self._open.close()

    @property
    def in_process(self) -> bool:
        """Whether the files are in the memory of this process, where no other one can read them."""
        return any(piece.file.path.startswith("memory://") for piece in self._pieces)

    def explained(self) -> list[str]:
        """What would be read, and which ratio pairs and slices it gives, a sentence each."""
        parts = self._planned or self.parts
        steps, rows = f"steps {parts[0].first} to {parts[-1].last}", sum(part.rows for part in parts)
        lines = [f"{self.source}: {steps}, about {rows:,} rows"]
        if is_scattered(self._pieces, self._planned):
            lines.append(SCATTERED)
        if self.converted:
            lines.append(self.converted)
        if not self._pieces:
            return [*lines, "prime-rl's token exports: slices by environment", "pair mismatch: yes"]
        layout = self._pieces[0].layout
        names = self._pieces[0].columns
        lines.append(f"rows: {'a sequence each, with lists' if layout.nested else 'a token each'}")
        columns = (name if name == theirs else f"{name}={theirs}" for name, theirs in layout.names.items())
        lines.append(f"columns: {', '.join(columns)}")
        for pair, both in PAIR_COLUMNS.items():
            lacking = [name for name in both if name not in names]
            no = f"no, {' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} missing"
            lines.append(f"pair {pair}: {no if lacking else 'yes'}")
        slices = [name for name in ("tool", "env", "turn", "policy_lag", "advantage", "control") if name in names]
        lines.append("slices: text_only, post_tool" + "".join(f", {name}" for name in slices))
        return lines

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The ratio pairs whose log-probabilities are there."""
        if not self._pieces:
            return ("mismatch",)
        return tuple(pair for pair, both in PAIR_COLUMNS.items() if self._pieces[0].columns.issuperset(both))

    @cached_property
    def parts(self) -> list[Part]:
        """What there is to read, by rising steps; rows of steps all over the files are brought together first."""
        parts: list[Part] = [part for part in self._exports if self._since is None or part.last >= self._since]
        tables = self._planned
        if is_scattered(self._pieces, tables):
            wanted = [piece for piece in self._pieces if self._since is None or piece.last >= self._since]
            files = in_order(wanted, self._scratch, self.skipped)
            tables = cut([piece for file in files for piece in pieces_of(file, {}, audit=self._audit)], self._since)
        if not (parts := [*parts, *tables]):
            raise SourceError(f"{self.source}: no rows from step {self._since} on")
        return parts

    def part_of(self, step: int) -> Part | None:
        """What has to be read of `step`; None if no part may have it."""
        return next((part.only(step) for part in self.parts if part.first <= step <= part.last), None)

    @cached_property
    def _planned(self) -> list[TablePart]:
        return cut(self._pieces, self._since)

    def _read_footers(self) -> None:
        """Learn what the files have: row groups, columns, steps."""
        self._exports = exports_of(Path(self.source))
        if self._exports:
            return
        for file in files_of(self.source):
            table, renamed = file, self._columns
            if file.kind in (*ROLLOUTS, *TENSORS):
                self.converted = f"{file.kind} files are converted to Parquet on this disk first"
            with self.skipped.instead():
                if file.kind in ROLLOUTS:
                    table = from_rollouts(file, self._scratch, renamed, self.skipped)
                elif file.kind in TENSORS:  # it has our names since it was converted
                    table, renamed = from_tensors(file, self._scratch, renamed), {}
                self._pieces += pieces_of(table, renamed, audit=self._audit)
        if not self._pieces:
            left = self.skipped
            why = f"; {left.count} files cannot be read, the first: {left.first}" if left.count else ""
            raise SourceError(f"{self.source}: no rows{why}")
        self._leave_out_others()

    @cached_property
    def _scratch(self) -> Path:
        return Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="tracker_diag-")))

    def _leave_out_others(self) -> None:
        """Leave out pieces that have other columns than the first."""
        first, *others = self._pieces
        for piece in others:
            if differs := (piece.columns ^ first.columns) - {*IMPLIED}:
                what = f"columns {', '.join(sorted(differs))} are not in all files, as in {first.file.name}"
                self.skipped(SourceError(f"{piece.file.name}: {what}"))
                self._pieces.remove(piece)


def read_tokens(
    source: Path | str, texts: Texts | None = None, *, audit: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of `Monitor.observe` for each step of a token log, in rising order of steps.

    Memory is that of about a million tokens, or of one step. Of a table that has texts of tokens, `texts` numbers them.
    """
    with TokenLog(source, audit=audit) as log:
        for part in log.parts:
            yield from part.steps(texts, log.skipped)
