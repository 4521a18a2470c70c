"""Checks: what the reward pays for that it should not. Each says what it found, or why it could not look."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracker_diag.rules.model import Severity
from tracker_diag.samples.audit.estimates import (
    FEWEST,
    FEWEST_OF_A_KIND,
    Estimate,
    beyond,
    blocks_of,
    mean,
    rank_correlation,
    superiority,
)
from tracker_diag.samples.audit.pairs import pairwise
from tracker_diag.samples.rewards import solved_of
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray

FOLLOWS = 0.3
"""A rank correlation below which a reward does not follow its labels, and above which it follows something else."""
PAID = 0.6
"""How likely a sample of a kind must be to earn more than one that is as right, for the kind to be paid."""
TELLS = 0.75
"""The same from which on a part of the reward tells right from wrong."""
WRONG_PAID = 0.5
"""Of what a right answer earns: what one part may pay for a wrong one."""
CLAIMED = 0.2
"""Of wrong answers: how many may claim success."""
TOLD_APART = 0.6
"""Of pairs of answers to one prompt, with lengths balanced: in how many the better one must have more reward. A coin
has half of them; reward models that are in use have about 0.7 to 0.95."""
REPEATED = 0.2
"""Of all responses: how many may repeat themselves, as REW012 has it."""
SHOWN = 8
"""Rows that a finding names."""


@dataclass(frozen=True)
class AuditFinding:
    """One thing that is wrong with the samples."""

    name: str
    """What is found, as in `name` of a rule."""
    rule: str | None
    """Of the catalogue, if one looks for the same in a run."""
    severity: Severity
    summary: str
    rows: tuple[int, ...]
    """Samples to read, by their place from 0."""


@dataclass(frozen=True)
class Scored:
    """Samples with what the checks share."""

    samples: Samples
    right: Float64Array
    """1, 0 or NaN: by `success`, `correct`, a verifier or a person, the first that is known and says yes or no."""
    label: Float64Array
    """The same, or where nobody says yes or no a score of a person or a verifier."""
    label_name: str
    beyond: Float64Array
    """What of the reward the label does not explain."""
    blocks: IntArray

    @classmethod
    def from_samples(cls, samples: Samples) -> "Scored":
        """The first label that enough samples have."""
        labels = {"success": solved_of(samples), "verifier": samples["verifier"], "human": samples["human"]}
        known = {name: values for name, values in labels.items() if np.isfinite(values).sum() >= FEWEST}
        sharp = {name: values for name, values in known.items() if np.isin(values[np.isfinite(values)], (0, 1)).all()}
        name = next(iter(sharp), next(iter(known), ""))
        label = known.get(name, np.full(samples.n, np.nan))
        right = label if name in sharp else np.full(samples.n, np.nan)
        group = samples["group"]
        groups = group if np.isfinite(group).all() else np.arange(samples.n)
        return cls(samples, right, label, name, beyond(samples["reward"], label), blocks_of(groups))

    def worst(self, among: BoolArray) -> tuple[int, ...]:
        """Rows to read of those in `among`: those with the highest reward."""
        places = np.flatnonzero(among)
        reward = np.nan_to_num(self.samples["reward"][places], nan=-np.inf)
        return tuple(int(i) for i in places[np.argsort(-reward, kind="stable")[:SHOWN]])


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
    rows = scored.worst(np.isfinite(scored.label) & (scored.label <= np.nanmedian(scored.label)))
    if rho.high < 0:
        summary = f"the reward falls where {scored.label_name} rises: {_rho(rho)}"
        return [_finding("reward-sign-confusion", "REW004", "error", summary, rows)]
    if rho.high < FOLLOWS:
        summary = f"the reward does not follow {scored.label_name}: {_rho(rho)}"
        return [_finding("uncorrelated-proxy", "REW005", "warn", summary, rows)]
    return []


def told_apart(scored: Scored) -> list[AuditFinding] | str:
    """Whether of two answers to one prompt the better one has more reward, whichever is longer."""
    shares = pairwise(scored.samples, scored.label, scored.blocks)
    if "all" not in shares:
        return f"fewer than {FEWEST} pairs of answers to one prompt (group) of which one is better"
    rows = scored.worst(scored.label <= np.nanmedian(scored.label))
    long, short, balanced = (shares.get(name, shares["all"]) for name in ("longer", "shorter", "balanced"))
    if short.high < 0.5 < long.low:
        summary = f"where the shorter of two answers is better, it has more reward in {_percent(short)} of the pairs"
        return [_finding("length-inflation", "REW011", "warn", summary, rows)]
    if 0.5 <= balanced.high < TOLD_APART:  # below that the order is turned round, which `follows_labels` says
        summary = (
            f"of two answers the better one has more reward in {_percent(balanced)} of the pairs, lengths balanced"
        )
        return [_finding("uncorrelated-proxy", "REW005", "warn", summary, rows)]
    return []


def length_paid(scored: Scored) -> list[AuditFinding] | str:
    """Whether of answers that are as right the longer ones earn more."""
    return _paid_by_size(scored, "length", "length-inflation", "REW011", "longer responses")


def calls_paid(scored: Scored) -> list[AuditFinding] | str:
    """The same of tool calls."""
    return _paid_by_size(scored, "calls", "tool-hacking", "REW016", "more tool calls")


def repetition(scored: Scored) -> list[AuditFinding] | str:
    """Whether many responses repeat themselves, and whether that is paid."""
    repeats = scored.samples["repeats"]
    share = mean(repeats, np.isfinite(repeats), scored.blocks)
    if share is None:
        return f"text or tokens of fewer than {FEWEST} samples"
    findings = _paid_kind(scored, repeats, "repetition", "REW012", "responses that repeat themselves")
    if not findings and share.low > REPEATED:
        summary = f"{_percent(share)} of the responses repeat themselves"
        findings = [_finding("repetition", "REW012", "warn", summary, scored.worst(repeats > 0))]
    return findings


def refusal(scored: Scored) -> list[AuditFinding] | str:
    """Whether refusals are paid."""
    if not np.isfinite(scored.samples["refuses"]).any():
        return "no text"
    return _paid_kind(scored, scored.samples["refuses"], "refusal-drift", "REW013", "refusals")


def format_paid(scored: Scored) -> list[AuditFinding] | str:
    """Whether a part of the reward that does not tell right from wrong pays wrong answers well."""
    parts = scored.samples.components
    wrong, of_right = scored.right == 0, scored.samples["reward"][scored.right == 1]
    of_right = of_right[np.isfinite(of_right)]
    if not parts:
        return "no components"
    if min(wrong.sum(), len(of_right)) < FEWEST_OF_A_KIND:
        return f"fewer than {FEWEST_OF_A_KIND} right or wrong answers, by success, correct, verifier or human"
    level = float(of_right.mean())
    findings: list[AuditFinding] = []
    for name, values in parts.items():
        pays = mean(values, wrong, scored.blocks)
        tells = superiority(values, scored.right, scored.blocks)
        if pays and level > 0 and pays.low > WRONG_PAID * level and (tells is None or tells.high < TELLS):
            summary = (
                f"the part {name} alone pays a wrong answer {pays.value:.3g}, and all of a right one earns {level:.3g}"
            )
            findings.append(_finding("format-hacking", "REW015", "warn", summary, scored.worst(wrong)))
    return findings


def pseudo_success(scored: Scored) -> list[AuditFinding] | str:
    """Whether wrong answers claim success."""
    claims, wrong = scored.samples["claims"], scored.right == 0
    share = mean(claims, wrong, scored.blocks)
    if share is None:
        return f"fewer than {FEWEST} wrong answers with text, by success, correct, verifier or human"
    if share.low <= CLAIMED:
        return []
    paid = superiority(np.where(wrong, scored.samples["reward"], np.nan), claims, scored.blocks)
    more = ", and earn more than those that do not" if paid and paid.low > 0.5 else ""
    summary = f"{_percent(share)} of the wrong answers claim success{more}"
    return [_finding("pseudo-success", "REW017", "warn", summary, scored.worst(wrong & (claims > 0)))]


def judge_style(scored: Scored) -> list[AuditFinding] | str:
    """Whether of answers that are as right the judge prefers the longer or the more decorated ones."""
    judge = scored.samples["judge"]
    if np.isfinite(judge).sum() < FEWEST:
        return f"a judge's score of fewer than {FEWEST} samples"
    taste = beyond(judge, scored.label)
    findings: list[AuditFinding] = []
    for column, words in (("length", "longer responses"), ("marks", "Markdown and exclamation marks")):
        rho = rank_correlation(taste, scored.samples[column], scored.blocks)
        if rho and rho.low > FOLLOWS:
            high = scored.samples[column] >= np.nanquantile(scored.samples[column], 0.9)
            summary = f"the judge prefers {words} {_as_right(scored, 'to')}: {_rho(rho)}"
            findings.append(_finding("judge-bias", "REW014", "warn", summary, scored.worst(high)))
    return findings


def dead_parts(scored: Scored) -> list[AuditFinding] | str:
    """Parts of the reward that never vary while another one does."""
    asked = {name: values[np.isfinite(values)] for name, values in scored.samples.components.items()}
    asked = {name: values for name, values in asked.items() if len(values) >= FEWEST}
    if len(asked) < 2:
        return "fewer than two components"
    dead = {name: values for name, values in asked.items() if not np.ptp(values)}
    if len(dead) == len(asked):
        return "no component varies"
    return [
        _finding(
            "dead-component", "REW020", "info", f"the part {name} is {values[0]:.4g} in all {len(values):,} samples", ()
        )
        for name, values in dead.items()
    ]


CHECKS: Mapping[str, Callable[[Scored], list[AuditFinding] | str]] = {
    "labels": follows_labels, "pairs": told_apart, "length": length_paid, "tool calls": calls_paid,
    "repetition": repetition, "refusal": refusal, "format": format_paid, "claims of success": pseudo_success,
    "judge": judge_style, "dead components": dead_parts,
}  # fmt: skip


def check(scored: Scored) -> tuple[list[AuditFinding], dict[str, str]]:
    """All findings, and the checks that could not look, with the reason."""
    findings: list[AuditFinding] = []
    blind: dict[str, str] = {}
    for name, look in CHECKS.items():
        reported = look(scored)
        if isinstance(reported, str):
            blind[name] = reported
        else:
            findings += reported
    return findings, blind


def _paid_by_size(scored: Scored, column: str, name: str, rule: str, words: str) -> list[AuditFinding] | str:
    if not scored.label_name:
        return "no success, correct, verifier or human: whether it is deserved cannot be told"
    size = scored.samples[column]
    if np.isfinite(size).sum() < FEWEST:
        return f"{column} of fewer than {FEWEST} samples"
    rho = rank_correlation(scored.beyond, size, scored.blocks)
    if rho is None or rho.low <= FOLLOWS:
        return []
    summary = f"{words} earn more {_as_right(scored)}: {_rho(rho)}"
    return [_finding(name, rule, "warn", summary, scored.worst(size >= np.nanquantile(size, 0.9)))]


def _paid_kind(scored: Scored, kind: Float64Array, name: str, rule: str, words: str) -> list[AuditFinding]:
    paid = superiority(scored.beyond, kind, scored.blocks)
    if paid is None or paid.low <= PAID:
        return []
    share = float(np.mean(kind[np.isfinite(kind)] > 0))
    summary = f"{words}, {share:.1%} of all, earn more {_as_right(scored)} in {_percent(paid)} of the pairs"
    return [_finding(name, rule, "warn", summary, scored.worst(kind > 0))]


def _finding(name: str, rule: str, severity: Severity, summary: str, rows: Sequence[int]) -> AuditFinding:
    return AuditFinding(name, rule, severity, summary, tuple(rows))


def _as_right(scored: Scored, word: str = "than") -> str:
    return f"{word} others with the same {scored.label_name}" if scored.label_name else f"{word} others"


def _rho(estimate: Estimate) -> str:
    return f"rank correlation {estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f}, {estimate.n:,} samples)"


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:.0%} ({estimate.low:.0%} to {estimate.high:.0%})"
