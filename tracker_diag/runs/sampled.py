"""Samples of a finished run, through the same pipe as those of a live one: what the rules say of them."""

from collections.abc import Mapping, Sequence

from tracker_diag.errors import BatchError, SourceError
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.rules.loader import Own
from tracker_diag.rules.triage import Summary
from tracker_diag.samples.records import Record, columns_of


def judge_samples(
    records: Sequence[Record],
    source: str,
    metrics: Mapping[int, Mapping[str, float]] | None = None,
    *,
    rules: Own = (),
    catalog: bool = True,
    essential_tools: Sequence[str] = (),
) -> Summary | None:
    """What the rules find, step by step in rising order; None where no record has a `step`.

    Args:
        metrics: of the training run, by step, beside which the samples stand.
        rules, catalog, essential_tools: as in `Monitor`.

    Raises:
        SourceError: records of a step that `samples` does not take.
    """
    steps: dict[int, list[Record]] = {}
    for one in records:
        if isinstance(step := one.get("step"), int) and step >= 0:
            steps.setdefault(step, []).append(one)
    if not steps:
        return None
    own = metrics or {}
    with Monitor(source=source, rules=rules, catalog=catalog, essential_tools=essential_tools) as monitor:
        monitor.expect(len(steps.keys() | own.keys()))
        for step in sorted(steps.keys() | own.keys()):
            if step in steps:
                try:
                    monitor.samples(**columns_of(steps[step])[0])
                except BatchError as error:
                    raise SourceError(f"{source}: step {step}: {error}") from error
            monitor.log(own.get(step, {}), step)
        return monitor.close()
