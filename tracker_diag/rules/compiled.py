"""The catalogue's YAML, compiled: kept as JSON in the user's cache until a file changes."""

import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

from tracker_diag.errors import RuleError
from tracker_diag.metrics.yaml_files import YamlFile

CATALOG = Path(__file__).resolve().parent / "catalog"
"""Folder of the rules that come with tracker_diag."""

Compiled: TypeAlias = dict[str, tuple[Any, int]]
"""By name of a file: what it holds, and the line of the rule's id."""


@cache
def compiled() -> Compiled:
    """All files of the catalogue.

    Raises:
        RuleError: "file:line: what is wrong".
    """
    files = sorted(CATALOG.glob("*.yaml"))
    versions = [[file.name, status.st_size, status.st_mtime_ns] for file in files for status in (file.stat(),)]
    kept = cache_folder() / f"catalog-{crc32(str(CATALOG).encode()):08x}.json"
    try:
        before = json.loads(kept.read_bytes())
        if before["versions"] == versions:
            return {name: (data, line) for name, data, line in before["files"]}
    except (OSError, ValueError, LookupError, TypeError):
        pass  # there is none yet, or another version wrote it
    read = [YamlFile.load(file, RuleError) for file in files]
    parsed = {yaml.file.name: (yaml.data, yaml.line(("id",))) for yaml in read}
    _keep(kept, {"versions": versions, "files": [(name, *parts) for name, parts in parsed.items()]})
    return parsed


def _keep(file: Path, content: object) -> None:
    """Write `content`; where nothing can be written, each process compiles by itself."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        unfinished.replace(file)


def cache_folder() -> Path:
    """The user's own, as the package may be read-only; XDG_CACHE_HOME names another than `~/.cache`."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tracker_diag"
    except RuntimeError:  # there is no home
        return Path(os.devnull)
