"""Checks all that people read: `python tests/prose.py`. It has no exceptions.

No retired word, no sentence of more than 20 words, and in code no name that a search finds everywhere. It reads
Markdown, rules and other YAML, templates, and the command line's help. Of code it reads docstrings, comments, messages;
of tests docstrings and comments, for retired words alone.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer.main
import yaml

from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[1]
GENERATED = re.compile(r"docs/(rules/.*|metrics|integrations|matrix|eyes|faults|curves)\.md")
"""Pages whose sources are checked in their place."""
CODE = ("tracker_diag", "integrations", "docs", "examples")
DRAWN = re.compile(r"[│├└→►]|^ *(>>>|\.\.\.)|^ {4,}\w+.*[(=].*\)( *#.*)?$")
"""Lines of a docstring that are a drawing or code."""
LONGEST = 20
RETIRED = {
    r"told": "reported", r"mend(s|ed)?": "fix", r"go(es|ing)? on|went on": "continue", r"apart": "separately",
    r"beside": "next to", r"on end": "in a row", r"lies": "is", r"stands": "is", r"whoever": "who",
    r"beg[iu]ns? anew": "start over",
}  # fmt: skip
"""Words of DESIGN's list, each with one to use for it. `one` is retired as a name alone."""
VARIABLES = {"one", "found", "said", "told", "of"}
FUNCTIONS = {"of", "add", "read", "tell", "say", "look", "take"}
OWNER = {"read": "Tracker", "add": "RolloutBuffer"}
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


def scalars(node: object) -> Iterator[str]:
    """Each text in YAML's data that is a sentence, or a part of one; no series of numbers."""
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from scalars(child)
    elif isinstance(node, str) and len(node.split()) > 3 and not re.fullmatch(r"[-+.\dnaxife\s]+", node):
        yield node


def comments(code: str) -> Iterator[tuple[int, str]]:
    """Each comment with its line; those on neighbouring lines of their own are one text."""
    for match in re.finditer(r"(?m)^(?: *# .*\n)+|  # .*$", code):
        text = re.sub(r"(?m)^ *# |noqa\S*( [A-Z]+\d+,?)*|type: ignore\S*|fmt: \w+", " ", match[0])
        yield 1 + code.count("\n", 0, match.start()), text


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each docstring and message with its line; paths, patterns, drawings and code in them are left out."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "`value`" for part in parts)
            case ast.Constant(value=str(text)) if id(node) not in inside and len(text.split()) > 3 and "\\" not in text:
                pass
            case _:
                continue
        lines = [line for line in text.splitlines() if not DRAWN.search(line)]
        yield from ((node.lineno, part) for _, part in paragraphs("\n".join(lines)))


def notes(code: str) -> Iterator[tuple[int, str]]:
    """Each docstring and comment of a test."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    yield from comments(code)


def test_reports() -> Iterator[str]:
    """Retired words of tests, by file and line."""
    for file in listed("tests/*.py"):
        if Path(file).name not in {"prose.py", "test_prose.py"}:  # these name the words
            for line, text in notes((ROOT / file).read_text(encoding="utf-8")):
                yield from (f"{file}:{line}: {what}" for what in mistakes(text) if "is retired" in what)


def read_file(file: str) -> Iterator[tuple[int, str]]:
    """What a person reads in one file of the repository, with lines."""
    text = (ROOT / file).read_text(encoding="utf-8")
    match Path(file).suffix:
        case ".md":
            yield from paragraphs(text)
        case ".py":
            yield from strings(ast.parse(text))
            yield from comments(text)
        case ".yaml" | ".yml":
            yield from ((1, value) for value in scalars(yaml.load(text, yaml.CBaseLoader)))  # noqa: S506  # texts alone
            yield from enumerate(re.findall(r"(?:^|\s)# (.*)", text), 1)
        case ".j2":
            text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", text)
            yield from enumerate(re.findall(r">([^<>{}]+)<|/\* (.*?) \*/|(?:title|aria-label)=\"([^\"{]+)", text), 1)
        case _:
            yield from enumerate(re.findall(r"#+ (.*)", text), 1)


def listed(*patterns: str) -> Iterator[str]:
    """Each file of the repository that one of `patterns` names."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    yield from (file for file in done.stdout.split() if (ROOT / file).exists())


def texts() -> Iterator[tuple[str, int, str]]:
    """File, line and text of all that is checked."""
    for file in listed("*.md", "*.j2", "*.yaml", "*.yml", "Makefile", *(f"{folder}/*.py" for folder in CODE)):
        if not GENERATED.fullmatch(file):
            yield from (
                (file, line, text if isinstance(text, str) else " ".join(text)) for line, text in read_file(file)
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


def name_reports() -> Iterator[str]:
    """What is wrong with names, by file and line."""
    for file in listed("*.py"):
        yield from (f"{file}:{line}: {what}" for line, what in names((ROOT / file).read_text(encoding="utf-8")))


def main() -> None:
    reports = [f"{file}:{line}: {what}" for file, line, text in texts() for what in mistakes(text)]
    sys.exit("\n".join([*reports, *name_reports(), *test_reports()]) or 0)


if __name__ == "__main__":
    main()
