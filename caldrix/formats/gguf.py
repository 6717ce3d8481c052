"""GGUF, versions 2 and 3, in one file or in the parts of a split one.

Owns the header, the tensor table and the rules that join parts. Must not know what a metadata key
other than `general.alignment` and `split.*` means. A tensor's place follows from the sizes before
it (llama.cpp writes and demands them so) and its offset must say the same, up to the file's last
byte: that leaves no room for overlaps, gaps or a tensor outside the file.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from caldrix.errors import printable
from caldrix.formats import dtypes
from caldrix.formats.checkpoint import (
    Checkpoint,
    MappedFile,
    Tensor,
    foreign_kind,
    map_file,
    merge,
    refusal,
)
from caldrix.formats.gguf_metadata import U32, U64, Cursor, Metadata, read_metadata
from caldrix.log import escape

MAGIC = b"GGUF"
HEADER_BYTES = 24
DEFAULT_ALIGNMENT = 32
MAX_TENSORS = 65536
MAX_RANK = 4

_PART_NAME = re.compile(r"(?P<prefix>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gguf:
    """An opened model: its metadata is that of the first part, its tensors those of all."""

    metadata: Metadata
    checkpoint: Checkpoint
    path: Path


def open_gguf(path: Path) -> Gguf:
    """The model in this file; for any part of a split model, the whole of it."""
    given = _read_part(path)
    count = _split_key(given, "split.count")
    if count is None or count <= 1:
        return given
    siblings = _sibling_paths(given, count)
    missing = [sibling.name for sibling in siblings if not os.path.exists(sibling)]
    if missing:
        names = ", ".join(map(escape, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise refusal(path, f"one of {count} parts, of which {len(missing)} are missing: {names}")
    parts = [given if sibling == path else _read_part(sibling) for sibling in siblings]
    for number, part in enumerate(parts):
        _check_part(part, number, count)
    checkpoint = merge(part.checkpoint for part in parts)
    total = _split_key(parts[0], "split.tensors.count")
    if total is not None and total != len(checkpoint.tensors):
        raise refusal(
            siblings[0],
            f"says {total} tensors in its {count} parts, which hold {len(checkpoint.tensors)}",
        )
    return Gguf(parts[0].metadata, checkpoint, path)


# --- parts of a split model ---------------------------------------------------------------------


def _split_key(part: Gguf, key: str) -> int | None:
    """One of the counts a part carries about its set; None where it has none."""
    value = part.metadata.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise refusal(part.path, f"metadata key {key!r} is {printable(value)}, expected a count")
    return value


def _sibling_paths(given: Gguf, count: int) -> list[Path]:
    """Where every part must lie, by the name of the one given."""
    path = given.path
    match = _PART_NAME.fullmatch(path.name)
    if not match or int(match["count"]) != count:
        number = (_split_key(given, "split.no") or 0) + 1
        expected = f"NAME-{number:05d}-of-{count:05d}.gguf"
        raise refusal(
            path, f"part {number} of {count} by its metadata, so its name must be {expected}"
        )
    return [
        path.with_name(f"{match['prefix']}-{n:05d}-of-{count:05d}.gguf")
        for n in range(1, count + 1)
    ]


def _check_part(part: Gguf, number: int, count: int) -> None:
    """Whether what a part says of itself agrees with the name it was found under."""
    said, said_count = _split_key(part, "split.no"), _split_key(part, "split.count")
    if said_count != count:
        raise refusal(
            part.path,
            f"part {number + 1} of {count} by its name, of {said_count or 1} by its metadata",
        )
    if said != number:
        by_metadata = "no part" if said is None else f"part {said + 1}"
        problem = f"part {number + 1} of {count} by its name, {by_metadata} by its metadata"
        raise refusal(part.path, f"{problem}: swapped or misnamed")


# --- one file -----------------------------------------------------------------------------------


def _read_part(path: Path) -> Gguf:
    file = map_file(path)
    n_tensors, n_keys = _read_header(file)
    cursor = Cursor(file, HEADER_BYTES)
    metadata = read_metadata(cursor, n_keys)
    alignment = _alignment(file, metadata)
    tensors = _read_tensors(cursor, n_tensors, alignment)
    return Gguf(metadata, Checkpoint(tensors, (file,)), path)


def _read_header(file: MappedFile) -> tuple[int, int]:
    """The numbers of tensors and of metadata keys."""
    if bytes(file.view[:4]) != MAGIC:
        kind = foreign_kind(file.view) or "it does not start with the letters GGUF"
        raise file.refusal(f"not GGUF: {kind}")
    cursor = Cursor(file, len(MAGIC))
    version = cursor.count(U32, "the header")
    if version not in (2, 3):
        if version and version & 0xFFFF == 0:
            raise file.refusal("a big-endian GGUF file; only little-endian ones are accepted")
        raise file.refusal(f"GGUF version {version}; 2 and 3 are accepted")
    n_tensors = cursor.count(U64, "the header")
    n_keys = cursor.count(U64, "the header")
    if n_tensors > MAX_TENSORS:
        raise file.refusal(f"{n_tensors} tensors; up to {MAX_TENSORS} are accepted")
    return n_tensors, n_keys


def _alignment(file: MappedFile, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1):
        problem = f"metadata key 'general.alignment' is {printable(value)}, expected a power of two"
        raise file.refusal(problem)
    return value


def _read_tensors(cursor: Cursor, n_tensors: int, alignment: int) -> dict[str, Tensor]:
    """The tensor table, then each tensor's place behind it."""
    file = cursor.file
    table: dict[str, Tensor] = {}
    position = 0
    for index in range(n_tensors):
        tensor = _read_tensor(cursor, f"tensor {index + 1} of {n_tensors}")
        subject = f"tensor {printable(tensor.name)}"
        if tensor.name in table:
            raise file.refusal(f"{subject} is given twice")
        if tensor.offset != position:
            expected = f"the sizes before it put it at {position}"
            raise file.refusal(f"{subject} is at data offset {tensor.offset}; {expected}")
        table[tensor.name] = tensor
        position = _align(position + tensor.size_bytes, alignment)
    data_start = _align(cursor.position, alignment)
    placed: dict[str, Tensor] = {}
    needed = cursor.position
    for name, tensor in table.items():
        offset = data_start + tensor.offset
        placed[name] = Tensor(name, tensor.dtype, tensor.shape, file, offset)
        needed = offset + tensor.size_bytes
    for tensor in placed.values():
        if tensor.offset + tensor.size_bytes > file.size:
            raise file.cut_short(needed, tensor.name)
    # More than padding means that a count or a size above is not what was written.
    if file.size > _align(needed, alignment):
        raise file.refusal(f"{file.size - needed} bytes follow its last tensor, more than padding")
    return placed


def _read_tensor(cursor: Cursor, what: str) -> Tensor:
    """One row of the table; its offset still counts from the start of the data."""
    file = cursor.file
    name = cursor.name(what)
    subject = f"tensor {printable(name)}"
    rank = cursor.count(U32, subject)
    if not 1 <= rank <= MAX_RANK:
        raise file.refusal(f"{subject} has {rank} dimensions; 1 to {MAX_RANK} are accepted")
    dims = [cursor.count(U64, subject) for _ in range(rank)]
    type_id = cursor.count(U32, subject)
    dtype = dtypes.gguf_type(type_id)
    if dtype is None:
        problem = f"{subject} has type {type_id}; caldrix reads {dtypes.names()}"
        raise file.refusal(problem)
    if 0 in dims:
        raise file.refusal(f"{subject} has a dimension of zero: {dims}")
    if dims[0] % dtype.block_elements:
        problem = f"{subject} has rows of {dims[0]} elements, not a multiple of the"
        raise file.refusal(f"{problem} {dtype.block_elements} of {dtype.name.upper()}")
    return Tensor(name, dtype, tuple(reversed(dims)), file, cursor.count(U64, subject))


def _align(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment
