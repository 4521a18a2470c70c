"""Whole: what a checkpoint lacks, as the indexes of known layouts say, without running anything that is in it.

safetensors (header and shards), `torch.save` (zip and the older form), DeepSpeed (`latest`), transformers' Trainer,
JSON, distributed checkpoints of torch (`.metadata`). Each zip member is read in parts, and its CRC compared. That has
no bound on time or size: it is in a thread, which reads all files for their hashes anyway.
"""

import json
import os
import pickletools
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)$")
LARGEST_JSON = 64 << 20
"""Bytes of a JSON file that is parsed; a larger one is taken as it is."""
ZIP = b"PK\x03\x04"
MAGIC = 0x1950A86A20F9469CFC6C
"""The first object in a file of `torch.save` before it wrote zip files."""
TORCH = {".pt", ".pth"}
"""Suffixes of what `torch.save` alone writes."""
PICKLED = {".bin", ".ckpt", ".pkl"}
"""Suffixes of what may be any pickle, or something else."""
FULL = {*TORCH, *PICKLED, ".safetensors", ".distcp", ".json", ".metadata"}
"""Suffixes of files that are never empty."""
STORAGE = re.compile(r"torch(?:\.storage)? (\w+)Storage")
BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2,
    "Short": 2, "Char": 1, "Byte": 1, "Bool": 1, "Untyped": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "QUInt4x2": 1,
    "QUInt2x4": 1,
}  # fmt: skip
"""Of an element, by the name of its storage."""
TAG = 255
"""Bytes of DeepSpeed's file `latest` at most; a larger file of that name is another one's."""
CHUNK = 1 << 20


def lacking(root: Path, there: Sequence[Path]) -> str | None:
    """What `root`, a file or a folder with all that is `there`, lacks; None if nothing, as far as its layout says."""
    for path in there:
        name = path.name if path == root else path.relative_to(root).as_posix()
        if path.is_symlink() and not path.exists():
            return f"{name} is a link to nothing"
        if path.suffix == ".tmp":
            return f"{name} is there, which is not yet renamed"
        if path.is_file() and (missing := _file(path)):
            return f"{name} is half written, {missing}"
    folders = {path: set[str]() for path in (root, *there) if path.is_dir()}
    for path in there:
        if path.is_file() and path != root:
            folders[path.parent].add(path.name)
    return next((missing for folder, names in folders.items() if (missing := _folder(folder, names))), None)


def _folder(folder: Path, names: set[str]) -> str | None:
    for name, why in _expected(folder, names).items():
        if name not in names:
            return f"{folder.name}: {name} is missing, and {why}"
    if "latest" in names and (folder / "latest").stat().st_size <= TAG:
        tag = (folder / "latest").read_text(errors="replace").strip()
        if not tag or not (folder / tag).exists():
            return f"{folder.name}: latest names {tag!r}, which is not there"
    return _distributed(folder) if ".metadata" in names else None


def _expected(folder: Path, names: set[str]) -> dict[str, str]:
    """What must be there, and why."""
    expected = dict.fromkeys(_shards(names), "the other shards name it")
    for index in (name for name in names if name.endswith(".index.json")):
        shards: Any = json.loads((folder / index).read_bytes())
        for name in shards.get("weight_map", {}).values() if isinstance(shards, dict) else ():
            expected[str(name)] = f"{index} names it"
    if any(name.endswith(".distcp") for name in names) or re.fullmatch(r"pytorch_model_fsdp_\d+", folder.name):
        expected[".metadata"] = "it is written last"
    if "optimizer.pt" in names and ("training_args.bin" in names or re.fullmatch(r"checkpoint-\d+", folder.name)):
        expected["trainer_state.json"] = "it is written last"
    return expected


def _shards(names: set[str]) -> Iterator[str]:
    """All files of each set of shards of which one is there."""
    for base, _, count, suffix in {match.groups() for match in map(SHARD.fullmatch, names) if match}:
        first = 0 if f"{base}-00000-of-{count}{suffix}" in names else 1
        for number in range(first, first + int(count)):
            yield f"{base}-{number:05d}-of-{count}{suffix}"


def _distributed(folder: Path) -> str | None:
    """Parts that `.metadata` names, and how far each reaches."""
    reach: dict[str, int] = {}
    try:
        with (folder / ".metadata").open("rb") as content:
            values = list(_values(content))
        for i in range(len(values) - 5):
            if values[i : i + 5 : 2] == ["relative_path", "offset", "length"]:
                name, offset, length = values[i + 1 : i + 6 : 2]
                reach[str(name)] = max(reach.get(str(name), 0), int(offset) + int(length))
    except (ValueError, TypeError) as error:
        return f"{folder.name}: .metadata is half written, {error}"
    for name, end in reach.items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if size < end:
            return f"{name} has {size} of {end} bytes"
    return None if reach else f"{folder.name}: .metadata names no file"


def _file(file: Path) -> str | None:
    """What is missing of one file; None if nothing is, or it is of a kind that does not say."""
    size = file.stat().st_size
    if not size:
        return "it is empty" if file.suffix in FULL or file.name in FULL else None
    try:
        with file.open("rb") as content:
            head = content.read(32)
            content.seek(0)
            if file.suffix == ".safetensors":
                return _safetensors(content, size)
            if head[:4] == ZIP[:size]:
                return _zip(content)
            if MAGIC.to_bytes(10, "little") in head:
                return _older_torch(content, size)
            return _of_suffix(file, content)
    except Exception as error:  # noqa: BLE001  # a damaged file makes its readers raise anything
        return f"it cannot be read: {error!r}"


def _of_suffix(file: Path, content: IO[bytes]) -> str | None:
    if file.suffix in TORCH:
        return "it does not begin as a file of torch.save"
    if file.suffix in PICKLED and content.read(1) == b"\x80":
        content.seek(-1, os.SEEK_END)
        return None if content.read() == b"." else "a pickle without its end"
    if file.suffix == ".json" and file.stat().st_size <= LARGEST_JSON:
        try:
            json.loads(content.read())
        except ValueError as error:
            return f"it is no JSON: {error}"
    return None


def _zip(content: IO[bytes]) -> str | None:
    if not zipfile.is_zipfile(content):
        return "a zip file without its end"
    with zipfile.ZipFile(content) as parts:
        for part in parts.infolist():
            with parts.open(part) as member:
                while part.CRC and member.read(CHUNK):  # 0 where torch is set to compute none
                    pass
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
        *_, values, keys = [list(_values(content)) for _ in range(5)]
    except ValueError as error:
        return f"it ends early: {error}"
    storages: dict[Any, tuple[int, int]] = {}
    for i, value in enumerate(values):
        if kind := STORAGE.fullmatch(str(value)):
            key, _, count = values[i + 1 : i + 4]  # after the place
            storages[key] = int(count), BYTES[kind[1]]
    for key in keys:
        if key not in storages:
            return None  # it is of another form, of which we know nothing
        count, of_each = storages.pop(key)
        if int.from_bytes(content.read(8), "little") != count:
            return f"storage {key} is not there as a whole"
        content.seek(count * of_each, os.SEEK_CUR)
    whole = content.tell()
    return None if size >= whole and not storages else f"{size} of {whole} bytes"


def _values(content: IO[bytes]) -> Iterator[Any]:
    """The texts, numbers and names in the next pickle of `content`, in their order; nothing in it is run."""
    memo: dict[int, Any] = {}
    before: Any = None
    last: Any = None
    try:
        code: pickletools.OpcodeInfo
        argument: Any
        for code, argument, _ in pickletools.genops(content):
            if code.name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
                memo[len(memo) if argument is None else argument] = last
                continue
            value = argument if isinstance(argument, str | int | bytes) else None
            if code.name in ("BINGET", "LONG_BINGET", "GET"):
                value = memo.get(argument)
            elif code.name == "STACK_GLOBAL":  # a name, of its two parts before
                value = f"{before} {last}"
            before, last = last, None if code.name in ("PROTO", "FRAME") else value
            if last is not None:
                yield last
    except (IndexError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
