"""`tracker-diag rules`: the catalogue on the command line, and the same checks for rules of one's own."""

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tracker_diag.errors import DiagError
from tracker_diag.rules.loader import catalog, load_rules
from tracker_diag.rules.model import Rule
from tracker_diag.testing import RuleCase, check_rule

rules_app = typer.Typer(help="The catalogue of rules, and checks for your own.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder with one rule a file, or one such file.")]


@rules_app.command("list")
def list_rules() -> None:
    """All rules of the catalogue, by link of the training loop."""
    table = Table(box=None, header_style="dim")
    for column in ("id", "name", "severity", "link"):
        table.add_column(column, no_wrap=True)
    for rule in catalog():
        table.add_row(rule.id, rule.name, rule.severity, rule.link)
    Console().print(table)


@rules_app.command()
def show(rule_id: Annotated[str, typer.Argument(help="For example POL001.")]) -> None:
    """One rule: what it detects, why it harms, what to do, when it is wrong."""
    rule = next((rule for rule in catalog() if rule.id == rule_id.upper()), None)
    if rule is None:
        _refuse(f"rule: {rule_id!r} given, expected one of {', '.join(rule.id for rule in catalog())}")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for name, text in page(rule).items():
        facts.add_row(name, text)
    Console().print(facts)


def page(rule: Rule) -> dict[str, str]:
    """What a person should know of `rule`, heading by heading."""
    read = sorted({ref.metric or f"{ref.stat} of {ref.slice or 'the slice'}" for ref in rule.series()})
    return {
        "rule": f"{rule.id} {rule.name}",
        "says": rule.title,
        "severity": f"{rule.severity}, {rule.status}, link {rule.link}",
        "detects": rule.description.strip().removeprefix("Detects "),
        "harms": rule.rationale.strip(),
        "reads": ", ".join(read) or "every metric",
        "do": "\n".join(f"{i}. {text}" for i, text in enumerate(rule.remedy, 1)),
        "false if": "\n".join(rule.false_positives),
        "numbers": rule.calibration.strip(),
        "explains": ", ".join(rule.inhibits) or "no other rule",
        "see": "\n".join(rule.references) or "–",
    }


@rules_app.command()
def lint(folder: Folder) -> None:
    """Load every rule of a folder, and tell the file, the line and the field of what is wrong."""
    try:
        rules = load_rules(folder)
    except DiagError as error:
        _refuse(str(error))
    typer.echo(f"{len(rules)} rules, all of them sound: {', '.join(rule.id for rule in rules)}")


@rules_app.command("test")
def hold_against_cases(
    folder: Folder,
    cases: Annotated[
        Path | None, typer.Option(help="Folder of the cases, <ID>.yaml each; `tests` in the rules' by default.")
    ] = None,
) -> None:
    """Hold rules of your own against their cases, as the catalogue's are held against theirs."""
    wrong = 0
    try:
        rules = load_rules(folder)
        for rule in rules:
            file = (cases or (folder if folder.is_dir() else folder.parent) / "tests") / f"{rule.id}.yaml"
            for case in _cases(file):
                for text in check_rule(rule, case):
                    wrong += 1
                    typer.echo(f"{rule.id}: {case.name}: {text}")
    except DiagError as error:
        _refuse(str(error))
    if wrong:
        raise typer.Exit(1)
    typer.echo(f"{len(rules)} rules do what their cases say")


@rules_app.command()
def schema() -> None:
    """The JSON Schema of a rule file, for your editor."""
    typer.echo(json.dumps(Rule.model_json_schema(), indent=1))


def _cases(file: Path) -> list[RuleCase]:
    try:
        return [RuleCase(**case) for case in yaml.safe_load(file.read_text(encoding="utf-8"))]
    except (OSError, yaml.YAMLError, TypeError, ValidationError) as error:
        _refuse(f"{file}: no list of cases that can be read: {error}")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"tracker-diag: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)
