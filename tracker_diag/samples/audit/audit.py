"""The audit of a file of samples: reward against labels, its parts, what it pays for, prompts that are met twice."""

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
from tracker_diag.samples.audit.checks import AuditFinding, Scored, agreement, check
from tracker_diag.samples.audit.estimates import Estimate, rank_correlation
from tracker_diag.samples.audit.overlap import Hit, duplicates, overlap
from tracker_diag.samples.audit.pairs import answers, pairwise
from tracker_diag.samples.judged import judge_samples
from tracker_diag.samples.marks import marks
from tracker_diag.samples.records import Record, columns_of, prompt_of, text_of
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.tables import samples_table
from tracker_diag.trackers.files.records import read_records

SUSPICIOUS = 8
"""Samples of the reading list beside the highest, the lowest and random ones."""
OFF = 1e-3
"""Part of the reward's spread from which on its components do not sum to it."""


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
    values: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Audit:
    """What a file of samples comes to."""

    source: str
    samples: Samples = field(repr=False)
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
    prompts: int
    """Different prompts, by group, or by text where there are no groups."""
    duplicates: Sequence[tuple[int, ...]]
    """Prompts that are there more than once: a row of each."""
    evaluation: int | None
    """Rows of the evaluation set, if one was given."""
    overlap: Sequence[Hit]
    reading: Table = field(repr=False)
    prompts_said: Sequence[str | None] = field(repr=False)
    """The prompt of each sample."""
    marks: Sequence[Sequence[str]] = field(repr=False)
    """Of each sample, what is odd about it."""
    summary: Summary | None
    """What the rules say over the training steps; None where no sample has a step."""
    notes: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """All but the texts of the reading list."""
        return {
            "source": self.source,
            "samples": self.samples.n,
            "label": self.label,
            "findings": [asdict(finding) | {"rows": list(finding.rows)} for finding in self.findings],
            "blind": dict(self.blind),
            "agreement": {name: asdict(estimate) for name, estimate in self.agreement.items()},
            "pairs": {name: asdict(estimate) for name, estimate in self.pairs.items()},
            "components": [
                {key: value for key, value in asdict(component).items() if key != "values"}
                for component in self.components
            ],
            "totals": dict(self.totals),
            "prompts": {"different": self.prompts, "twice": [list(rows) for rows in self.duplicates]},
            "evaluation": None
            if self.evaluation is None
            else {"rows": self.evaluation, "overlap": [asdict(hit) for hit in self.overlap]},
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
        MissingExtra: scipy is not installed, or pyarrow where a file is Parquet.
        SourceError: "file: what is wrong".
    """
    read, notes = read_records(Path(samples))
    records = [*answers(read)]
    held_out, more = read_records(Path(evaluation)) if evaluation else (None, ())
    columns, odd = columns_of(records)
    if "reward" not in columns:
        given = ", ".join(map(str, list(records[0])[:12])) or "nothing"
        raise SourceError(f"{samples}: no reward: its records have {given}; expected a number under `reward`")
    if "length" not in columns and "text" in columns:
        columns["length"] = [None if (text := text_of(record)) is None else len(text) for record in records]
        notes = (*notes, "no record has a length: characters of the text are taken for it")
    try:
        given_samples = Samples.of(columns, texts=True)
    except BatchError as error:
        raise SourceError(f"{samples}: {error}") from error
    scored = Scored.from_samples(given_samples)
    findings, blind = check(scored)
    asked = [prompt_of(record) for record in records]
    twice, prompts = _twice(records, asked, given_samples)
    hits = overlap(asked, [prompt_of(record) for record in held_out]) if held_out else []
    findings += [*_about_duplicates(twice, prompts), *_about_overlap(hits, len(held_out or ()))]
    if held_out is not None and not any(map(prompt_of, held_out)):
        blind["evaluation"] = f"no record of {evaluation} has a prompt"
    if not any(asked):
        blind["prompts"] = "no record has a prompt"
    own = marks(given_samples)
    notes = (*notes, *more, *(f"values of {name} that are no numbers, left out: {n}" for name, n in odd.items() if n))
    return Audit(
        str(samples),
        given_samples,
        scored.label_name,
        sorted(findings, key=lambda finding: ("error", "warn", "info").index(finding.severity)),
        blind,
        agreement(scored),
        pairwise(given_samples, scored.label, scored.blocks),
        _components(scored),
        aggregates(given_samples),
        prompts,
        twice,
        None if held_out is None else len(held_out),
        hits,
        samples_table(given_samples, 0, _suspicious(own, given_samples)),
        asked,
        own,
        judge_samples(records, str(samples), rules=rules, catalog=catalog),
        (*notes, *_unsummed(given_samples)),
    )


def _components(scored: Scored) -> list[Component]:
    asked = {name: values for name, values in scored.samples.components.items() if np.isfinite(values).any()}
    # Exactly 0 where all are equal, which rounding hides.
    variances = {
        name: float(np.nanvar(values)) if np.nanmin(values) < np.nanmax(values) else 0.0
        for name, values in asked.items()
    }
    total = sum(variances.values())
    return [
        Component(
            name,
            int(np.isfinite(values).sum()),
            float(np.nanmean(values)),
            variances[name] ** 0.5,
            variances[name] / total if total > 0 else 0.0,
            rank_correlation(values, scored.label, scored.blocks),
            tuple(values[np.isfinite(values)].tolist()),
        )
        for name, values in asked.items()
    ]


def _twice(
    records: Sequence[Record], prompts: Sequence[str | None], samples: Samples
) -> tuple[list[tuple[int, ...]], int]:
    """Prompts that are there twice, and how many there are; the same prompt at another step is no second one."""
    steps = [repr(record.get("step")) for record in records]  # it may be anything
    groups = [record.get("group") for record in records]
    if np.isfinite(samples["group"]).all():
        identity = [(step, repr(group)) for step, group in zip(steps, groups, strict=True)]
        by_step: dict[str, list[int]] = {}
        for row, step in enumerate(steps):
            by_step.setdefault(step, []).append(row)
        rows_twice = [
            tuple(rows[i] for i in same)
            for rows in by_step.values()
            for same in duplicates([prompts[row] for row in rows], [identity[row] for row in rows])
        ]
        return rows_twice, len(set(identity))
    known = [prompt for prompt in prompts if prompt is not None]
    return duplicates(prompts, prompts), len(set(known))


def _about_duplicates(twice: Sequence[tuple[int, ...]], prompts: int) -> list[AuditFinding]:
    if not twice:
        return []
    more = sum(len(same) - 1 for same in twice)
    first, second, *_ = twice[0]
    summary = f"{more:,} of {prompts:,} prompts are there a second time, such as rows {first} and {second}"
    rows = tuple(row for same in twice for row in same)[:SUSPICIOUS]
    return [AuditFinding("duplicated-prompts", None, "warn" if more >= 0.05 * prompts else "info", summary, rows)]


def _about_overlap(hits: Sequence[Hit], evaluation: int) -> list[AuditFinding]:
    if not hits:
        return []
    exact = sum(hit.exact for hit in hits)
    summary = (
        f"{len(hits):,} of {evaluation:,} evaluation prompts are in the training set: {exact:,} whole, "
        f"{len(hits) - exact:,} by 8 to 13 words; "
        f"the evaluation's row {hits[0].row} is the training's {hits[0].training}"
    )
    return [AuditFinding("contamination", None, "error", summary, tuple(hit.training for hit in hits[:SUSPICIOUS]))]


def _suspicious(own: Sequence[Sequence[str]], samples: Samples) -> list[int]:
    """Samples with most marks, of these those with the highest reward."""
    reward = np.nan_to_num(samples["reward"], nan=-np.inf)
    marked = [i for i, marks in enumerate(own) if marks]
    return sorted(marked, key=lambda i: (-len(own[i]), -reward[i]))[:SUSPICIOUS]


def _unsummed(samples: Samples) -> list[str]:
    """Where the parts do not sum to the reward: normal where the trainer weighs them, a mistake where it does not."""
    parts = list(samples.components.values())
    reward = samples["reward"]
    if not parts or not np.isfinite(reward).any():
        return []
    gap = np.abs(reward - np.nansum(parts, axis=0))
    known = np.isfinite(gap) & np.isfinite(parts).any(0)
    off = gap[known] > OFF * max(float(np.ptp(reward[np.isfinite(reward)])), 1e-9)
    if not off.any():
        return []
    share, by = off.mean(), gap[known][off].mean()
    summary = f"the components do not sum to the reward in {share:.0%} of the samples, by {by:.3g} in the mean"
    return [f"{summary}: are they weighed, or is one missing?"]
