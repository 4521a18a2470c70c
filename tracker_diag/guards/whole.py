"""Whole: what a checkpoint lacks, as far as the indexes of known layouts say, without running anything that is in it.

safetensors (header and shards), `torch.save` (zip and the older form), distributed checkpoints of torch (`.metadata`),
transformers' Trainer, and JSON.
"""

import json
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)$")
LARGEST_JSON = 64 << 20
"""Bytes of a JSON file that is parsed; a larger one is taken as it is."""
MAGIC = 0x1950A86A20F9469CFC6C
"""The first object in a file of `torch.save` before it wrote zip files."""
BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2,
    "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
}  # fmt: skip
"""Of an element, by the name of its storage."""


def lacking(root: Path, files: list[Path]) -> str | None:
    """What `root`, a file or a folder with `files`, lacks; None if nothing, as far as its layout says."""
    for file in files:
        if missing := _file(file):
            return f"{file.name} is half written, {missing}"
    by_folder: dict[Path, set[str]] = {}
    for file in files:
        by_folder.setdefault(file.parent, set()).add(file.name)
    if root.is_file():
        return None
    return next((missing for folder, names in by_folder.items() if (missing := _folder(folder, names))), None)


def _folder(folder: Path, names: set[str]) -> str | None:
    expected = dict.fromkeys(_shards(names), "the other shards name it")
    for index in (name for name in names if name.endswith(".index.json")):
        shards: Any = json.loads((folder / index).read_bytes())
        for name in shards.get("weight_map", {}).values() if isinstance(shards, dict) else ():
            expected[str(name)] = f"{index} names it"
    if any(name.endswith(".distcp") for name in names):
        expected[".metadata"] = "it is written last"
    if "optimizer.pt" in names and ("training_args.bin" in names or re.fullmatch(r"checkpoint-\d+", folder.name)):
        expected["trainer_state.json"] = "it is written last"
    for name, why in expected.items():
        if name not in names:
            return f"{name} is missing, and {why}"
    return _distributed(folder, names) if ".metadata" in names else None


def _shards(names: set[str]) -> Iterator[str]:
    """All files of each set of shards of which one is there."""
    for base, _, count, suffix in {match.groups() for match in map(SHARD.fullmatch, names) if match}:
        for number in range(1, int(count) + 1):
            yield f"{base}-{number:05d}-of-{count}{suffix}"


def _distributed(folder: Path, names: set[str]) -> str | None:
    """Parts that `.metadata` names, and how far each reaches."""
    reach: dict[str, int] = {}
    with (folder / ".metadata").open("rb") as content:
        values = list(_values(content))
    for i in range(len(values) - 5):
        if values[i : i + 5 : 2] == ["relative_path", "offset", "length"]:
            name, offset, length = values[i + 1 : i + 6 : 2]
            reach[str(name)] = max(reach.get(str(name), 0), int(offset) + int(length))
    for name, end in reach.items():
        size = (folder / name).stat().st_size if name in names else 0
        if size < end:
            return f"{name} has {size} of {end} bytes"
    return None


def _file(file: Path) -> str | None:
    """What is missing of one file; None if nothing is, or it is of a kind that does not say."""
    size = file.stat().st_size
    if not size:
        return "it is empty" if file.suffix in {".pt", ".pth", ".bin", ".safetensors", ".distcp", ".json"} else None
    with file.open("rb") as content:
        head = content.read(16)
        content.seek(0)
        if file.suffix == ".safetensors":
            return _safetensors(content, size)
        if head.startswith(b"PK\x03\x04"):
            return _zip(content)
        if MAGIC.to_bytes(10, "little") in head:
            return _older_torch(content, size)
        if file.suffix == ".json" and size <= LARGEST_JSON:
            try:
                json.loads(content.read())
            except (ValueError, RecursionError) as error:
                return f"it is no JSON: {error}"
    return None


def _zip(content: IO[bytes]) -> str | None:
    try:
        with zipfile.ZipFile(content) as parts:
            parts.infolist()
    except zipfile.BadZipFile:
        return "a zip file without its end"
    return None


def _safetensors(content: IO[bytes], size: int) -> str | None:
    length = int.from_bytes(content.read(8), "little")  # of the header, which says where each tensor ends
    if size < 8 or 8 + length > size:
        return f"{size} bytes, shorter than its header"
    try:
        tensors = [tensor for name, tensor in json.loads(content.read(length)).items() if name != "__metadata__"]
        whole = 8 + length + max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its header cannot be read: {error}"
    return None if size >= whole else f"{size} of {whole} bytes"


def _older_torch(content: IO[bytes], size: int) -> str | None:
    """Of a file that has its storages, each with its count of elements, after five pickles."""
    try:
        parts = [list(_values(content)) for _ in range(5)]
    except ValueError as error:
        return f"it ends early: {error}"
    storages: dict[Any, int] = {}
    for i, value in enumerate(parts[3]):
        kind = str(value).removeprefix("torch ").removesuffix("Storage")
        if str(value).startswith("torch ") and kind in BYTES:  # then key, place, count
            key, _, count = parts[3][i + 1 : i + 4]
            storages[key] = 8 + int(count) * BYTES[kind]
    whole = content.tell() + sum(storages.values())
    return None if size >= whole else f"{size} of {whole} bytes"


def _values(content: IO[bytes]) -> Iterator[Any]:
    """The texts, numbers and names in the next pickle of `content`, in their order; nothing in it is run."""
    memo: dict[int, Any] = {}
    last: Any = None
    try:
        code: pickletools.OpcodeInfo
        argument: Any
        for code, argument, _ in pickletools.genops(content):
            if code.name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[argument] = last
            elif code.name == "MEMOIZE":
                memo[len(memo)] = last
            elif code.name in ("BINGET", "LONG_BINGET", "GET"):
                last = memo.get(argument)
                if last is not None:
                    yield last
            elif isinstance(argument, str | int | bytes) and code.name not in ("PROTO", "FRAME"):
                last = argument
                yield argument
            else:
                last = None
    except (IndexError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
