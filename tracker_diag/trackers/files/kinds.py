"""What a file holds, by its content; its name only helps where the content leaves a doubt."""

import json
import re
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.csv_table import cell, delimiter
from tracker_diag.trackers.files.text import head_of
from tracker_diag.trackers.wandb.read_file import SIGNATURE

NAMED = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".npz", ".ipynb", ".wandb", ".tfevents"}
"""Endings of files that are no console logs."""
FOREIGN = {
    b"PAR1": "a Parquet file; token tables are for `tracker-diag replay`",
    b"SQLite format 3\0": "a SQLite store; give mlflow:<run id>@sqlite:///<file>, or the run of another tracker",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"\xff\xfe": "text in UTF-16, expected UTF-8",
}
"""Beginnings of files that are something else, and what to say of them."""

LIST = re.compile(r"""["']\s*:\s*\[\s*[-\d]""")
"""A list of numbers under a name. In a single row, it is a column."""


def kind_of(file: Path) -> str:
    """What reads it, as `FILES` in `open` has it."""
    head = head_of(file)
    if not head.strip():
        raise SourceError(f"{file}: the file is empty; has the run logged anything yet?")
    ending = ".tfevents" if "tfevents" in file.name else file.suffix.lower()
    kind = _kind(file, head, ending)
    if kind == "console" and ending in NAMED:  # which is what is left when nothing else was recognised
        raise SourceError(f"{file}: the content does not fit {ending}, expected a log of a trainer or tracker")
    return kind


def _kind(file: Path, head: bytes, ending: str) -> str:
    for beginning, what in FOREIGN.items():
        if head.startswith(beginning):
            raise SourceError(f"{file}: this is {what}")
    if head.startswith(SIGNATURE):
        return "wandb"
    if head.startswith(b"PK"):
        return "npz"
    # Each event file begins with a record of its version; the record's length and checksum come first.
    if b"brain.Event:" in head[:64]:
        return "tensorboard"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if b"\0" in text.rstrip(b"\0\r\n"):
        raise SourceError(f"{file}: neither text nor a file of TensorBoard, W&B or numpy")
    return _text_kind(text.decode("utf-8", "replace"), ending)


def _text_kind(text: str, ending: str) -> str:
    first, _, rest = text.partition("\n")
    if first.startswith("#"):
        return "monitor" if first[1:].lstrip().startswith("{") else "console"  # older ones have a space there
    if text.startswith("{") and not text.startswith("{'"):
        if ending == ".ipynb" or ('"cells"' in text and '"cell_type"' in text):
            return "notebook"
        columns = ending == ".json" and not rest.strip() and LIST.search(first)
        if columns or '"log_history"' in text or not (_is_json(first) or ending in {".jsonl", ".ndjson"} or not rest):
            return "json"
        return "jsonl"
    if text.startswith("[") and text[1:].lstrip()[:1] in {"{", "]"}:
        return "json"
    return "csv" if _is_csv(first, rest.partition("\n")[0], ending) else "console"


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_csv(header: str, row: str, ending: str) -> bool:
    """Whether `header` has names and `row` a number under one of them."""
    names, cells = header.split(delimiter(header)), row.split(delimiter(header))
    if any(map(_is_number, names)):
        return False
    if ending in {".csv", ".tsv"}:
        return bool(names[1:]) or not row or _is_number(row)
    return len(names) > 1 and len(names) == len(cells) and any(map(_is_number, cells))


def _is_number(text: str) -> bool:
    return isinstance(cell(text.strip().strip('"')), float)
