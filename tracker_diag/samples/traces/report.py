"""Traces as they are told: samples, tools, and what the rules say of them; as a library and for the command."""

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
from tracker_diag.samples.traces.open import collect
from tracker_diag.samples.traces.sampled import MARKS_TAG, ToolRow, record_of, tags, tool_rows
from tracker_diag.samples.traces.steps import with_steps
from tracker_diag.samples.traces.trace import Traces
from tracker_diag.trackers.finished import FinishedRun, Progress

TOLD = (
    "tool_calls", "tool_failure_rate", "malformed_call_rate", "repeated_call_share", "turns", "response_length",
    "truncated_share", "void_turn_rate", "refusal_rate", "repeat_ratio", "claimed_success", "success_rate", "reward",
    "recovery_rate", "tokens_per_success",
)  # fmt: skip
"""Aggregates over all traces that are told beside the tools."""


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
    tags: Mapping[str, Mapping[str, str | None]] = field(repr=False)
    """What `--write-back` writes to each trace, by its id."""
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
            "marked": {trace: marks[MARKS_TAG] for trace, marks in self.tags.items() if marks.get(MARKS_TAG)},
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
    progress: Progress | None = None,
) -> TraceReport:
    """Read the traces of `source`: how each tool fares, and what the rules say over the training steps.

    Args:
        source: a file (OTLP JSON, spans as OpenTelemetry's SDK prints them, W&B Weave calls, MLflow or Trackio traces,
            messages of OpenAI or Anthropic), `mlflow:<run id, or name or id of an experiment>[@tracking uri]`, or
            `trackio:<project>[/<run>]`.
        run: the training run, whose clock tells the step of traces that do not say theirs, and whose metrics the rules
            see beside them. Runs in the same MLflow that traces name are found.
        rules, catalog, essential_tools: as in `Monitor`.
        texts: whether records have `prompt` and `completion`, which a million spans may have no memory for; else they
            have the last answer alone, as `text`.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: in one line, what cannot be read, where, and why.
    """
    collected: Traces = with_steps(collect(source, progress, texts=texts), source, run)
    records = [record_of(trace) for trace in collected.traces]
    if not texts:
        for record in records:
            record.pop("completion", None)
    columns, odd = columns_of(records)
    try:
        samples = Samples.of(columns)
    except BatchError as error:
        raise SourceError(f"{collected.source}: {error}") from error
    del columns  # of all calls, which the next lines need no more
    totals = aggregates(samples)
    summary = judge_samples(
        records,
        collected.source,
        run.rows if run else None,
        rules=rules,
        catalog=catalog,
        essential_tools=essential_tools,
    )
    left_out = [f"values of {name} that are no numbers, left out: {n}" for name, n in odd.items() if n]
    return TraceReport(
        collected.source,
        records,
        tool_rows(samples),
        {name: totals[name] for name in TOLD if name in totals},
        summary,
        tags(collected.traces, samples, summary.findings if summary else ()),
        (*collected.notes, *left_out),
    )
