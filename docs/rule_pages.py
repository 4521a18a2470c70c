"""The pages of rules, made from the catalogue: an index, a page for each rule, and what to log for them."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import get_args

import yaml
from pydantic import TypeAdapter

from tracker_diag.metrics.alias_files import FOLDER, GENERIC, Aliases, load
from tracker_diag.metrics.own import BY_CANARY, BY_INTEGRATION, SAMPLED
from tracker_diag.metrics.registry import training
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.cases import load_cases, series
from tracker_diag.rules.compiled import CATALOG
from tracker_diag.rules.conditions import words
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Link, Rule
from tracker_diag.rules.record import TIERS, records, tier_of, why
from tracker_diag.rules.signals import AnySignal
from tracker_diag.rules.signals.base import Signal
from tracker_diag.rules.signals.often import Often

DATA: TypeAdapter[Signal] = TypeAdapter(AnySignal)
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
        "Findings that belong together are one incident, with one alert. The tier says how far runs made after the",
        "rule's last change back an alarm.",
        "",
        "| tier | meaning |",
        "|---|---|",
        "| fact | it cannot be a false alarm |",
        "| measured | it found its pathology in 5 runs of 2 tasks or more. At most 1 % of 200 healthy runs alarmed |",
        "| candidate | neither. Alone it gives a note. In an incident of another rule it counts as any other |",
        "",
        "[The last table](#the-record-of-each-rule) says what each candidate lacks. Your own rules have the severity",
        "that you write: [rules of your own](../own-rules.md).",
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
    steps = f"{rule.for_steps} step{'s' if rule.for_steps > 1 else ''}"
    pairs = f" It reads the pairs {', '.join(rule.pairs)} on {', '.join(rule.slices)}." if rule.pairs else ""
    conditions = [*rule.signals.items()]
    return "\n".join(
        [
            f"# {rule.id} {rule.name}",
            "",
            f"**{rule.title}.** {rule.severity}, {rule.status}, link {rule.link.replace('_', ' ')}.",
            "",
            *_part("What it detects", [_detects(rule)]),
            *_part("Why it matters", [" ".join(rule.rationale.split())]),
            *_part("Example", _example(rule)),
            *_part("Fix", (f"{i}. {' '.join(text.split())}" for i, text in enumerate(rule.remedy, 1))),
            *_part("When to ignore", (f"- {' '.join(text.split())}" for text in rule.false_positives)),
            *_inputs(rule),
            "## Settings",
            "",
            f"It fires after {steps} in which {words(rule.when)}.{pairs}",
            *([f"It is a note while {words(rule.harmless)}."] if rule.harmless else []),
            "",
            *(f"- `{name}`: {_condition(rule, name, signal)}" for name, signal in conditions),
            "",
            *(
                [*(f"- `{name}`: {words(ways)}" for name, ways in rule.predicates.items()), ""]
                if rule.predicates
                else []
            ),
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
    rows: list[str] = []
    for name in sorted({ref.metric for ref in rule.series() if ref.metric}):
        metric = training(name)
        givers = [file.framework for file in alias_files() if name in file.metrics and file.framework != GENERIC]
        given = [f"`samples` with {SAMPLED[name]}"] if name in SAMPLED else []
        given += ["[a canary](../canary.md)"] if name in BY_CANARY else []
        given += [f"the integration of {BY_INTEGRATION[name]}"] if name in BY_INTEGRATION else []
        given += [f"logs of {', '.join(givers)}"] if givers else []
        rows.append(f"| `{name}` | {metric.unit} | {_cell(metric.meaning)} | {'; '.join(given) or NOBODY} |")
    slices = {ref.slice for ref in rule.series() if ref.stat and ref.slice and ":" in ref.slice}
    dimensions = sorted({name.partition(":")[0] for name in slices})
    needs = [f"`observe` with {' and '.join(f'`{dimension}`' for dimension in dimensions)}."] if dimensions else []
    table = ["| metric | unit | what it is | logged by |", "|---|---|---|---|", *rows] if rows else []
    heading = "What it needs to see"
    return [*_part(heading, table), *_part("" if rows else heading, needs)]


NOBODY = "no trainer: log it under this name"


def _part(heading: str, lines: Iterable[str]) -> list[str]:
    """Lines under a heading; neither, if there are no lines."""
    full = [line for line in lines if line]
    return [*([f"## {heading}", ""] if heading else []), *full, ""] if full else []


def _condition(rule: Rule, name: str, signal: Signal) -> str:
    """The condition as the rule's file has it where that is a sentence, such as `reward > 0.2`; else its fields."""
    own, shared = (signals_written(file).get(name) for file in (f"{rule.id}.yaml", "_shared.yaml"))
    text = own or shared
    return f"`{text.replace(' above ', ' > ').replace(' below ', ' < ')}`" if isinstance(text, str) else _signal(signal)


@cache
def signals_written(file: str) -> dict[str, object]:
    """The signals of a file of the catalogue, as they are written there."""
    signals: dict[str, object] = yaml.safe_load((CATALOG / file).read_text(encoding="utf-8")).get("signals") or {}
    return signals


def _signal(signal: Signal) -> str:
    if isinstance(signal, Often):
        anew = ", counted as separate events" if signal.anew else ""
        return f"at {signal.count} or more of the last {signal.steps} values{anew}: {_signal(signal.signal)}"
    parts = DATA.dump_python(signal, exclude_none=True, exclude_defaults=True, mode="json")
    fields = ", ".join(f"{name} {_value(value)}" for name, value in parts.items())
    return f"{getattr(signal, 'kind', '')}" + (f" of {fields}" if fields else "")


def _value(value: object) -> str:
    if isinstance(value, dict) and value.keys() <= {"stat", "metric", "slice", "pair"}:
        return f"`{'/'.join(str(value[key]) for key in ('pair', 'slice', 'stat', 'metric') if key in value)}`"
    return f"`{', '.join(dict.fromkeys(map(str, value))) if isinstance(value, list) else value}`"


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
