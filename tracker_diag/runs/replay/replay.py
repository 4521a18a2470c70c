"""Replay: logged tensors through the very same pipe as a live run, so that its findings are the same."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import Pair
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.rules.loader import Own
from tracker_diag.rules.model import Rule
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.replay.engines import Engine, PartFolded, Work, kept, processes
from tracker_diag.runs.replay.fold import Folded, judge
from tracker_diag.trackers.files.read import read_metrics
from tracker_diag.trackers.open import Source, read_run
from tracker_diag.trackers.tokens.columns import PAIR_COLUMNS
from tracker_diag.trackers.tokens.log import TokenLog
from tracker_diag.trackers.tokens.skipped import Skipped
from tracker_diag.trackers.tokens.table import Texts
from tracker_diag.trackers.tracker import Tracker

Also: TypeAlias = Callable[[int, Folded], object] | None
"""Is called with each step and what its tokens come to."""
Done: TypeAlias = Callable[[int], object]
"""Is called with the rows that have been read since the last time."""


def replay(
    tokens: Path | str,
    metrics: Path | str | None = None,
    *,
    rules: Own = (),
    catalog: bool = True,
    columns: Mapping[str, str] | None = None,
    since: int | None = None,
    window: int = 8,
    clip: tuple[float, float] = (0.2, 0.2),
    baseline: Sequence[Source] = (),
    skip_bad: bool = False,
    workers: int = 1,
    engine: Engine | None = None,
    states: Path | str | None = None,
    trackers: Sequence[Tracker] = (),
    progress: Callable[[int], Done] | None = None,
    also: Also = None,
) -> Summary:
    """Diagnose the token log `tokens`, with the run's own `metrics` file where there is one.

    Rows may have any order; memory is that of about a million tokens for each process, or of the largest step.

    Args:
        tokens: a file, a folder, a pattern or a URL, as docs/replay.md has them; a folder may be prime-rl's exports.
        rules, catalog, window, clip, trackers: as in `Monitor`.
        baseline: finished runs that went well, each as `read_run` takes it; for the rest as in `Monitor`.
        columns: of each column of ours that the files call by another name, that name.
        since: leave out steps before this one.
        skip_bad: leave out files and row groups that cannot be read, and say how many.
        workers: processes that read; several import the main module, so call it under `if __name__ == "__main__"`.
        engine: folds the parts elsewhere, such as `engines.on_ray()`.
        states: a folder; what each part comes to is kept there, and a later replay continues from it.
        progress: called once with the number of rows; what it gives is called with the rows of each part that is done.
        also: called with each step and what its tokens come to, such as `WhatIf().add_step`.

    Raises:
        SourceError: what is wrong with which file, row group and column.
    """
    own = read_metrics(Path(metrics)) if metrics else {}
    texts = Texts()
    with TokenLog(tokens, columns=columns, since=since, skip_bad=skip_bad) as log:
        if not log.pairs:
            expected = ", or ".join(" and ".join(both) for both in PAIR_COLUMNS.values())
            raise SourceError(f"{tokens}: no columns that form a ratio pair, expected {expected}")
        monitor = Monitor(
            trackers, source=str(tokens), rules=rules, catalog=catalog, window=window, clip=clip, decode=texts.decode,
            baseline=[read_run(run) for run in baseline],
        )  # fmt: skip
        chosen = engine or processes(1 if log.in_process else workers)
        chosen = kept(chosen, Path(states)) if states else chosen

        def tensors_of(step: int) -> Mapping[str, Any] | None:
            part = log.part_of(step)
            return None if part is None else dict(part.steps(texts, Skipped(skip_bad))).get(step)

        done: Done = progress(sum(part.rows for part in log.parts)) if progress else lambda _: None
        folded = chosen(Work(clip, skip_bad, means=also is not None), log.parts)
        wanted = {step: row for step, row in own.items() if since is None or step >= since}
        summary = judge(monitor, _steps(log, folded, done, also), wanted, tensors_of, str(tokens))
        left = log.skipped
    more = f"; and {left.count - 1} more" if left.count > 1 else ""
    caveats = [f"bad parts of the log are left out: {left.first}{more}"] if left.count else []
    return replace(summary, caveats=(*caveats, *summary.caveats))


def rules_on(rules: Iterable[Rule], pairs: Iterable[Pair]) -> list[str]:
    """The ids of those of `rules` that read statistics of one of `pairs`."""
    there = {*pairs}
    return [rule.id for rule in rules if any(ref.stat and there & {ref.pair, *rule.pairs} for ref in rule.series())]


def _steps(log: TokenLog, folded: Iterable[PartFolded], done: Done, also: Also) -> Iterator[tuple[int, Folded]]:
    taken, why = False, "no rows"
    for part, result in zip(log.parts, folded, strict=True):
        log.skipped.include(result.skipped)
        for step, state in result.steps:
            taken, why = taken or bool(state.observed), state.rejected
            if also:
                also(step, state)
            yield step, state
        done(part.rows)
    if not taken:
        raise SourceError(f"{log.source}: nothing to judge: {log.skipped.first or why}")
