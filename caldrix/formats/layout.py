"""Layout files: weights as caldrix packed them, written once and mapped from then on.

Owns the file's form and whether one belongs to the files that it was made from. Must not know a
codec, nor where such files are kept. A layout is a cache: one that is cut, foreign, damaged or of
weights that have changed is `Unusable`, which refuses no model. The table at its end is checked by
a digest; the weights before it are not read.

    64 bytes  magic, version, bytes and place of the table, SHA-256 of these and of the table
    weights   each from a multiple of 64 bytes on
    table     JSON: the files it was made from, and name, type, shape and place of every tensor
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

from caldrix.errors import CaldrixError, printable
from caldrix.formats.checkpoint import MappedFile, map_file
from caldrix.formats.dtypes import DType, by_name

MAGIC = b"CXLAYOUT"
VERSION = 1
HEAD = struct.Struct("<8sIIQ")
HEAD_BYTES = 64
ALIGNMENT = 64
MAX_TABLE_BYTES = 1 << 26


class Unusable(Exception):
    """Why a layout file is of no use, in words that follow its path."""


class Place(NamedTuple):
    """A packed tensor: `offset` counts from the file's start."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        n_blocks = prod(self.shape) // self.dtype.block_elements
        return self.offset + n_blocks * self.dtype.block_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A mapped layout file and what is in it."""

    file: MappedFile
    places: tuple[Place, ...]


def align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def write_table(file: BinaryIO, sources: Sequence[MappedFile], places: Sequence[Place]) -> None:
    """Completes a file that holds the weights of `places` and nothing else yet."""
    document = {
        "files": [_described(source) for source in sources],
        "tensors": [
            {"name": p.name, "type": p.dtype.name, "shape": list(p.shape), "offset": p.offset}
            for p in places
        ],
    }
    table = json.dumps(document, indent=1).encode()
    start = align(max((place.end for place in places), default=HEAD_BYTES))
    head = HEAD.pack(MAGIC, VERSION, len(table), start)
    file.truncate(start)  # past what a tensor that could not be packed has left
    file.seek(start)
    file.write(table)
    file.seek(0)
    file.write(head + _digest(head, table))


def open_layout(path: Path, sources: Sequence[MappedFile]) -> Layout:
    """The layout at `path`, made from just these files as they are. Raises Unusable."""
    try:
        file = map_file(path)
    except CaldrixError as error:
        raise Unusable(str(error).removeprefix(f"{path}: ")) from None
    table, start = _read_table(file)
    try:
        document = json.loads(table)
        made_of, places = document["files"], tuple(map(_place, document["tensors"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        raise Unusable("its table is not of the form that this version writes") from None
    if made_of != [_described(source) for source in sources]:
        raise Unusable("the weights have changed since it was made")
    end = HEAD_BYTES
    for place in places:
        if place.offset % ALIGNMENT or not end <= place.offset <= place.end <= start:
            raise Unusable(f"its table puts {printable(place.name)} where it cannot be")
        end = place.end
    return Layout(file, places)


def _read_table(file: MappedFile) -> tuple[bytes, int]:
    """The table, and where it starts."""
    if bytes(file.view[: len(MAGIC)]) != MAGIC[: file.size]:
        raise Unusable("not a layout file")
    if file.size < HEAD_BYTES:
        raise Unusable(f"cut short: it has {file.size} bytes")
    _, version, table_bytes, start = HEAD.unpack_from(file.view)
    if version != VERSION:
        raise Unusable(f"of version {version}; this one makes {VERSION}")
    if table_bytes > MAX_TABLE_BYTES or start + table_bytes != file.size:
        raise Unusable(f"cut short or damaged: it has {file.size} bytes of {start + table_bytes}")
    table = bytes(file.view[start:])
    digest = file.view[HEAD.size : HEAD.size + hashlib.sha256().digest_size]
    if digest != _digest(bytes(file.view[: HEAD.size]), table):
        raise Unusable("damaged: its table does not have the digest in its head")
    return table, start


def _place(entry: Mapping[str, object]) -> Place:
    """One entry of the table. Raises KeyError, TypeError or ValueError for any other form."""
    name, dtype, shape, offset = (entry[key] for key in ("name", "type", "shape", "offset"))
    if not isinstance(name, str) or not isinstance(dtype, str):
        raise TypeError
    if not isinstance(shape, list) or not isinstance(offset, int):
        raise TypeError
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError
    return Place(name, by_name(dtype), tuple(shape), offset)


def _described(source: MappedFile) -> dict[str, object]:
    """What tells a file from every other and from itself before a change."""
    return {
        "path": str(source.path.resolve()),
        "size": source.size,
        "modified_ns": source.modified_ns,
        "changed_ns": source.changed_ns,
    }


def _digest(head: bytes, table: bytes) -> bytes:
    return hashlib.sha256(head + table).digest()
