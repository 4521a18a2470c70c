"""The pages of rules, made from the catalogue: an index, a page for each rule, and what to log for them."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import get_args

from tracker_diag.metrics.alias_files import FOLDER, GENERIC, Aliases, load
from tracker_diag.metrics.own import BY_CANARY, BY_INTEGRATION, SAMPLED
from tracker_diag.metrics.registry import training
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.cases import load_cases, series
from tracker_diag.rules.conditions import Way, Ways, signals_of
from tracker_diag.rules.in_words import WayInWords, conditions, parts, places, shown, spared, ways
from tracker_diag.rules.incidents import DAMAGE
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Link, Rule
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.recommendation import NOT_TO_BE_TRUSTED
from tracker_diag.rules.record import TIERS, record_of, records, tier_of, why

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
        "evaluation falls after its cause. If no cause is known, the fall itself stays *warn*. The tier says how well",
        "a rule has been tested since its last change:",
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
    return "\n".join(
        [
            f"# {rule.id} {rule.name}",
            "",
            f"**{rule.title}.** {_head(rule)}",
            "",
            *_part("What it detects", [_linked(_detects(rule))]),
            *_part("Why it matters", [_linked(rule.rationale)]),
            *_part("Example", _example(rule)),
            *_part("When to ignore", (f"- {_linked(text)}" for text in rule.false_positives)),
            *_part("Fix", (f"{i}. {_linked(text)}" for i, text in enumerate(rule.remedy, 1))),
            "## Settings",
            "",
            *_settings(rule),
            "",
            *_part("Other rules", _others(rule)),
            *_part("Record of alarms", [_record(rule)]),
            *_part("Where the numbers come from", [_linked(rule.calibration)]),
            *_inputs(rule),
            *_part("References", (f"- <{url}>" for url in rule.references)),
        ]
    )


def _head(rule: Rule) -> str:
    """What an alert of it means for the run."""
    parts = [f"Severity: {rule.severity}", f"Tier: [{tier_of(rule)}](README.md)"]
    parts.append(f"Link: [{rule.link.replace('_', ' ')}](../triage.md#3-what-broke-first)")
    if rule.algorithms:
        names = ", ".join(name.upper() for name in rule.algorithms)
        parts.append(f"Only for {names}, or if the algorithm is not known")
    if rule.severity == "info" or tier_of(rule) == "candidate":
        parts.append("Alone, it raises no alert")
    else:
        parts.append(f"[Advice](../triage.md#1-is-the-run-being-harmed) while it fires: {_advice(rule)}")
    return ". ".join(parts) + "."


def _advice(rule: Rule) -> str:
    if rule.severity != "error" and rule.link not in {*NOT_TO_BE_TRUSTED, DAMAGE}:
        return "Watch"
    alone = [_needed(rule, way) for way in conditions(rule)]
    slow = any(names and all(training(name).unit == "s" for name in names) for names in alone)
    return "Stop. If only times have grown: Watch" if slow else "Stop"


def _others(rule: Rule) -> Iterator[str]:
    """Which rules it silences, and which are its symptoms."""
    named = {each.id: f"[{each.id}]({each.id}.md) {each.name}" for each in catalog()}
    quiet, symptoms = (", ".join(named[other] for other in ids) for ids in (rule.inhibits, rule.leads_to))
    if quiet:
        where = " on the same tokens" if rule.pairs else ""
        yield f"- While it fires, these{where} join its incident, and raise no alert of their own: {quiet}."
    if symptoms:
        yield f"- If these fire after it, they count as its symptoms: {symptoms}."


def _record(rule: Rule) -> str:
    """How often it was right and wrong; and what a candidate lacks."""
    record = record_of(rule)
    if record is None:
        return f"{why(rule).capitalize()}."
    lines = [f"Of {record.faulty:,} runs with this fault, it found {record.hits:,}"] if record.faulty else []
    lines += [f"Of {record.healthy:,} healthy runs, it alarmed in {record.false_alarms:,}"]
    if 2 * record.hits < record.faulty:
        lines += ["It misses most runs with this fault, so its silence is no proof"]
    if record.needs:
        lines += [f"To raise alerts, it needs {', '.join(record.needs)}"]
    elif rule.id in records().demoted:
        lines += ["With it, all rules together would alarm too often. So it raises no alert"]
    return ". ".join([*lines, "[The records](README.md#the-record-of-each-rule) say which runs these are"]) + "."


def _detects(rule: Rule) -> str:
    text = " ".join(rule.description.split()).removeprefix("Detects ")
    return text[:1].upper() + text[1:]


def _example(rule: Rule) -> list[str]:
    """The series of the first case that fires and in which a value changes, each on its own scale."""
    for case in load_cases(CASES / f"{rule.id}.yaml", rule):
        drawn = {name: series(notation) for name, notation in case.series.items()}
        if case.firing == "never" or not any(map(_moves, drawn.values())):
            continue
        # Of a statistic and that of each step, which are often the same, one is enough.
        twins = {f"{name}_step" for name, values in drawn.items() if drawn.get(f"{name}_step") == values}
        drawn = {name: values for name, values in drawn.items() if name not in twins}
        shown = sorted(drawn.items(), key=lambda item: not _moves(item[1]))[:6]
        width = max(len(name) for name, _ in shown)
        began = "" if case.onset is None else f", and dates the beginning to step {case.onset}"
        last = max(map(len, drawn.values())) - 1
        return [
            f"One of its tests: *{case.name}*. Of steps 0 to {last}, it fires at step {case.firing}{began}.\n",
            "```",
            *(f"{name:{width}} {_curve(values)} {_span(values)}" for name, values in shown),
            "```",
        ]
    return []


def _moves(values: list[float]) -> bool:
    return max(values) > min(values)


def _span(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if _moves(values) else f"{values[0]:.3g} throughout"


def _curve(values: list[float]) -> str:
    if not _moves(values):
        return "─" * 40
    (curve,) = heights([[*enumerate(values)]], 0, len(values) - 1, 40)
    return bars(curve, 40)


def _inputs(rule: Rule) -> list[str]:
    """What it needs to see, in which of its conditions, and which trainers log it."""
    used = _used(rule)
    rows: list[str] = []
    evidence: list[str] = []
    for name in sorted({ref.metric for ref in rule.series() if ref.metric}):
        if name not in used:
            evidence.append(f"`{name}`")
            continue
        metric = training(name)
        givers = [file.framework for file in alias_files() if name in file.metrics and file.framework != GENERIC]
        given = [f"`samples` with {SAMPLED[name]}"] if name in SAMPLED else []
        given += ["[a canary](../canary.md)"] if name in BY_CANARY else []
        given += [f"the integration of {BY_INTEGRATION[name]}"] if name in BY_INTEGRATION else []
        given += [f"logs of {', '.join(givers)}" if len(givers) <= FEW else "most trainers"] if givers else []
        what = f"{_cell(metric.meaning)} ({metric.unit})"
        rows.append(f"| `{name}` | {what} | {used[name]} | {'; '.join(given) or NOBODY} |")
    which = "A condition cannot hold without the inputs that it needs. [What to log](../eyes.md) lists the trainers."
    head = "| metric | what it is | used in condition | logged by |"
    table = [which, "", head, "|---|---|---|---|", *rows] if rows else []
    also = f"If they are logged, it also shows {', '.join(evidence)}." if evidence else ""
    blocks = [block for block in (_tensors(rule), "\n".join(table), also) if block]
    return _part("Inputs", ["\n\n".join(blocks)])


FEW = 6
"""Trainers that are named one by one; of more, the page says that they are most."""


def _used(rule: Rule) -> dict[str, str]:
    """The metrics that decide whether it fires, or whether that is a note, each with where."""
    used: dict[str, list[str]] = {name: [] for name in _read(rule, (*rule.when, *rule.harmless))}
    for i, way in enumerate(conditions(rule), 1):
        needed, read = _needed(rule, way), _read(rule, (way.model_copy(update={"unless": ()}),))
        for name, where in used.items():
            if name in way.without:
                where.append(f"{i} (if not logged)")
            elif name in read:
                where.append(f"{i}" if name in needed else f"{i} (as one of several)")
    exceptions = _read(rule, rule.when)
    other = {name: "an exception" if name in exceptions else "the note" for name in used}
    return {name: ", ".join(where) or other[name] for name, where in used.items()}


def _read(rule: Rule, ways: Ways) -> set[str]:
    """The metrics that `ways` read."""
    signals = (rule.signals[name] for name in signals_of(ways, rule.predicates))
    metrics = {ref.metric for signal in signals for ref in signal.refs() if ref.metric}
    return metrics.union(*(_metrics_in((*way.needs, *way.without)) for way in ways))


def _metrics_in(names: Iterable[str]) -> set[str]:
    """Those of `names`, of metrics or statistics, that are metrics."""
    return {metric for name in names if (metric := SeriesRef.parse(name).metric)}


def _needed(rule: Rule, way: Way) -> set[str]:
    """The metrics without which `way` cannot hold."""
    needed = _metrics_in(way.needs)
    for part in way.all:
        names = (part,) if isinstance(part, str) else part.any
        needed |= set.intersection(*(_needed_by(rule, name) for name in names))
    return needed


def _needed_by(rule: Rule, name: str) -> set[str]:
    """The same of the signal or predicate called `name`."""
    if name in rule.predicates:
        return set.intersection(*(_needed(rule, way) for way in rule.predicates[name]))
    return {ref.metric for ref in rule.signals[name].refs() if ref.metric}


def _settings(rule: Rule) -> Iterator[str]:
    """When it fires, when it is only a note, its named parts, and what is shown as evidence alone."""
    texts = ways(rule)
    steps = f"has held for {rule.for_steps:,} steps" if rule.for_steps > 1 else "holds"
    if places(rule):
        yield f"{places(rule)}\n"
    yield f"It fires if {'one of these conditions' if len(texts) > 1 else 'this condition'} {steps}:"
    yield ""
    always = [text for text in texts[0].unless if all(text in way.unless for way in texts)]
    always = always if len(texts) > 1 and all(way.holds for way in texts) else []
    for i, (first, *rest) in enumerate(map(partial(_bullets, left_out=always), texts), 1):
        yield f"{i}. {first}"
        yield from (f"    - {text}" for text in rest)
    yield ""
    if always:
        yield f"No condition counts while {' or '.join(_linked(_bare(text)) for text in always)}."
    if rule.harmless:
        yield f"It is a note (severity *info*, no alert) {_linked(spared(rule))}."
    named = [(name, text) for name, text in parts(rule) if any(name in text for text in _texts(rule, texts))]
    if named:
        yield from ("", "The conditions in italics:", "", *(f"- {name}: {_linked(text)}." for name, text in named), "")
    if shown(rule):
        yield f"As evidence alone, it shows: {_linked(', '.join(shown(rule)))}."
    yield ""
    ends = "no condition holds" if len(texts) > 1 else "it does not hold"
    yield f"The finding ends after more than {rule.keep_firing_steps:,} steps on which {ends}."
    yield "Its level must also be [back](../own-rules.md#write-a-rule)."
    yield "[Signals](../own-rules.md#signals) explains words such as *rises*."
    yield "[The fields](../own-rules.md#write-a-rule) say how steps are counted, and when the numbers are smaller."


def _texts(rule: Rule, conditions: Iterable[WayInWords]) -> list[str]:
    """All texts that may name a predicate."""
    of_ways = [text for way in conditions for text in (*way.holds, *way.unless)]
    return [*of_ways, *(text for _, text in parts(rule)), *([spared(rule)] if rule.harmless else [])]


def _bullets(way: WayInWords, left_out: Collection[str]) -> list[str]:
    """The parts of one condition, without the exceptions that hold for all conditions."""
    unless = [text for text in way.unless if text not in left_out]
    first, *rest = [_linked(_bare(text)) for text in way.holds] or [f"not: {_linked(_bare(unless.pop(0)))}"]
    excluded = [f"not if {_linked(_bare(text))}" for text in unless]
    return [first, *(f"and {text}" for text in rest), *excluded, *(f"only if {text}" for text in way.asked)]


def _bare(text: str) -> str:
    """`text` without brackets around all of it."""
    depth = list(accumulate((letter == "(") - (letter == ")") for letter in text))
    return text[1:-1] if text[:1] == "(" and 0 not in depth[:-1] else text


def _linked(text: str) -> str:
    """`text` in one line, with a link for each rule."""
    known, line = {rule.id for rule in catalog()}, " ".join(text.split())
    return re.sub(r"\b[A-Z]{3}\d{3}\b", lambda it: f"[{it[0]}]({it[0]}.md)" if it[0] in known else it[0], line)


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
    what = " [Metrics](../metrics.md) explains `p95` and the other statistics."
    return f"[`observe`](../inputs.md) with {pairs}.{of_masks}{more}{what}"


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
