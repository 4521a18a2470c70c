"""Checks: what the reward pays for that it should not. Each gives what it sees, or why it could not look."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tracker_diag.rules.loader import rule_called
from tracker_diag.rules.model import Severity
from tracker_diag.samples.audit.estimates import (
    FEWEST,
    FEWEST_OF_A_KIND,
    Estimate,
    advantage_of,
    beyond,
    blocks_of,
    mean,
    pairwise,
    rank_correlation,
)
from tracker_diag.samples.audit.overlap import Prompts
from tracker_diag.samples.rewards import known, solved_of
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray

FOLLOWS = 0.3
"""A rank correlation below which a reward does not follow its labels, and above which it follows something else."""
PAID = 0.6
"""A kind is paid if a sample of it is this likely to earn more than another as right."""
TELLS = 0.75
"""The same from which on a part of the reward tells right from wrong."""
WRONG_PAID = 0.5
"""Of what a right answer earns: what one part may pay for a wrong one."""
CLAIMED = 0.2
"""Of wrong answers: how many may claim success."""
DISTINCT = 0.6
"""Of pairs of answers to one prompt, with lengths balanced: in how many the better one must have more reward. A coin
has half of them; reward models that are in use have about 0.7 to 0.95."""
REPEATED = 0.2
"""Of all responses: how many may repeat themselves, as REW012 has it."""
SHOWN = 8
"""Rows that a finding names."""


class Kind(NamedTuple):
    """What all findings of one name share."""

    rule: str | None
    """The rule of the catalogue that looks for the same in a run."""
    severity: Severity
    title: str

    @property
    def remedy(self) -> str:
        """The first thing to do: that of its rule."""
        if self.rule is None:
            return "Take them out of one of the two; what the evaluation said so far does not count."
        return rule_called(self.rule).remedy[0]


KINDS: Mapping[str, Kind] = {
    "reward-sign-confusion": Kind("REW004", "error", "The reward falls where answers get better"),
    "uncorrelated-proxy": Kind("REW005", "warn", "The reward does not follow the label"),
    "length-inflation": Kind("REW011", "warn", "Long answers are paid for their length"),
    "tool-hacking": Kind("REW016", "warn", "Tool calls are paid for themselves"),
    "repetition": Kind("REW012", "warn", "Responses repeat themselves"),
    "refusal-drift": Kind("REW013", "warn", "Refusals are paid"),
    "format-hacking": Kind("REW015", "warn", "Form is paid without right answers"),
    "pseudo-success": Kind("REW017", "warn", "Wrong answers claim success"),
    "judge-bias": Kind("REW014", "warn", "The judge has a taste"),
    "dead-component": Kind("REW020", "info", "A part of the reward never varies"),
    "contamination": Kind(None, "error", "Evaluation prompts are in the training set"),
}


@dataclass(frozen=True)
class AuditFinding:
    """One thing that is wrong with the samples."""

    name: str
    """As in `name` of a rule; a key of `KINDS`."""
    severity: Severity
    summary: str
    rows: tuple[int, ...]
    """Samples to read, by their place from 0."""

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]


@dataclass(frozen=True)
class Scored:
    """Samples with what the checks share."""

    samples: Samples
    prompts: Prompts
    right: Float64Array
    """1, 0 or NaN: by `success`, `correct`, a verifier or a person, the first that is known and says yes or no."""
    label: Float64Array
    """The same, or where nobody says yes or no a score of a person or a verifier."""
    label_name: str
    beyond: Float64Array
    """What of the reward the label does not explain."""
    blocks: IntArray

    @classmethod
    def from_samples(cls, samples: Samples, prompts: Prompts) -> "Scored":
        """The first label that enough samples have."""
        labels = {"success": solved_of(samples), "verifier": samples["verifier"], "human": samples["human"]}
        enough = {name: values for name, values in labels.items() if len(known(values)) >= FEWEST}
        sharp = {name: values for name, values in enough.items() if np.isin(known(values), (0, 1)).all()}
        name = next(iter(sharp), next(iter(enough), ""))
        label = enough.get(name, np.full(samples.n, np.nan))
        right = label if name in sharp else np.full(samples.n, np.nan)
        group = samples["group"]
        groups = group if np.isfinite(group).all() else np.arange(samples.n)
        return cls(samples, prompts, right, label, name, beyond(samples["reward"], label), blocks_of(groups))

    def finding(self, name: str, summary: str, among: BoolArray) -> AuditFinding:
        """A finding; rows to read are those with the highest reward in `among`."""
        places = np.flatnonzero(among)
        reward = np.nan_to_num(self.samples["reward"][places], nan=-np.inf)
        highest = places[np.argsort(-reward, kind="stable")[:SHOWN]]
        return AuditFinding(name, KINDS[name].severity, summary, tuple(highest.tolist()))

    def as_right(self, word: str) -> str:
        """`word`, and whom the samples are held against."""
        return f"{word} others with the same {self.label_name}" if self.label_name else f"{word} others"


def agreement(scored: Scored) -> dict[str, Estimate]:
    """The reward's rank correlation with each label that there is."""
    samples = scored.samples
    labels = {"success": solved_of(samples), **{name: samples[name] for name in ("verifier", "human", "judge")}}
    estimates = {name: rank_correlation(samples["reward"], label, scored.blocks) for name, label in labels.items()}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def follows_labels(scored: Scored) -> list[AuditFinding] | str:
    """Whether the reward follows the label."""
    if not scored.label_name:
        return "no success, correct, verifier or human"
    rho = rank_correlation(scored.samples["reward"], scored.label, scored.blocks)
    if rho is None:
        return f"reward or {scored.label_name} does not vary"
    rows = np.isfinite(scored.label) & (scored.label <= np.nanmedian(scored.label))
    if rho.high < 0:
        summary = f"the reward falls where {scored.label_name} rises: {_rho(rho)}"
        return [scored.finding("reward-sign-confusion", summary, rows)]
    if rho.high < FOLLOWS:
        summary = f"the reward does not follow {scored.label_name}: {_rho(rho)}"
        return [scored.finding("uncorrelated-proxy", summary, rows)]
    return []


def better_paid(scored: Scored) -> list[AuditFinding] | str:
    """Whether of two answers to one prompt the better one has more reward, whichever is longer."""
    shares = pairwise(scored.samples, scored.label, scored.blocks)
    if "all" not in shares:
        return f"fewer than {FEWEST} pairs of answers to one prompt (group) of which one is better"
    rows = scored.label <= np.nanmedian(scored.label)
    long, short, balanced = (shares.get(name, shares["all"]) for name in ("longer", "shorter", "balanced"))
    if short.high < 0.5 < long.low:
        summary = f"where the shorter of two answers is better, it has more reward in {_percent(short)} of the pairs"
        return [scored.finding("length-inflation", summary, rows)]
    reversed_ = balanced.high < 0.5
    if balanced.high >= DISTINCT or (reversed_ and _falls(scored)):  # which `follows_labels` says
        return []
    summary = f"of two answers the better one has more reward in {_percent(balanced)} of the pairs, lengths balanced"
    return [scored.finding("reward-sign-confusion" if reversed_ else "uncorrelated-proxy", summary, rows)]


def _falls(scored: Scored) -> bool:
    """Whether the reward falls where the label rises, over all samples."""
    rho = rank_correlation(scored.samples["reward"], scored.label, scored.blocks)
    return rho is not None and rho.high < 0


def repetition(scored: Scored) -> list[AuditFinding] | str:
    """Whether many responses repeat themselves, and whether that is paid."""
    repeats = scored.samples["repeats"]
    share = mean(repeats, np.isfinite(repeats), scored.blocks)
    if share is None:
        return f"text or tokens of fewer than {FEWEST} samples"
    findings = _paid_kind(scored, repeats, "repetition", "responses that repeat themselves")
    if not findings and share.low > REPEATED:
        summary = f"{_percent(share)} of the responses repeat themselves"
        findings = [scored.finding("repetition", summary, repeats > 0)]
    return findings


def refusal(scored: Scored) -> list[AuditFinding] | str:
    """Whether refusals are paid."""
    if not np.isfinite(scored.samples["refuses"]).any():
        return "no text"
    return _paid_kind(scored, scored.samples["refuses"], "refusal-drift", "refusals")


def format_paid(scored: Scored) -> list[AuditFinding] | str:
    """Whether a part of the reward that does not tell right from wrong pays wrong answers well."""
    parts = scored.samples.components
    wrong, of_right = scored.right == 0, known(scored.samples["reward"][scored.right == 1])
    if not parts:
        return "no components"
    if min(wrong.sum(), len(of_right)) < FEWEST_OF_A_KIND:
        return f"fewer than {FEWEST_OF_A_KIND} right or wrong answers, by success, correct, verifier or human"
    level = float(of_right.mean())
    findings: list[AuditFinding] = []
    for name, values in parts.items():
        pays = mean(values, wrong, scored.blocks)
        tells = advantage_of(scored.right, values, scored.blocks)
        if pays and level > 0 and pays.low > WRONG_PAID * level and (tells is None or tells.high < TELLS):
            summary = (
                f"the part {name} alone pays a wrong answer {pays.value:.3g}, and all of a right one earns {level:.3g}"
            )
            findings.append(scored.finding("format-hacking", summary, wrong))
    return findings


def pseudo_success(scored: Scored) -> list[AuditFinding] | str:
    """Whether wrong answers claim success."""
    claims, wrong = scored.samples["claims"], scored.right == 0
    share = mean(claims, wrong, scored.blocks)
    if share is None:
        return f"fewer than {FEWEST} wrong answers with text, by success, correct, verifier or human"
    if share.low <= CLAIMED:
        return []
    paid = advantage_of(claims, np.where(wrong, scored.samples["reward"], np.nan), scored.blocks)
    more = ", and earn more than those that do not" if paid and paid.low > 0.5 else ""
    summary = f"{_percent(share)} of the wrong answers claim success{more}"
    return [scored.finding("pseudo-success", summary, wrong & (claims > 0))]


def judge_style(scored: Scored) -> list[AuditFinding] | str:
    """Whether of answers that are as right the judge prefers the longer or the more decorated ones."""
    judge = scored.samples["judge"]
    if len(known(judge)) < FEWEST:
        return f"a judge's score of fewer than {FEWEST} samples"
    taste = beyond(judge, scored.label)
    findings: list[AuditFinding] = []
    for column, words in (("length", "longer responses"), ("marks", "Markdown and exclamation marks")):
        size = scored.samples[column]
        rho = rank_correlation(taste, size, scored.blocks)
        if rho and rho.low > FOLLOWS:
            summary = f"the judge prefers {words} {scored.as_right('to')}: {_rho(rho)}"
            findings.append(scored.finding("judge-bias", summary, size >= np.nanquantile(size, 0.9)))
    return findings


def dead_parts(scored: Scored) -> list[AuditFinding] | str:
    """Parts of the reward that never vary while another one does."""
    asked = {name: known(values) for name, values in scored.samples.components.items()}
    asked = {name: values for name, values in asked.items() if len(values) >= FEWEST}
    if len(asked) < 2:
        return "fewer than two components"
    dead = {name: values for name, values in asked.items() if not np.ptp(values)}
    if len(dead) == len(asked):
        return "no component varies"
    return [
        AuditFinding("dead-component", "info", f"the part {name} is {values[0]:.4g} in all {len(values):,} samples", ())
        for name, values in dead.items()
    ]


def contamination(scored: Scored) -> list[AuditFinding] | str:
    """Prompts of the evaluation that are in the training set."""
    evaluation, hits = scored.prompts.evaluation, scored.prompts.overlap
    if evaluation is not None and not any(evaluation):
        return "no record of the evaluation has a prompt"
    if evaluation is None or not hits:
        return []
    exact = sum(hit.exact for hit in hits)
    summary = (
        f"{len(hits):,} of {len(evaluation):,} evaluation prompts are in the training set: {exact:,} whole, "
        f"{len(hits) - exact:,} by 8 to 13 words; "
        f"the evaluation's row {hits[0].row} is the training's {hits[0].training}"
    )
    return [AuditFinding("contamination", "error", summary, tuple(hit.training for hit in hits[:SHOWN]))]


def _paid_by_size(scored: Scored, column: str, name: str, words: str) -> list[AuditFinding] | str:
    """Whether of answers that are as right those with more of `column` earn more."""
    if not scored.label_name:
        return "no success, correct, verifier or human: whether it is deserved is unknown"
    size = scored.samples[column]
    if len(known(size)) < FEWEST:
        return f"{column} of fewer than {FEWEST} samples"
    rho = rank_correlation(scored.beyond, size, scored.blocks)
    if rho is None or rho.low <= FOLLOWS:
        return []
    summary = f"{words} earn more {scored.as_right('than')}: {_rho(rho)}"
    return [scored.finding(name, summary, size >= np.nanquantile(size, 0.9))]


CHECKS: Mapping[str, Callable[[Scored], list[AuditFinding] | str]] = {
    "labels": follows_labels, "pairs": better_paid,
    "length": partial(_paid_by_size, column="length", name="length-inflation", words="longer responses"),
    "tool calls": partial(_paid_by_size, column="calls", name="tool-hacking", words="more tool calls"),
    "repetition": repetition,
    "refusal": refusal, "format": format_paid, "claims of success": pseudo_success, "judge": judge_style,
    "dead components": dead_parts, "evaluation": contamination,
}  # fmt: skip


def _paid_kind(scored: Scored, kind: Float64Array, name: str, words: str) -> list[AuditFinding]:
    paid = advantage_of(kind, scored.beyond, scored.blocks)
    if paid is None or paid.low <= PAID:
        return []
    share = float(np.mean(known(kind) > 0))
    summary = f"{words}, {share:.1%} of all, earn more {scored.as_right('than')} in {_percent(paid)} of the pairs"
    return [scored.finding(name, summary, kind > 0)]


def _rho(estimate: Estimate) -> str:
    return f"rank correlation {estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f}, {estimate.n:,} samples)"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"
