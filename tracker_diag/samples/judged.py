"""Samples of a finished run through the same judge as a live one: what the rules say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracker_diag.detect.growth import USUAL, GrowthSettings
from tracker_diag.health import Health
from tracker_diag.report.curves import chosen
from tracker_diag.rules.judge import Judge, StepInputs, judge_steps
from tracker_diag.rules.loader import Own, in_force
from tracker_diag.rules.triage import Summary
from tracker_diag.samples.intake import SampleIntake
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
        metrics: the training run's own metrics by step.
        rules, catalog, essential_tools: as in `Monitor`.
    """
    by_step: dict[int, list[Record]] = {}
    for record in records:
        if isinstance(step := record.get("step"), int) and step >= 0:
            by_step.setdefault(step, []).append(record)
    if not by_step:
        return None
    own = metrics or {}
    steps = sorted(by_step.keys() | own.keys())
    intake = SampleIntake(Health(), None, essential_tools, texts=False)
    settings = GrowthSettings.for_run(len(steps)).dialled(USUAL)
    judge = Judge(in_force(rules, with_catalog=catalog), settings)

    def inputs_of(step: int) -> StepInputs:
        if columns := columns_of(by_step.get(step, ()))[0]:
            intake.put_columns(columns)
        sampled, row = intake.taken(step), own.get(step, {})
        return StepInputs(row, samples=sampled.series, non_finite=sampled.broken, checked=bool(row or sampled.series))

    series, _ = judge_steps(judge, ((step, inputs_of(step)) for step in steps))
    summary = judge.summary(source, len(steps), steps[0], steps[-1])
    return replace(summary, curves={name: series[name] for name in chosen(summary, series)})
