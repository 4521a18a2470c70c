"""The files of rules and of their cases, as data."""

import re
from pathlib import Path
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile


def data(file: Path) -> Any:
    """What `file` says; read as the package reads its rules, ten times as fast as PyYAML by itself."""
    return YamlFile.load(file, DiagError).data


def write_own(folder: Path) -> Path:
    """Write the rule and the cases of docs/own-rules.md into `folder`, as its reader does."""
    page = (Path(__file__).parents[2] / "docs/own-rules.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    rule, cases = (next(text for text in blocks if text.startswith(start)) for start in ("# yaml", "- name"))
    (folder / "tests").mkdir(parents=True)
    (folder / "ACM001.yaml").write_text(rule)
    (folder / "tests/ACM001.yaml").write_text(cases)
    return folder
