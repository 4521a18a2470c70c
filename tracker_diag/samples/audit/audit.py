"""The audit of a file of samples: reward against labels, its parts, what it pays for, prompts of the evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError, SourceError
from tracker_diag.records import Table
from tracker_diag.rules.loader import Own
from tracker_diag.rules.triage import Summary
from tracker_diag.samples.aggregates import aggregates
from tracker_diag.samples.audit.checks import CHECKS, AuditFinding, Scored, agreement
from tracker_diag.samples.audit.estimates import Estimate, answers, pairwise, rank_correlation
from tracker_diag.samples.audit.overlap import Prompts
from tracker_diag.samples.judged import judge_samples
from tracker_diag.samples.records import columns_of, text_of
from tracker_diag.samples.rewards import known
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.tables import samples_table
from tracker_diag.trackers.files.records import read_records

SUSPICIOUS = 8
"""Samples of the reading list next to the highest, the lowest and random ones."""


@dataclass(frozen=True)
class Component:
    """One part of the reward."""

    name: str
    n: int
    """Samples in which it was asked."""
    mean: float
    std: float
    variance_share: float
    """Of the sum of all parts' variances, before any weight that the trainer gives them."""
    with_label: Estimate | None
    """Its rank correlation with the label."""


@dataclass(frozen=True)
class Audit:
    """What a file of samples comes to."""

    source: str
    samples: Samples = field(repr=False)
    prompts: Prompts = field(repr=False)
    label: str
    """What answers are taken for right or wrong by; empty where nothing says so."""
    findings: Sequence[AuditFinding]
    """The worst first."""
    blind: Mapping[str, str]
    """Checks that could not look, and why."""
    agreement: Mapping[str, Estimate]
    """Rank correlation of the reward with each label and with the judge."""
    pairs: Mapping[str, Estimate]
    """Of pairs of answers to one prompt, in how many the better one has more reward; see `pairwise`."""
    components: Sequence[Component]
    totals: Mapping[str, float]
    """Aggregates over all samples, by their names in the registry."""
    summary: Summary | None
    """What the rules say over the training steps; None where no sample has a step."""
    notes: Sequence[str]

    @property
    def reading(self) -> Table:
        """Samples to read: those that the findings name, the worst finding first; then as in any table."""
        suspicious = dict.fromkeys(row for finding in self.findings for row in finding.rows)
        return samples_table(self.samples, 0, [*suspicious][:SUSPICIOUS])

    def to_json(self) -> dict[str, Any]:
        """All but the texts of the reading list."""
        prompts = self.prompts
        return {
            "source": self.source,
            "samples": self.samples.n,
            "label": self.label,
            "findings": [asdict(finding) | {"rule": finding.kind.rule} for finding in self.findings],
            "blind": dict(self.blind),
            "agreement": {name: asdict(estimate) for name, estimate in self.agreement.items()},
            "pairs": {name: asdict(estimate) for name, estimate in self.pairs.items()},
            "components": [asdict(component) for component in self.components],
            "totals": dict(self.totals),
            "prompts": {"different": prompts.different},
            "evaluation": None
            if prompts.evaluation is None
            else {"rows": len(prompts.evaluation), "overlap": [asdict(hit) for hit in prompts.overlap]},
            "reading": [{"kind": row[1], "row": row[2]} for row in self.reading.rows],
            "rules": self.summary.to_json() if self.summary else None,
            "notes": list(self.notes),
        }


def audit(samples: Path | str, evaluation: Path | str | None = None, *, rules: Own = (), catalog: bool = True) -> Audit:
    """Audit a file of samples: JSON Lines or Parquet, a record each; see `samples.records.Record`.

    Args:
        samples: with `reward` at least, and as many of the columns of `samples` as there are; `prompt`, `completion`.
            Or pairs, as a reward model has scored them: `prompt`, `chosen`, `rejected`, `chosen_score`,
            `rejected_score`; each is two samples, the chosen one first.
        evaluation: a file of prompts that should not be in it.
        rules, catalog: as in `Monitor`; the rules look where records have a `step`.

    Raises:
        MissingExtra: a file is Parquet, and pyarrow is not installed.
        SourceError: "file: what is wrong".
    """
    rows, notes = read_records(Path(samples))
    records = [*answers(rows)]
    held_out, more = read_records(Path(evaluation)) if evaluation else (None, ())
    columns, no_numbers = columns_of(records)
    if "reward" not in columns:
        given = ", ".join(map(str, list(records[0])[:12])) or "nothing"
        raise SourceError(f"{samples}: no reward: its records have {given}; expected a number under `reward`")
    if "length" not in columns and "text" in columns:
        columns["length"] = [None if (text := text_of(record)) is None else len(text) for record in records]
        notes = (*notes, "no record has a length: characters of the text are taken for it")
    try:
        table = Samples.from_columns(columns, texts=True)
    except BatchError as error:
        raise SourceError(f"{samples}: {error}") from error
    prompts = Prompts.from_records(records, held_out)
    scored = Scored.from_samples(table, prompts)
    checked = {name: check(scored) for name, check in CHECKS.items()}
    blind = {name: reported for name, reported in checked.items() if isinstance(reported, str)}
    findings = [finding for reported in checked.values() if not isinstance(reported, str) for finding in reported]
    return Audit(
        source=str(samples),
        samples=table,
        prompts=prompts,
        label=scored.label_name,
        findings=sorted(findings, key=lambda finding: ("error", "warn", "info").index(finding.severity)),
        blind=blind,
        agreement=agreement(scored),
        pairs=pairwise(table, scored.label, scored.blocks),
        components=_components(scored),
        totals=aggregates(table),
        summary=judge_samples(records, str(samples), rules=rules, catalog=catalog),
        notes=(*notes, *more, *no_numbers),
    )


def _components(scored: Scored) -> list[Component]:
    asked = {name: values for name, values in scored.samples.components.items() if np.isfinite(values).any()}
    # Exactly 0 where all are equal, which rounding hides.
    variances = {name: float(np.ptp(known(values)) and np.nanvar(values)) for name, values in asked.items()}
    total = sum(variances.values())
    return [
        Component(
            name,
            len(known(values)),
            float(np.nanmean(values)),
            variances[name] ** 0.5,
            variances[name] / total if total > 0 else 0.0,
            rank_correlation(values, scored.label, scored.blocks),
        )
        for name, values in asked.items()
    ]
