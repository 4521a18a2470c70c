"""The pages of rules, made from the catalogue: an index, a page for each rule, and what to log for them."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import get_args

from tracker_diag.metrics.alias_files import FOLDER, GENERIC, Aliases, load
from tracker_diag.metrics.own import BY_CANARY, BY_INTEGRATION, SAMPLED
from tracker_diag.metrics.registry import training
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.cases import load_cases, series
from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.in_words import fires, parts, places, shown, spared
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Link, Rule
from tracker_diag.rules.record import TIERS, records, tier_of, why

CASES = Path(__file__).parents[1] / "tests" / "rules"


def rules_page() -> str:
    """docs/rules/README.md, the list of all rules."""
    lines = [
        "# Rules",
        "",
        "Each rule has a page. `tracker-diag rules show <ID>` prints it in the terminal. `make docs` makes these pages",
        "from `tracker_diag/rules/catalog`.",
        "",
        "| severity | meaning |",
        "|---|---|",
        "| info | something moved. It is listed, and gives no alert |",
        "| warn | the update or the data is being harmed, or soon will be. Look today |",
        "| error | the outcome is harmed: reward or evaluation has lost what it had gained |",
        "",
        "Findings that belong together are one incident, with one alert. An incident becomes an *error* if reward or",
        "evaluation falls after its cause. The tier says how well a rule has been tested since its last change:",
        "",
        "| tier | meaning |",
        "|---|---|",
        "| fact | it cannot be a false alarm |",
        "| measured | it found its fault in 5 runs of 2 tasks, and alarmed in at most 1 % of 200 healthy runs |",
        "| candidate | not tested well enough. By itself, it is a note. In an incident of another rule, it counts |",
        "",
        "A low number of true findings means that a rule misses many runs with its fault. Another rule may name them.",
        "[The last table](#the-record-of-each-rule) has these numbers, and says what each candidate lacks.",
        "[How it works](../how.md#which-rules-may-alarm) has the limit on all rules together. Your own rules have the",
        "severity that you write: [rules of your own](../own-rules.md).",
        "",
    ]
    for link in get_args(Link):
        rules = [rule for rule in catalog() if rule.link == link]
        if rules:
            lines += [f"## {link.replace('_', ' ').capitalize()}", ""]
            lines += ["| rule | detects | severity | tier |", "|---|---|---|---|"]
            for rule in rules:
                cells = f"[{rule.id}]({rule.id}.md) {rule.name}", _cell(_detects(rule)), rule.severity, tier_of(rule)
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
    lines += ["## The record of each rule", "", *(f"{name}: {what}.  " for name, what in records().corpora.items()), ""]
    lines += ["| rule | record |", "|---|---|"]
    by_tier = sorted(catalog(), key=lambda rule: (TIERS.index(tier_of(rule)), rule.id))
    lines += [f"| [{rule.id}]({rule.id}.md) {rule.name} | {why(rule)} |" for rule in by_tier]
    return "\n".join([*lines, ""])


@cache
def alias_files() -> tuple[Aliases, ...]:
    """Of each framework, the names that it logs."""
    return tuple(load(file) for file in sorted(FOLDER.glob("*.yaml")))


def rule_page(rule: Rule) -> str:
    """The page of one rule."""
    suppressed = ", ".join(f"[{other}]({other}.md)" for other in rule.inhibits) or "none"
    leads = ", ".join(f"[{other}]({other}.md)" for other in rule.leads_to) or "none"
    quiet = " By itself, it raises no alert." if tier_of(rule) == "candidate" and rule.severity != "info" else ""
    link = rule.link.replace("_", " ")
    return "\n".join(
        [
            f"# {rule.id} {rule.name}",
            "",
            f"**{rule.title}.** Severity: {rule.severity}. Tier: [{tier_of(rule)}](README.md). Checks: {link}.{quiet}",
            "",
            *_part("What it detects", [_detects(rule)]),
            *_part("Why it matters", [" ".join(rule.rationale.split())]),
            *_part("Example", _example(rule)),
            *_part("Fix", (f"{i}. {' '.join(text.split())}" for i, text in enumerate(rule.remedy, 1))),
            *_part("When to ignore", (f"- {' '.join(text.split())}" for text in rule.false_positives)),
            *_inputs(rule),
            "## Settings",
            "",
            *_settings(rule),
            "[Signals](../own-rules.md#signals) explains verbs such as *rises*, and how to write a rule of your own.",
            "",
            f"Suppresses: {suppressed}. Leads to: {leads}.",
            "",
            *_part("Record of alarms", [f"{why(rule).capitalize()}."]),
            *_part("Where the numbers come from", [" ".join(rule.calibration.split())]),
            *_part("References", (f"- <{url}>" for url in rule.references)),
        ]
    )


def _detects(rule: Rule) -> str:
    text = " ".join(rule.description.split()).removeprefix("Detects ")
    return text[:1].upper() + text[1:]


def _example(rule: Rule) -> list[str]:
    """The series of the first case that fires and in which a value changes, each on its own scale."""
    for case in load_cases(CASES / f"{rule.id}.yaml", rule):
        drawn = {name: series(notation) for name, notation in case.series.items()}
        moving = {name: values for name, values in drawn.items() if max(values) > min(values)}
        if case.firing == "never" or not moving:
            continue
        width = max(map(len, moving))
        began = "" if case.onset is None else f", and dates the beginning to step {case.onset}"
        last = max(map(len, drawn.values())) - 1
        return [
            f"One of its tests: *{case.name}*. Of steps 0 to {last}, it fires at step {case.firing}{began}.\n",
            "```",
            *(f"{name:{width}} {_curve(values)} {_span(values)}" for name, values in [*moving.items()][:4]),
            "```",
        ]
    return []


def _span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"


def _curve(values: list[float]) -> str:
    (curve,) = heights([[*enumerate(values)]], 0, len(values) - 1, 40)
    return bars(curve, 40)


def _inputs(rule: Rule) -> list[str]:
    """What it needs to see, and which trainers log it."""
    asked = _deciding(rule)
    rows: list[str] = []
    evidence: list[str] = []
    for name in sorted({ref.metric for ref in rule.series() if ref.metric}):
        if name not in asked:
            evidence.append(f"`{name}`")
            continue
        metric = training(name)
        givers = [file.framework for file in alias_files() if name in file.metrics and file.framework != GENERIC]
        given = [f"`samples` with {SAMPLED[name]}"] if name in SAMPLED else []
        given += ["[a canary](../canary.md)"] if name in BY_CANARY else []
        given += [f"the integration of {BY_INTEGRATION[name]}"] if name in BY_INTEGRATION else []
        given += [f"logs of {', '.join(givers)}"] if givers else []
        rows.append(f"| `{name}` | {metric.unit} | {_cell(metric.meaning)} | {'; '.join(given) or NOBODY} |")
    table = ["| metric | unit | what it is | logged by |", "|---|---|---|---|", *rows] if rows else []
    also = f"If they are logged, it also shows {', '.join(evidence)}." if evidence else ""
    blocks = [block for block in (_tensors(rule), "\n".join(table), also) if block]
    return _part("What it needs to see", ["\n\n".join(blocks)])


def _deciding(rule: Rule) -> set[str]:
    """The metrics that decide whether it fires, and whether that is a note."""
    ways = (*rule.when, *rule.harmless)
    signals = (rule.signals[name] for name in signals_of(ways, rule.predicates))
    read = {ref.metric for signal in signals for ref in signal.refs() if ref.metric}
    return read | {name for way in ways for name in way.needs}


def _settings(rule: Rule) -> Iterator[str]:
    """When it fires, when it is only a note, its named parts, and what is shown as evidence alone."""
    ways, read = fires(rule), places(rule)
    steps = f"for {rule.for_steps:,} steps" if rule.for_steps > 1 else "at a step"
    pairs = f" It reads the pairs {read}." if read else ""
    if len(ways) == 1:
        yield f"It fires if this holds {steps}: {_linked(ways[0])}.{pairs}"
    else:
        yield f"It fires if any of these holds {steps}.{pairs}"
        yield ""
        yield from (f"{i}. {_linked(text[:1].upper() + text[1:])}." for i, text in enumerate(ways, 1))
    blocks = [f"It is a note, {_linked(spared(rule))}."] if rule.harmless else []
    blocks += ["\n".join(f"- {name}: {_linked(text)}." for name, text in parts(rule))] if rule.predicates else []
    blocks += [f"Shown as evidence, and not asked for: {_linked(', '.join(shown(rule)))}."] if shown(rule) else []
    for block in blocks:
        yield f"\n{block}"
    yield ""


def _linked(text: str) -> str:
    """`text` with a link for each rule."""
    known = {rule.id for rule in catalog()}
    return re.sub(r"\b[A-Z]{3}\d{3}\b", lambda it: f"[{it[0]}]({it[0]}.md)" if it[0] in known else it[0], text)


def _tensors(rule: Rule) -> str:
    """What `observe` must be given."""
    asked = rule.pairs or tuple(dict.fromkeys(ref.pair for ref in rule.series() if ref.stat and ref.pair))
    if not asked:
        return ""
    pairs = "; or ".join(f"{PAIRS[pair]} (`{pair}`)" for pair in asked)
    named = {ref.slice for ref in rule.series() if ref.stat and ref.slice} | {*rule.slices}
    of_masks = " Masks must show where tool results are." if named & {"text_only", "post_tool"} else ""
    dimensions = sorted({name.partition(":")[0] for name in named if ":" in name})
    more = f" Pass also {' and '.join(f'`{dimension}`' for dimension in dimensions)}." if dimensions else ""
    return f"[`observe`](../inputs.md) with {pairs}.{of_masks}{more}"


NOBODY = "no trainer: log it under this name"


def _part(heading: str, lines: Iterable[str]) -> list[str]:
    """Lines under a heading; neither, if there are no lines."""
    full = [line for line in lines if line]
    return [*([f"## {heading}", ""] if heading else []), *full, ""] if full else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


EYES = """\
# What to log

A rule without its inputs is blind. `tracker-diag diagnose RUN --blind` lists what your run lacks. This page lists the
rules that read each input. Log an input under this name, or under your framework's own name. `make docs` makes this
page.

## Metrics

| log | what it is | rules that read it | logged by |
|---|---|---|---|
"""


def eyes_page() -> str:
    """docs/eyes.md: which input lets which rules see, and which frameworks log it."""
    readers: dict[str, list[str]] = {}
    of_tensors: dict[str, list[str]] = {}
    for rule in catalog():
        for pair in rule.pairs:
            of_tensors.setdefault(pair, []).append(f"[{rule.id}](rules/{rule.id}.md)")
        for name in sorted({ref.metric for ref in rule.series() if ref.metric}):
            readers.setdefault(name, []).append(f"[{rule.id}](rules/{rule.id}.md)")
    rows = []
    for name, rules in sorted(readers.items(), key=lambda item: -len(item[1])):
        givers = [file.framework for file in alias_files() if name in file.metrics and file.framework != GENERIC]
        givers += [f"`samples` with {SAMPLED[name]}"] if name in SAMPLED else []
        givers += [f"the integration of {BY_INTEGRATION[name]}"] if name in BY_INTEGRATION else []
        meaning = _cell(training(name).meaning)
        rows.append(f"| `{name}` | {meaning} | {', '.join(rules)} | {', '.join(givers) or NOBODY} |")
    tensors = [f"| {PAIRS[pair]} | `{pair}` | {', '.join(rules)} |" for pair, rules in of_tensors.items()]
    head = ["", "## Tensors", "", "| pass to `observe` | pair | rules that read it |", "|---|---|---|"]
    return "\n".join([EYES + "\n".join(rows), *head, *tensors, ""])


PAIRS = {
    "policy": "`logprobs`, `old_logprobs`",
    "mismatch": "`old_logprobs`, `rollout_logprobs`",
    "reference": "`logprobs`, `ref_logprobs`",
}


PAGES: dict[str, Callable[[], str]] = {
    "eyes.md": eyes_page,
    "rules/README.md": rules_page,
    **{f"rules/{rule.id}.md": partial(rule_page, rule) for rule in catalog()},
}
