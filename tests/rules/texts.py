"""The files of rules and of their cases, as data."""

from pathlib import Path
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.metrics.yaml_files import YamlFile


def data(file: Path) -> Any:
    """What `file` says; read as the package reads its rules, ten times as fast as PyYAML by itself."""
    return YamlFile.load(file, DiagError).data
