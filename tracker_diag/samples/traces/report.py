"""What traces come to: sample records, tools, and what the rules say of them; as a library and for the command."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tracker_diag.errors import BatchError, SourceError
from tracker_diag.rules.loader import Own
from tracker_diag.rules.triage import Summary
from tracker_diag.samples.aggregates import aggregates
from tracker_diag.samples.judged import judge_samples
from tracker_diag.samples.records import columns_of
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.tools import ToolRow, tool_rows
from tracker_diag.samples.traces.read import records_in
from tracker_diag.samples.traces.steps import add_steps
from tracker_diag.scrub import without_password
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd

TOTALS = (
    "tool_calls", "tool_failure_rate", "malformed_call_rate", "repeated_call_share", "turns", "response_length",
    "truncated_share", "void_turn_rate", "refusal_rate", "repeat_ratio", "claimed_success", "success_rate", "reward",
    "recovery_rate", "tokens_per_success",
)  # fmt: skip
"""Aggregates over all traces that the report has."""


@dataclass(frozen=True)
class TraceReport:
    """What traces come to."""

    source: str
    records: Sequence[Mapping[str, Any]] = field(repr=False)
    """Sample records, one a trace, as `--samples` writes them and `audit` reads them."""
    tools: Sequence[ToolRow]
    """The tool called most on top."""
    totals: Mapping[str, float]
    """Aggregates over all traces, by their names in the registry."""
    summary: Summary | None
    """What the rules say over the training steps; None where no trace has a step."""
    notes: Sequence[str]
    """What was odd about the source, a sentence each."""

    @property
    def steps(self) -> Counter[int]:
        """How many traces each step has; those of no step are left out."""
        return Counter(record["step"] for record in self.records if "step" in record)

    def to_json(self) -> dict[str, Any]:
        """All but the texts."""
        return {
            "source": self.source,
            "traces": len(self.records),
            "traces_with_step": self.steps.total(),
            "tools": [asdict(row) for row in self.tools],
            "totals": dict(self.totals),
            "rules": self.summary.to_json() if self.summary else None,
            "notes": list(self.notes),
        }


def read_traces(
    source: str,
    run: FinishedRun | None = None,
    *,
    rules: Own = (),
    catalog: bool = True,
    essential_tools: Sequence[str] = (),
    texts: bool = True,
) -> TraceReport:
    """Read the traces of `source`: how each tool fares, and what the rules say over the training steps.

    Args:
        source: a file, `mlflow:<run id, or name or id of an experiment>[@tracking uri]`, or the same of another
            tracker. A file has OTLP JSON, spans as OpenTelemetry's SDK prints them, or W&B Weave calls. Or it has
            traces of MLflow or another tracker, or messages of OpenAI or Anthropic.
        run: the training run. Its clock gives the step of traces that do not say theirs, and the rules see its metrics
            too. Runs in the same MLflow that traces name are found.
        rules, catalog, essential_tools: as in `Monitor`.
        texts: whether records have `prompt` and `completion`, for which a million spans may need too much memory. Else
            they have only the last answer, as `text`.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: in one line, what cannot be read, where, and why.
    """
    odd, shown = Odd(), without_password(source)
    records = records_in(source, odd, texts=texts)
    add_steps(records, source, run, odd)
    columns, no_numbers = columns_of(records)
    try:
        samples = Samples.from_columns(columns)
    except BatchError as error:
        raise SourceError(f"{shown}: {error}") from error
    del columns  # of all calls, which the next lines do not need
    totals = aggregates(samples)
    metrics = run.rows if run else None
    return TraceReport(
        shown,
        records,
        tool_rows(samples),
        {name: totals[name] for name in TOTALS if name in totals},
        judge_samples(records, shown, metrics, rules=rules, catalog=catalog, essential_tools=essential_tools),
        (*odd.notes, *no_numbers),
    )
