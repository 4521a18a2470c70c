"""`tracker-diag rules`: the rules in force, and the tools to write your own."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tracker_diag.cli.options import Which, refuse, refusing
from tracker_diag.errors import RuleError, nearest
from tracker_diag.report.console import Terminal, labelled
from tracker_diag.rules.cases import check_rule, load_cases
from tracker_diag.rules.in_words import fires, parts, shown, spared
from tracker_diag.rules.loader import chosen, in_force, load_rules
from tracker_diag.rules.model import Rule
from tracker_diag.rules.model import schema as rule_schema
from tracker_diag.rules.record import TIERS, tier_of, why
from tracker_diag.rules.signals.fired import Fired

rules_app = typer.Typer(help="List and show the rules; check and test your own.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder with one rule a file, or one such file.")]


@rules_app.command("list")
def list_rules(which: Which = None) -> None:
    """List the rules, those with the best evidence first."""
    with refusing():
        rules = chosen(which)
    own = any(rule.own for rule in rules)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("id", "name", "severity", "link", "tier", *(["file"] if own else [])):
        table.add_column(column, no_wrap=column != "file", overflow="fold")
    tiers = {rule.id: tier_of(rule) for rule in rules}
    for rule in sorted(rules, key=lambda rule: (TIERS.index(tiers[rule.id]), rule.id)):
        place = [str(rule.file)] if rule.own else []
        table.add_row(rule.id, rule.name, rule.severity, rule.link, tiers[rule.id], *place)
    Terminal().print(table)


@rules_app.command()
def show(
    rule_id: Annotated[str, typer.Argument(metavar="RULE", help="Its id or its name, for example POL001.")],
    which: Which = None,
) -> None:
    """Show a rule: what it detects and what to do."""
    with refusing():
        rules = chosen(which)
    named = {rule.id: rule for rule in rules} | {rule.name: rule for rule in rules}
    rule = named.get(rule_id.upper()) or named.get(rule_id.lower())
    if rule is None:
        near = nearest(rule_id, named) or nearest(rule_id.upper(), named)
        refuse(
            f"rule: {rule_id!r} given, expected an id or a name of tracker-diag rules list{near}; "
            "your own are found with --rules FOLDER"
        )
    rows = labelled(0)
    for heading, text in page(rule).items():
        rows.add_row(heading, Text(text))
    Terminal().print(rows)


def plain(text: str) -> str:
    """`text` for a terminal, where names need no marks."""
    return re.sub(r"(?<!`)\*([\w ]+)\*", r"\1", text).replace("`", "")


def page(rule: Rule) -> dict[str, str]:
    """What a person should know of `rule`, heading by heading; what it does not say is left out."""
    read = sorted({ref.metric or f"{ref.stat} of {ref.slice or 'the slice'}" for ref in rule.series()})
    facts = {
        "rule": f"{rule.id} {rule.name}",
        "says": rule.title,
        "severity": f"{rule.severity}, link {rule.link}",
        "evidence": "" if rule.own else why(rule),
        "detects": rule.description.strip().removeprefix("Detects "),
        "harms": rule.rationale.strip(),
        "fires if": plain("\n".join(["; or\n".join(fires(rule)), *(f"{name}: {text}" for name, text in parts(rule))])),
        "note": plain(spared(rule)) if rule.harmless else "",
        "shows": plain(", ".join(shown(rule))),
        "reads": ", ".join(read) or "every metric",
        "ignore if": "\n".join(rule.false_positives),
        "fix": "\n".join(f"{i}. {text}" for i, text in enumerate(rule.remedy, 1)),
        "numbers": rule.calibration.strip(),
        "silences": ", ".join(rule.inhibits),
        "symptoms": ", ".join(rule.leads_to),
        "see": "\n".join(rule.references),
        "file": str(rule.file) if rule.own else "",
    }
    return {heading: text for heading, text in facts.items() if text}


@rules_app.command()
def lint(folder: Folder) -> None:
    """Load all rules of a folder, and name what is wrong."""
    with refusing():
        rules = load_rules(folder)
        known = {rule.id for rule in in_force([rule for rule in rules if rule.own])}  # refuses the id of another
        for rule in rules:
            fired = (id for signal in rule.signals.values() if isinstance(signal, Fired) for id in signal.rules)
            for other in (*rule.inhibits, *rule.leads_to, *fired):
                if other not in known:
                    message = f"{rule.where}: {rule.id} speaks of {other}, which is no rule"
                    raise RuleError(message + nearest(other, known))
    typer.echo(f"{_count(rules)}, sound: {', '.join(rule.id for rule in rules)}")


@rules_app.command("test")
def hold_against_cases(
    folder: Folder,
    cases: Annotated[
        Path | None, typer.Option(help="Folder with the cases, <ID>.yaml; by default `tests` in the folder of rules.")
    ] = None,
) -> None:
    """Test your own rules on their cases."""
    wrong = 0
    with refusing():
        rules = load_rules(folder)
        for rule in rules:
            file = (cases or (folder if folder.is_dir() else folder.parent) / "tests") / f"{rule.id}.yaml"
            for case in load_cases(file, rule):
                for text in check_rule(rule, case):
                    wrong += 1
                    typer.echo(f"{rule.id}: {case.name}: {text}")
    if wrong:
        raise typer.Exit(1)
    typer.echo(f"{_count(rules)}: as the cases say")


@rules_app.command()
def schema() -> None:
    """Print the JSON Schema of a rule file."""
    typer.echo(rule_schema(), nl=False)


def _count(rules: Sequence[Rule]) -> str:
    return f"{len(rules)} rule" + ("" if len(rules) == 1 else "s")
