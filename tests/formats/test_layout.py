"""Layout files come back as they were written; one that is not whole, not ours or not of these very
files says why it is of no use."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caldrix.formats.checkpoint import MappedFile, map_file
from caldrix.formats.dtypes import by_name
from caldrix.formats.layout import (
    HEAD_BYTES,
    Place,
    Unusable,
    align,
    open_layout,
    write_table,
)

PLANES = by_name("planes")
PLACES = (Place("a", PLANES, (3, 512), 64), Place("b", PLANES, (1, 256), align(64 + 6 * 398)))


@pytest.fixture
def source(tmp_path: Path) -> MappedFile:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return map_file(path)


@pytest.fixture
def written(tmp_path: Path, source: MappedFile) -> Path:
    path = tmp_path / "m.layout"
    with path.open("wb") as file:
        for number, place in enumerate(PLACES, 1):
            os.pwrite(file.fileno(), bytes([number]) * (place.end - place.offset), place.offset)
        os.pwrite(file.fileno(), b"of a tensor that did not fit", PLACES[-1].end + 64)
        write_table(file, [source], PLACES)
    return path


def test_it_comes_back_as_it_was_written(written: Path, source: MappedFile) -> None:
    layout = open_layout(written, [source])
    assert layout.places == PLACES
    for number, place in enumerate(PLACES, 1):
        assert set(layout.file.view[place.offset : place.end]) == {number}
    assert b"did not fit" not in written.read_bytes()


def test_one_without_tensors_says_that_there_are_none(tmp_path: Path, source: MappedFile) -> None:
    path = tmp_path / "none.layout"
    with path.open("wb") as file:
        write_table(file, [source], [])
    assert open_layout(path, [source]).places == ()


def why(path: Path, *sources: MappedFile) -> str:
    with pytest.raises(Unusable) as caught:
        open_layout(path, sources)
    return str(caught.value)


def test_cut_anywhere_it_is_of_no_use(written: Path, source: MappedFile) -> None:
    raw = written.read_bytes()
    for size in [*range(1, 70), len(raw) // 2, *range(len(raw) - 50, len(raw))]:
        written.write_bytes(raw[:size])
        assert "cut short" in why(written, source), size
    written.write_bytes(b"")
    assert why(written, source) == "the file is empty"
    written.write_bytes(raw + b"\0")
    assert "cut short or damaged" in why(written, source)


def test_no_byte_of_head_or_table_can_change_unseen(written: Path, source: MappedFile) -> None:
    raw = written.read_bytes()
    table = struct.unpack_from("<Q", raw, 16)[0]
    for at in [*range(56), *range(table, len(raw))]:
        changed = bytearray(raw)
        changed[at] ^= 0x20
        written.write_bytes(changed)
        assert why(written, source), at


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"GGUF" + bytes(100), "not a layout file"),
        (b"x", "not a layout file"),
        (b"CXLAYOUT" + struct.pack("<IIQ", 2, 0, 64) + bytes(40), "of version 2; this one makes 1"),
        (b"CXLAYOUT" + struct.pack("<IIQ", 1, 2**31, 64) + bytes(40), "cut short or damaged"),
        (b"CXLAYOUT" + struct.pack("<IIQ", 1, 0, 64) + bytes(40), "does not have the digest"),
    ],
)
def test_foreign_files_are_named(
    tmp_path: Path, source: MappedFile, raw: bytes, words: str
) -> None:
    path = tmp_path / "f.layout"
    path.write_bytes(raw)
    assert words in why(path, source)


@pytest.mark.parametrize("kind", ["absent", "directory", "pipe"])
def test_what_is_no_file_is_of_no_use(tmp_path: Path, source: MappedFile, kind: str) -> None:
    path = tmp_path / "f.layout"
    if kind != "absent":
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    assert why(path, source) == ("no such file" if kind == "absent" else "not a regular file")


def test_weights_that_have_changed_are_noticed(written: Path, source: MappedFile) -> None:
    path, about = source.path, source.path.stat()
    changed = "the weights have changed since it was made"
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert why(written, map_file(path)) == changed
    # Other bytes with the same size and time: the change of anything about the file tells.
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert map_file(path).modified_ns == source.modified_ns
    assert why(written, map_file(path)) == changed
    copy = path.with_name("copy.safetensors")
    copy.write_bytes(b"weights")
    assert why(written, map_file(copy)) == changed
    assert why(written) == changed
    assert why(written, source, source) == changed
    assert open_layout(written, [source])  # the file as it was mapped


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    """The table changed, with a digest that agrees."""
    raw = path.read_bytes()
    start = struct.unpack_from("<Q", raw, 16)[0]
    table = change(json.loads(raw[start:]))
    table = table if isinstance(table, bytes) else json.dumps(table).encode()
    head = struct.pack("<8sIIQ", b"CXLAYOUT", 1, len(table), start)
    digest = hashlib.sha256(head + table).digest()
    path.write_bytes(head + digest + raw[56:start] + table)


def tensor(**values: Any) -> Callable[[Any], Any]:
    def change(document: Any) -> Any:
        document["tensors"][1] |= values
        return document

    return change


FORM = "its table is not of the form that this version writes"
TABLES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda document: [], FORM),
    (lambda document: {}, FORM),
    (lambda document: b"", FORM),
    (lambda document: b"\xff", FORM),
    (lambda document: b"[" * 200_000, FORM),
    (lambda document: document | {"tensors": 3}, FORM),
    (lambda document: document | {"tensors": ["name"]}, FORM),
    (lambda document: document | {"tensors": [{}]}, FORM),
    (tensor(name=7), FORM),
    (tensor(type="nonesuch"), FORM),
    (tensor(type=[]), FORM),
    (tensor(shape=256), FORM),
    (tensor(shape=[1, -256]), FORM),
    (tensor(shape=[1.0, 256]), FORM),
    (tensor(shape=[True, 256]), FORM),
    (tensor(offset="64"), FORM),
    (tensor(offset=-64), "its table puts 'b' where it cannot be"),
    (tensor(offset=0), "its table puts 'b' where it cannot be"),
    (tensor(offset=64), "its table puts 'b' where it cannot be"),
    (tensor(offset=PLACES[1].offset + 1), "its table puts 'b' where it cannot be"),
    (tensor(offset=2**40), "its table puts 'b' where it cannot be"),
    (tensor(shape=[2**40, 256], name="\x1b[2J"), r"its table puts '\x1b[2J' where it cannot be"),
]


@pytest.mark.parametrize(("change", "words"), TABLES)
def test_a_table_of_lies_is_of_no_use(
    written: Path, source: MappedFile, change: Callable[[Any], Any], words: str
) -> None:
    rewritten(written, lambda document: document)
    assert open_layout(written, [source]).places == PLACES
    rewritten(written, change)
    assert why(written, source) == words


def test_the_head_is_as_long_as_it_says() -> None:
    assert struct.calcsize("<8sIIQ") + hashlib.sha256().digest_size <= HEAD_BYTES
