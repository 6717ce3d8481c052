"""GGUF, safetensors and JSON files drawn by hypothesis: opened right or refused in one line.

What is drawn is nearly right, since bytes drawn freely never pass the first check.
"""

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from caldrix.errors import RefusedError
from caldrix.formats.checkpoint import Checkpoint
from caldrix.formats.config_file import read_json
from caldrix.formats.gguf import open_gguf
from caldrix.formats.safetensors import read_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "formats"))

from model_files import (
    ARRAY,
    BLOCKS,
    NUMBERS,
    STRING,
    header,
    key,
    row,
    text,
    u32,
    u64,
    with_header,
    write_gguf,
    write_safetensors,
)

# The same draws in every run; CALDRIX_FUZZ=N draws N others for a search.
SEARCH = int(os.environ.get("CALDRIX_FUZZ", "0"))
fuzz = settings(
    max_examples=SEARCH or 150,
    derandomize=not SEARCH,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

SIZES = st.sampled_from(
    [0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 255, 2**31, 2**32, 2**61, 2**63, 2**64 - 1]
)
U64S = SIZES | st.integers(0, 2**64 - 1)
U32S = st.integers(0, 40) | st.integers(0, 2**32 - 1)
# Names that mean something are left out: hypothesis finds them in the code it tests.
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__" and not name.startswith(("split.", "general."))
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "drawn"


def refusal_of(opener: Any, path: Path, raw: bytes) -> tuple[Any, str | None]:
    """What opened, or the one line that refused it; any other exception fails the test."""
    path.write_bytes(raw)
    try:
        return opener(path), None
    except RefusedError as error:
        message = str(error)
    assert path.name in message
    assert message.isprintable()
    return None, message


def check_inside(checkpoint: Checkpoint, size: int) -> None:
    """Every tensor lies in the file, apart from the others."""
    end = 0
    for tensor in sorted(checkpoint.tensors.values(), key=lambda t: (t.offset, t.size_bytes)):
        assert tensor.offset >= end
        end = tensor.offset + tensor.size_bytes
        assert end <= size
        assert len(tensor.data) == tensor.size_bytes


# --- GGUF ---------------------------------------------------------------------------------------

value_types = st.integers(0, 14)
drawn_keys = st.builds(
    key,
    st.sampled_from(["general.alignment", "split.count", "k", ""]) | NAMES | st.binary(max_size=9),
    value_types,
    st.binary(max_size=12)
    | st.builds(text, st.binary(max_size=9))
    | st.builds(
        lambda t, n, rest: u32(t) + u64(n) + rest, value_types, U64S, st.binary(max_size=40)
    ),
)
drawn_rows = st.builds(
    row, NAMES | st.binary(max_size=5), st.lists(U64S, max_size=5), U32S, st.just(0) | U64S
)


@fuzz
@given(
    st.lists(drawn_keys, max_size=4),
    st.lists(drawn_rows, max_size=4),
    st.none() | U64S,
    st.none() | U64S,
    st.integers(0, 600),
    st.binary(max_size=8),
)
def test_gguf_nearly_right(
    path: Path,
    keys: list[bytes],
    rows: list[bytes],
    n_tensors: int | None,
    n_keys: int | None,
    n_zeros: int,
    end: bytes,
) -> None:
    head = header(
        len(rows) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    )
    raw = head + b"".join(keys + rows) + bytes(n_zeros) + end
    opened, _ = refusal_of(open_gguf, path, raw)
    if opened is not None:
        check_inside(opened.checkpoint, len(raw))


def value_of(value_type: int) -> st.SearchStrategy[object]:
    if value_type == STRING:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    code = NUMBERS[value_type]
    if code in "fd":
        return st.floats(width=32 if code == "f" else 64, allow_nan=False)
    bits = 8 * struct.calcsize(code)
    if value_type == 7:
        return st.integers(0, 1)
    low = -(2 ** (bits - 1)) if code.islower() else 0
    return st.integers(low, low + 2**bits - 1)


plain_types = [*NUMBERS, STRING]
values = st.sampled_from(plain_types).flatmap(
    lambda t: (
        st.tuples(st.just(t), value_of(t))
        | st.tuples(st.just(ARRAY), st.tuples(st.just(t), st.lists(value_of(t), max_size=5)))
    )
)


@st.composite
def gguf_tensors(draw: st.DrawFn) -> dict[str, tuple[int, list[int], bytes]]:
    tensors = {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        type_id = draw(st.sampled_from(list(BLOCKS)))
        elements, size = BLOCKS[type_id]
        blocks, rest = draw(st.integers(1, 3)), draw(st.lists(st.integers(1, 4), max_size=3))
        n_blocks = blocks
        for dim in rest:
            n_blocks *= dim
        seed = draw(st.integers(0, 255))
        data = bytes((seed + i) % 256 for i in range(n_blocks * size))
        tensors[name] = (type_id, [blocks * elements, *rest], data)
    return tensors


@fuzz
@given(
    st.dictionaries(NAMES, values, max_size=5),
    gguf_tensors(),
    st.sampled_from([1, 2, 8, 32, 64, 256]),
    st.sampled_from([2, 3]),
)
def test_gguf_written_right(
    path: Path,
    keys: dict[str, tuple[int, object]],
    tensors: dict[str, tuple[int, list[int], bytes]],
    alignment: int,
    version: int,
) -> None:
    keys = keys | {"general.alignment": (4, alignment)}
    path.write_bytes(write_gguf(keys, tensors, version, alignment).raw)
    opened = open_gguf(path)
    plain = {name: v[1] if isinstance(v, tuple) else v for name, (_, v) in keys.items()}
    assert dict(opened.metadata) == plain
    found = {
        name: (t.dtype.id, list(reversed(t.shape)), bytes(t.data))
        for name, t in opened.checkpoint.tensors.items()
    }
    assert found == tensors


# --- safetensors --------------------------------------------------------------------------------

counts = st.integers(0, 6) | st.sampled_from([-1, 2**32, 2**63, 2**64, 10**40, 1.0, True, None])
drawn_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I64", "U8", "F4", "BOOL", "F31", 5]),
        "shape": st.lists(counts, max_size=3) | counts,
        "data_offsets": st.lists(counts, min_size=2, max_size=2) | st.lists(counts) | counts,
    },
    optional={"extra": counts},
)
drawn_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
drawn_headers = st.dictionaries(
    NAMES | st.text(max_size=3) | st.just("__metadata__"),
    drawn_entries | drawn_json | st.dictionaries(NAMES, st.text(max_size=4), max_size=3),
    max_size=4,
)


def package_names(path: Path) -> list[str] | None:
    try:
        with safe_open(path, framework="numpy") as opened:
            return sorted(opened.keys())
    except (SafetensorError, OSError):
        return None


@fuzz
@given(drawn_headers | drawn_json, st.booleans(), st.integers(0, 60), st.binary(max_size=3))
def test_safetensors_nearly_right(
    path: Path, head: object, escaped: bool, n_zeros: int, after: bytes
) -> None:
    raw_head = json.dumps(head, ensure_ascii=escaped).encode(errors="surrogatepass") + after
    raw = with_header(raw_head, bytes(n_zeros))
    opened, message = refusal_of(read_file, path, raw)
    names = package_names(path)
    if opened is not None:
        assert sorted([*opened.tensors, *opened.unreadable]) == names
        check_inside(opened, len(raw))
    elif names is not None:  # where we refuse more than the package does
        assert (
            any(not name or not name.isprintable() for name in names) or "more than any" in message
        )


@st.composite
def safetensors_tensors(draw: st.DrawFn) -> dict[str, tuple[str, list[int], bytes]]:
    tensors = {}
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        dtype, size = draw(st.sampled_from([("F32", 4), ("BF16", 2), ("F16", 2), ("I64", 8)]))
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        n_bytes = size
        for dim in shape:
            n_bytes *= dim
        tensors[name] = (dtype, shape, bytes((len(name) + i) % 256 for i in range(n_bytes)))
    return tensors


@fuzz
@given(safetensors_tensors(), st.none() | st.dictionaries(st.text(), st.text(), max_size=3))
def test_safetensors_written_right(
    path: Path,
    tensors: dict[str, tuple[str, list[int], bytes]],
    metadata: dict[str, str] | None,
) -> None:
    path.write_bytes(write_safetensors(tensors, metadata))
    checkpoint = read_file(path)
    found = {
        name: (t.dtype.name.upper(), list(t.shape), bytes(t.data))
        for name, t in checkpoint.tensors.items()
    }
    assert found == {name: t for name, t in tensors.items() if t[0] != "I64"}
    assert sorted(checkpoint.unreadable) == sorted(n for n, t in tensors.items() if t[0] == "I64")


# --- JSON ---------------------------------------------------------------------------------------


@fuzz
@given(drawn_json | st.floats(), st.binary(max_size=3), st.booleans())
def test_json(path: Path, value: object, after: bytes, escaped: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass") + after
    opened, _ = refusal_of(read_json, path, raw)
    if opened is not None:
        assert opened == value
    elif isinstance(value, dict) and not after.strip(b" \t\r\n"):
        assert not escaped  # a lone surrogate has no UTF-8
