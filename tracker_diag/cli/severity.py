"""Severities as options of a command."""

from enum import Enum


class FailOn(str, Enum):
    """Severities that `--fail-on` takes."""

    warn = "warn"
    error = "error"
