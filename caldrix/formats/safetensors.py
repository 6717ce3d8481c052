"""safetensors: one file, a set of shards with an index, or every file of a directory.

Owns the header and its rules: one flat JSON object, spans that follow each other without a gap
from the first byte of the data to the last of the file. The header is scanned where it is mapped,
one tensor at a time, so that a hostile one costs neither memory nor recursion; the safetensors
package then has the last word on it. Must not know what a tensor is for.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath

from caldrix.errors import NotFoundError, RefusedError, printable
from caldrix.formats import dtypes
from caldrix.formats.checkpoint import (
    Checkpoint,
    MappedFile,
    Tensor,
    Unreadable,
    foreign_kind,
    map_file,
    merge,
    refusal,
)
from caldrix.formats.config_file import read_json
from caldrix.log import escape

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# The format's own bound, then ours: the largest real files hold 20,000 tensors.
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 65536
MAX_NAME_BYTES = 256
MAX_SHARD_NAME = 256
MAX_ENTRY_BYTES = 4096
MAX_RANK = 16
# Also of the sizes beside a zero: a library must be able to make an array of the shape.
MAX_ELEMENTS = 2**48
# Up to here the package's reading of the header fits in a few megabytes.
MAX_JUDGED_BYTES = 16_000_000

# Every dtype the format names, in bits an element. Ours have the same names in lower case.
_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "BOOL": 8, "I8": 8, "U8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
}  # fmt: skip
_READABLE = ("F32", "F16", "BF16")
_FIELDS = ["data_offsets", "dtype", "shape"]

# Possessive throughout: a match keeps no state, whatever the header holds.
_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_PAIR = _STRING + _SPACE + b":" + _SPACE + _STRING
_KEY = re.compile(_SPACE + b"(" + _STRING + b")" + _SPACE + b":" + _SPACE, re.DOTALL)
_PAIRS = _PAIR + _SPACE + b"(?:," + _SPACE + _PAIR + _SPACE + b")*+"
_METADATA = re.compile(rb"\{" + _SPACE + b"(?:" + _PAIRS + rb")?\}|null", re.DOTALL)
_ENTRY = re.compile(rb"\{[^][{}]*+(?:\[[^][{}]*+\][^][{}]*+)*+\}")
_NEXT = re.compile(_SPACE + rb"([,}])")
_REST = re.compile(_SPACE)

_PART = re.compile(r"(?P<prefix>.+)-(?P<part>\d{1,9})-of-(?P<count>\d{1,9})\.safetensors")


def open_safetensors(directory: Path) -> Checkpoint:
    """Every tensor of a model directory: of `model.safetensors`, else of an index, else of all."""
    single, index = directory / SINGLE, directory / INDEX
    # A link whose target is gone is there, and refused by its own name.
    if os.path.lexists(single):
        return read_file(single)
    if os.path.lexists(index):
        return _open_indexed(directory, index)
    return _open_all(directory)


def read_file(path: Path) -> Checkpoint:
    """The tensors of one safetensors file."""
    file = map_file(path)
    entries, data_start = _read_header(file)
    _check_layout(file, entries, data_start)
    _judge(file, entries, data_start)
    tensors: dict[str, Tensor] = {}
    unreadable: dict[str, Unreadable] = {}
    for entry in entries.values():
        if entry.dtype in _READABLE:
            dtype = dtypes.by_name(entry.dtype.lower())
            offset = data_start + entry.begin
            tensors[entry.name] = Tensor(entry.name, dtype, entry.shape, file, offset)
        else:
            unreadable[entry.name] = Unreadable(entry.dtype, file)
    return Checkpoint(tensors, (file,), unreadable)


# --- sets of files ------------------------------------------------------------------------------


def _open_indexed(directory: Path, index: Path) -> Checkpoint:
    """The tensors an index lists, each from the shard it names; others are left alone."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise refusal(index, "no weight_map that names a shard for each tensor")
    wanted: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_inside(shard):
            problem = f"weight_map puts {printable(name)} in {printable(shard)}"
            raise refusal(index, f"{problem}; a shard is a file of this directory")
        wanted.setdefault(shard, []).append(name)
    missing = [shard for shard in sorted(wanted) if not os.path.exists(directory / shard)]
    if missing:
        problem = f"incomplete: {', '.join(missing[:3])} of its {len(wanted)} shards missing"
        raise refusal(index, problem if len(missing) <= 3 else f"{problem} ({len(missing)} in all)")
    return merge(_pick(read_file(directory / shard), names) for shard, names in wanted.items())


def _is_inside(shard: str) -> bool:
    """Whether a name stays in its directory. A link may lead out: the Hub's cache has links."""
    path = PurePosixPath(shard)
    plain = shard.isprintable() and "\\" not in shard and len(shard) < MAX_SHARD_NAME
    return bool(path.name) and plain and not path.is_absolute() and ".." not in path.parts


def _pick(part: Checkpoint, names: list[str]) -> Checkpoint:
    """Of one shard, the tensors an index puts there; refuses when one is not."""
    for name in names:
        if name not in part.tensors and name not in part.unreadable:
            raise part.files[0].refusal(f"no tensor {printable(name)}, which {INDEX} puts here")
    tensors = {name: part.tensors[name] for name in names if name in part.tensors}
    unreadable = {name: part.unreadable[name] for name in names if name in part.unreadable}
    return Checkpoint(tensors, part.files, unreadable)


def _open_all(directory: Path) -> Checkpoint:
    """Every safetensors file of a directory without an index."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise refusal(directory, f"cannot be read: {error.strerror}") from None
    shards = [name for name in names if name.endswith(".safetensors") and name[0] != "."]
    if not shards:
        others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".gguf"))]
        hint = f"; it holds {escape(others[0])}, which is not one" if others else ""
        raise NotFoundError(str(refusal(directory, f"no *.safetensors file{hint}")))
    for shard in shards:
        _check_siblings(directory, shard, set(shards))
    return merge(read_file(directory / shard) for shard in shards)


def _check_siblings(directory: Path, shard: str, present: set[str]) -> None:
    """Refuses a file named as part of a set whose other parts are not all there."""
    match = _PART.fullmatch(shard)
    if not match:
        return
    width, count = len(match["part"]), int(match["count"])
    for part in range(1, count + 1):
        sibling = f"{match['prefix']}-{part:0{width}d}-of-{match['count']}.safetensors"
        if sibling not in present:
            raise refusal(directory / shard, f"incomplete: {escape(sibling)} is missing beside it")


# --- one file -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _read_header(file: MappedFile) -> tuple[dict[str, _Entry], int]:
    """The header's tensors in its order, and where the data starts."""
    foreign = foreign_kind(file.view)
    if foreign and not foreign.startswith("a safetensors"):
        raise file.refusal(foreign)
    if file.size < 8:
        raise file.refusal(f"cut short: {file.size} bytes, a safetensors file has at least 10")
    length = int.from_bytes(file.view[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise file.refusal(f"not safetensors: a header of {length} bytes, the format allows 100 MB")
    if 8 + length > file.size:
        raise file.refusal(f"cut short: {file.size} bytes, its header alone needs {8 + length}")
    if bytes(file.view[8:9]) != b"{":
        raise file.refusal("not safetensors: its header is no JSON object")
    return _scan(file, 8 + length), 8 + length


def _scan(file: MappedFile, end: int) -> dict[str, _Entry]:
    """Walks the header object from its brace to `end`, one key at a time."""
    entries: dict[str, _Entry] = {}
    seen_metadata = False
    position, mark = 9, b","
    if (empty := _NEXT.match(file.view, position, end)) and empty[1] == b"}":
        position, mark = empty.end(), b"}"
    while mark == b",":
        key = _KEY.match(file.view, position, end)
        if not key:
            raise file.refusal(f"not safetensors: no JSON key at byte {position} of the header")
        name = _read_name(file, key.start(1), key.end(1))
        pattern = _METADATA if name == "__metadata__" else _ENTRY
        value = pattern.match(file.view, key.end(), end)
        if not value:
            raise file.refusal(
                f"header entry {printable(name)} is not an object of the format's form"
            )
        if name in entries or (name == "__metadata__" and seen_metadata):
            raise file.refusal(f"header entry {printable(name)} is given twice")
        if pattern is _METADATA:
            seen_metadata = True
        else:
            entries[name] = _read_entry(file, name, value.start(), value.end())
        if len(entries) > MAX_TENSORS:
            raise file.refusal(f"more than {MAX_TENSORS} tensors in one file")
        following = _NEXT.match(file.view, value.end(), end)
        if not following:
            raise file.refusal(f"not safetensors: the header breaks off after {printable(name)}")
        position, mark = following.end(), following[1]
    rest = _REST.match(file.view, position, end)
    if not rest or rest.end() != end:
        raise file.refusal("not safetensors: the header goes on after its object")
    return entries


def _read_name(file: MappedFile, start: int, end: int) -> str:
    """The tensor name whose quotes are at `start` and `end - 1`."""
    if not 2 < end - start <= MAX_NAME_BYTES:
        raise file.refusal(
            f"a tensor name of {end - start - 2} bytes; 1 to {MAX_NAME_BYTES - 2} are accepted"
        )
    try:
        name = json.loads(bytes(file.view[start:end]).decode())
    except ValueError:
        raise file.refusal(f"the tensor name at byte {start} is not a JSON string") from None
    if not name.isprintable():
        raise file.refusal(f"tensor name {printable(name)} has characters that do not print")
    return str(name)


def _read_entry(file: MappedFile, name: str, start: int, end: int) -> _Entry:
    """One tensor's dtype, shape and span, consistent with each other."""
    subject = f"tensor {printable(name)}"
    fields: object = None
    if end - start <= MAX_ENTRY_BYTES:
        with suppress(ValueError):
            fields = json.loads(bytes(file.view[start:end]).decode(), object_pairs_hook=list)
    if not isinstance(fields, list) or sorted(key for key, _ in fields) != _FIELDS:
        raise file.refusal(f"{subject}: expected the three keys dtype, shape and data_offsets")
    entry = dict(fields)
    dtype = entry.get("dtype")
    shape, span = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise file.refusal(
            f"{subject} has dtype {printable(dtype)}, which safetensors does not name"
        )
    if shape is None or len(shape) > MAX_RANK:
        shown = printable(entry.get("shape"))
        raise file.refusal(f"{subject} has shape {shown}; expected up to {MAX_RANK} sizes")
    if span is None or len(span) != 2 or span[0] > span[1]:
        shown = printable(entry.get("data_offsets"))
        raise file.refusal(f"{subject} has data_offsets {shown}; expected its start and end")
    if prod(size or 1 for size in shape) > MAX_ELEMENTS:
        raise file.refusal(f"{subject} has shape {printable(shape)}, more than any file holds")
    size_bits, size_bytes = prod(shape) * _BITS[dtype], span[1] - span[0]
    if size_bits != 8 * size_bytes:
        problem = f"{subject} of {dtype} {printable(shape)} has {size_bytes} bytes"
        raise file.refusal(f"{problem}, expected {(size_bits + 7) // 8}")
    return _Entry(name, dtype, tuple(shape), span[0], span[1])


def _counts(value: object) -> list[int] | None:
    """A JSON array of sizes or offsets, or None for anything else."""
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value):
        return value
    return None


def _check_layout(file: MappedFile, entries: dict[str, _Entry], data_start: int) -> None:
    """Spans cover the data exactly: no gap, no overlap, nothing after the last."""
    position, before = 0, "the header"
    in_order = sorted(entries.values(), key=lambda entry: (entry.begin, entry.end))
    for entry in in_order:
        name = printable(entry.name)
        if entry.begin < position:
            problem = f"tensor {name} overlaps {before}, which ends at data byte {position}"
            raise file.refusal(problem)
        if entry.begin > position:
            n_bytes = entry.begin - position
            raise file.refusal(f"{n_bytes} bytes between {before} and tensor {name} belong to none")
        position, before = entry.end, f"tensor {name}"
    needed = data_start + position
    for entry in in_order:
        if data_start + entry.end > file.size:
            raise file.cut_short(needed, entry.name)
    if needed < file.size:
        n_bytes = file.size - needed
        raise file.refusal(f"{n_bytes} bytes follow its last tensor; expected {needed} in all")


def _judge(file: MappedFile, entries: dict[str, _Entry], data_start: int) -> None:
    """The package's reading of the same header must hold the same names."""
    if data_start > MAX_JUDGED_BYTES:
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file.path, framework="numpy") as judged:
            names = set(judged.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise file.refusal(f"refused by the safetensors package: {escape(str(error))}") from None
    if names != set(entries):
        raise RefusedError(str(file.refusal("the safetensors package reads other tensors in it")))
