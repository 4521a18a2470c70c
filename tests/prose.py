"""Checks what people read, in Markdown, in the rules, in the command line's help and as names: `python tests/prose.py`.

No retired word, no sentence of more than 20 words, and in code no name that a search finds everywhere. Old text may
have as many of them as `prose_exceptions.txt` allows each file; `--update` writes the present numbers there.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer.main
import yaml

from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[1]
EXCEPTIONS = ROOT / "tests" / "prose_exceptions.txt"
GENERATED = re.compile(r"docs/(rules/.*|metrics|integrations|matrix|eyes|faults|curves)\.md")
"""Pages whose sources are checked in their place."""
FIELDS = ("title", "summary", "description", "rationale", "remedy", "false_positives")
LONGEST = 20
RETIRED = {
    r"told": "reported", r"mend(s|ed)?": "fix", r"go(es|ing)? on|went on": "continue", r"apart": "separately",
    r"beside": "next to", r"on end": "in a row", r"lies": "is", r"stands": "is", r"whoever": "who",
}  # fmt: skip
"""Words of DESIGN's list, each with one to use for it. `one` is retired as a name alone."""
VARIABLES = {"one", "found", "said", "told", "of"}
FUNCTIONS = {"of", "add", "read", "tell", "say", "look", "take"}
OWNER = {"read": "Tracker"}
"""The class whose subclasses alone define a function of that name."""


def mistakes(text: str) -> Iterator[str]:
    """What is wrong with a paragraph of Markdown; code is not read."""
    text = re.sub(r"`+[^`]*`+", "code", text)
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|https?://\S+", "", text)
    for word, better in RETIRED.items():
        for match in re.finditer(rf"\b({word})\b", text, re.IGNORECASE):
            yield f"{match[0]!r} is retired, say {better!r}"
    for sentence in re.split(r"[.!?:;](?=\s|$)|\n\s*(?:[-*]|\d+\.)\s", text):
        words = re.findall(r"\w[\w'’/.-]*", sentence)
        if len(words) > LONGEST:
            yield f"{len(words)} words in a sentence, {LONGEST} at most: {' '.join(words[:6])} ..."


def paragraphs(markdown: str) -> Iterator[tuple[int, str]]:
    """Each paragraph and table cell, with its line; without code blocks."""
    markdown = re.sub(r"(?ms)^( *)```.*?^\1```$", lambda block: "\n" * block[0].count("\n"), markdown)
    for match in re.finditer(r"(?:.+\n?)+", markdown):
        line = 1 + markdown.count("\n", 0, match.start())
        cells = re.split(r"[|\n]", match[0]) if match[0].lstrip().startswith("|") else [match[0]]
        yield from ((line, cell) for cell in cells)


def helps(command: typer.main.TyperGroup) -> Iterator[str]:
    """Help texts of a command, its options, and the commands below it."""
    yield command.help or ""
    yield from (parameter.help for parameter in command.params if getattr(parameter, "help", None))
    for child in getattr(command, "commands", {}).values():
        yield from helps(child)


def texts() -> Iterator[tuple[str, int, str]]:
    """File, line and text of all that is checked."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for file in listed.split():
        if (ROOT / file).exists() and not GENERATED.fullmatch(file):
            yield from ((file, *part) for part in paragraphs((ROOT / file).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "tracker_diag/rules/catalog").glob("*.yaml")):
        rule = yaml.safe_load(path.read_text(encoding="utf-8"))
        for value in (rule[field] for field in FIELDS if field in rule):
            yield from (
                (f"{path.relative_to(ROOT)}", 1, text) for text in ([value] if isinstance(value, str) else value)
            )
    yield from (("tracker_diag/cli", 1, text) for text in helps(typer.main.get_command(app)))


def names(code: str) -> Iterator[tuple[int, str]]:
    """Lines of names that say nothing, and what to do. The class that owns a name and its subclasses may define it."""
    tree = ast.parse(code)
    families = {
        id(part): {node.name, *map(ast.unparse, node.bases)}
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VARIABLES:
                yield node.lineno, f"variable {name!r} is retired, name what it holds"
            case ast.FunctionDef(name=name) if name in FUNCTIONS and OWNER.get(name) not in families.get(id(node), ()):
                yield node.lineno, f"function {name!r} is retired, name what it does to what"


def name_reports() -> Iterator[tuple[str, str]]:
    """Each file of code with what is wrong with a name in it."""
    for path in sorted(path for folder in ("tracker_diag", "integrations") for path in (ROOT / folder).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        yield from ((file, f"{file}:{line}: {what}") for line, what in names(path.read_text(encoding="utf-8")))


def main() -> None:
    reports = [(file, f"{file}:{line}: {what}") for file, line, text in texts() for what in mistakes(text)]
    reports += name_reports()
    counts = Counter(file for file, _ in reports)
    if "--update" in sys.argv:
        EXCEPTIONS.write_text("".join(f"{file} {counts[file]}\n" for file in sorted(counts)))
    allowed = {file: int(n) for file, n in map(str.split, EXCEPTIONS.read_text().splitlines())}
    more = {file for file, n in counts.items() if n > allowed.get(file, 0)}
    if more:
        numbers = [f"{file}: {counts[file]} given, {allowed.get(file, 0)} allowed" for file in sorted(more)]
        sys.exit("\n".join([*(text for file, text in reports if file in more), *numbers]))


if __name__ == "__main__":
    main()
