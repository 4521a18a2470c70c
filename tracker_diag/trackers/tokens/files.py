"""Files of a token log: a file, a folder, a pattern or a URL, and what a path says of its rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.finished import one_line

PARQUET = (".parquet", ".pq")
ROLLOUTS = (".jsonl", ".ndjson", ".json")
TENSORS = (".npz", ".safetensors", ".pt", ".pth", ".pkl")
ENDINGS = (*PARQUET, *ROLLOUTS, *TENSORS)
"""Endings of files that are read; a file that is named by itself may have any."""
WILD = re.compile(r"[*?\[]")
VERSION = ("size", "mtime", "ETag", "etag", "LastModified", "created")
"""What file systems say of a file that changes with its content."""


@dataclass(frozen=True)
class TokenFile:
    """A file of a token log."""

    path: str
    """Where it is, a URL or a path on this machine."""
    known: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """Columns that its path says, such as `step=3/` of a partitioned data set."""
    converted_from: str = ""
    """The file or the files that this one was made of."""
    made_of: str = ""
    """The stamp of what it was made of."""

    @property
    def name(self) -> str:
        """The file that a user knows, for errors."""
        return self.converted_from or self.path

    @property
    def kind(self) -> str:
        """Its ending, in lower case."""
        return Path(self.path).suffix.lower()

    def open(self) -> Any:
        """The file, open for reading bytes."""
        import fsspec

        try:
            return fsspec.open(self.path, "rb").open()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or (
                "No such file" if isinstance(error, FileNotFoundError) else error
            )
            raise SourceError(f"{self.name}: {one_line(what)}") from error

    def stamp(self) -> str:
        """What changes when the rows do: name, size, and when the file was written or its tag."""
        if self.made_of:
            return self.made_of
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(self.path)
        about = filesystem.info(path)
        return " ".join((self.path, *(str(about.get(key, "")) for key in VERSION)))


def files_of(source: str) -> list[TokenFile]:
    """The files that `source` names, in the order of their paths: a file, a folder, a pattern, or a URL of fsspec."""
    require("pyarrow", "replay")
    fsspec = require("fsspec", "replay")
    try:
        filesystem, path = fsspec.core.url_to_fs(source)
        if filesystem.isdir(path):
            paths = [name for name in filesystem.find(path) if _is_data(name.removeprefix(path))]
        elif WILD.search(path) and not filesystem.exists(path):
            paths = filesystem.glob(path)
        else:
            paths = [path]
        places = {name: filesystem.unstrip_protocol(name).removeprefix("file://") for name in paths}
    except Exception as error:  # each scheme has its own
        raise SourceError(f"{source}: {type(error).__name__}: {one_line(error)}") from error
    if not places:
        raise SourceError(f"{source}: no token log, expected files that end with {', '.join(ENDINGS)}")
    root = WILD.split(path)[0]
    return [TokenFile(places[name], _known(name.removeprefix(root))) for name in sorted(places, key=_natural)]


def _is_data(path: str) -> bool:
    hidden = any(part.startswith(("_", ".")) for part in path.strip("/").split("/"))
    return not hidden and Path(path).suffix.lower() in ENDINGS


def _natural(path: str) -> list[tuple[int, str]]:
    """Orders `step_2` before `step_10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path)]


def _known(path: str) -> dict[str, int]:
    """What folders called `name=value` say, of values that are whole numbers."""
    values = ((name, unquote(value)) for name, value in re.findall(r"(?:^|/)([^/=]+)=([^/]+)(?=/)", path))
    return {unquote(name): int(value) for name, value in values if re.fullmatch(r"-?\d+", value)}
