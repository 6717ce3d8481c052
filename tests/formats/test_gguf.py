"""GGUF: what the gguf package writes is read as it was, and what is not GGUF is refused by name."""

import struct
from pathlib import Path

import gguf as package
import numpy as np
import pytest
from model_files import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    KEYS,
    SHAPES,
    STRING,
    U8,
    U16,
    U32,
    U64,
    data_of,
    header,
    key,
    row,
    sample_gguf,
    text,
    u32,
    u64,
    write_gguf,
)

from caldrix.errors import NotFoundError, RefusedError
from caldrix.formats import dtypes
from caldrix.formats.gguf import open_gguf


def put(folder: Path, raw: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.file_types(), ids=lambda dtype: dtype.name)
def test_every_type_reads_back_from_the_package_writer(dtype: dtypes.DType, tmp_path: Path) -> None:
    kind = package.GGMLQuantizationType(dtype.id)
    rng = np.random.default_rng(dtype.id)
    n_bytes = 512 // dtype.block_elements * dtype.block_bytes
    if dtype.block_elements == 1:
        plain = rng.normal(size=(6, 512)).astype(np.float32)
        raw = package.quants.quantize(plain, kind) if dtype.id else plain
    else:
        raw = rng.integers(0, 60, (6, n_bytes), dtype=np.uint8)  # halves of ordinary size
    writer = package.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("first", np.arange(3, dtype=np.float32))
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = open_gguf(tmp_path / "m.gguf").checkpoint.tensors
    assert list(tensors) == ["first", "w"]
    assert tensors["w"].shape == (6, 512)
    assert tensors["w"].dtype == dtype
    assert tensors["w"].data == raw.tobytes()
    assert tensors["first"].to_f32().tolist() == [0, 1, 2]
    expected = package.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(tensors["w"].to_f32(), expected.reshape(6, 512))


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_read(version: int, tmp_path: Path) -> None:
    path = put(tmp_path, sample_gguf(version).raw)
    tensors = open_gguf(path).checkpoint.tensors
    assert list(tensors) == list(SHAPES)
    for seed, (name, (type_id, dims)) in enumerate(SHAPES.items()):
        assert tensors[name].shape == tuple(reversed(dims))
        assert tensors[name].dtype.id == type_id
        assert tensors[name].data == data_of(type_id, dims, seed)
        assert tensors[name].offset % 32 == 0


def test_metadata_of_every_value_type(tmp_path: Path) -> None:
    keys: dict[str, tuple[int, object]] = {
        "u8": (U8, 255),
        "i8": (I8, -128),
        "u16": (U16, 65535),
        "i16": (I16, -5),
        "u32": (U32, 2**32 - 1),
        "i32": (I32, -(2**31)),
        "u64": (U64, 2**64 - 1),
        "i64": (I64, -(2**63)),
        "f32": (F32, 0.5),
        "f64": (F64, 1e300),
        "yes": (BOOL, 1),
        "no": (BOOL, 0),
        "string": (STRING, "grüße, 世界 🙂"),
        "empty": (STRING, ""),
        "strings": (ARRAY, (STRING, ["", "a", "世界"])),
        "none": (ARRAY, (STRING, [])),
        "bools": (ARRAY, (BOOL, [1, 0, 1])),
        "bytes": (ARRAY, (U8, [1, 2, 255])),
        "floats": (ARRAY, (F32, [0.25, -1.0])),
        "longs": (ARRAY, (I64, [-1, 2**62])),
    }
    metadata = open_gguf(put(tmp_path, write_gguf(keys, {}).raw)).metadata
    expected: dict[str, object] = {name: value for name, (_, value) in keys.items()}
    expected |= {name: v[1] for name, v in expected.items() if isinstance(v, tuple)}
    expected |= {"yes": True, "no": False, "bools": [True, False, True]}
    assert dict(metadata) == expected
    assert type(metadata["yes"]) is bool
    assert metadata["strings"] is metadata["strings"]
    assert "absent" not in metadata
    assert metadata.get("absent") is None


def test_other_alignments(tmp_path: Path) -> None:
    tensors = {"a": (1, [3], b"abcdef"), "b": (1, [4], b"12345678")}
    for alignment in (1, 8, 64, 4096):
        keys: dict[str, tuple[int, object]] = {"general.alignment": (U32, alignment)}
        path = put(tmp_path, write_gguf(keys, tensors, alignment=alignment).raw)
        found = open_gguf(path).checkpoint.tensors
        assert {name: bytes(t.data) for name, t in found.items()} == {
            "a": b"abcdef",
            "b": b"12345678",
        }


def test_the_padding_after_the_last_tensor_may_be_absent(tmp_path: Path) -> None:
    raw = write_gguf({}, {"a": (1, [3], b"abcdef")}).raw
    found = open_gguf(put(tmp_path, raw[:-26])).checkpoint.tensors["a"]
    assert found.data == b"abcdef"
    with pytest.raises(RefusedError, match="cut short"):
        open_gguf(put(tmp_path, raw[:-27]))


@pytest.mark.model
def test_the_demo_model_opens_whole(demo_gguf: Path) -> None:
    opened = open_gguf(demo_gguf)
    tensors = opened.checkpoint.tensors
    assert len(tensors) == 272
    assert tensors["token_embd.weight"].shape == (49152, 576)
    assert tensors["token_embd.weight"].dtype.name == "q8_0"
    assert tensors["blk.29.ffn_down.weight"].shape == (576, 1536)
    assert opened.metadata["general.architecture"] == "llama"
    tokens, merges = (
        opened.metadata["tokenizer.ggml.tokens"],
        opened.metadata["tokenizer.ggml.merges"],
    )
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    assert (len(tokens), tokens[:2], tokens[49151]) == (
        49152,
        ["<|endoftext|>", "<|im_start|>"],
        "ectable",
    )
    assert len(merges) == 48900
    assert opened.metadata["tokenizer.ggml.token_type"].count(3) == 17  # type: ignore[attr-defined]


# --- what is refused ----------------------------------------------------------------------------

ONE_KEY = header(0, 1)
ONE_TENSOR = header(1, 0)
GOOD = row("t.weight", [32], 0, 0)


def twice(name: str, *dims: int) -> bytes:
    rows = row(name, list(dims), 0, 0) + row(name, list(dims), 0, 128)
    return header(2, 0) + rows + bytes(512)


REFUSED = {
    "empty": (b"", "empty"),
    "magic only": (b"GGUF", "cut short"),
    "half a header": (header(0, 0)[:20], "cut short"),
    "foreign": (b"\x1b]0;title\x07" + bytes(64), "not GGUF"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "HTML": (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML"),
    "safetensors": (u64(2) + b"{}", "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(60), "zip"),
    "version 1": (b"GGUF" + u32(1) + u32(0) + u32(0), "version 1"),
    "version 4": (header(0, 0, 4), "version 4"),
    "version 0": (header(0, 0, 0), "version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "endless counts": (header(2**60, 2**60), "1152921504606846976 tensors"),
    "endless keys": (header(0, 2**60), "1152921504606846976 metadata keys"),
    "more keys than bytes": (header(0, 60000), "cut short"),
    "empty key": (ONE_KEY + key("", U8, b"\1"), "name of 0 bytes"),
    "endless key": (ONE_KEY + u64(2**63) + b"x", "9223372036854775808"),
    "key cut": (ONE_KEY + u64(10) + b"x", "cut short"),
    "key not UTF-8": (ONE_KEY + key(b"\xff\xfe", U8, b"\1"), "UTF-8"),
    "key not printable": (ONE_KEY + key("a\nb\x1b[2J", U8, b"\1"), r"\n"),
    "key twice": (header(0, 2) + key("k", U8, b"\1") * 2, "'k' is given twice"),
    "value type 13": (ONE_KEY + key("k", 13, b"\1"), "value type 13"),
    "no value": (ONE_KEY + text("k") + u32(U64) + b"\1", "cut short"),
    "boolean 2": (ONE_KEY + key("k", BOOL, b"\2"), "byte 2"),
    "endless string": (ONE_KEY + key("k", STRING, u64(2**63) + b"x"), "cut short"),
    "endless array": (ONE_KEY + key("k", ARRAY, u32(U8) + u64(2**63)), "cut short"),
    "wrapping array": (ONE_KEY + key("k", ARRAY, u32(U64) + u64(2**61)), "cut short"),
    "endless strings": (ONE_KEY + key("k", ARRAY, u32(STRING) + u64(2**61)), "2305843009"),
    "strings past the end": (ONE_KEY + key("k", ARRAY, u32(STRING) + u64(9999)), "cut short"),
    "strings cut": (ONE_KEY + key("k", ARRAY, u32(STRING) + u64(2) + text("ab")), "cut short"),
    "array of arrays": (ONE_KEY + key("k", ARRAY, u32(ARRAY) + u64(1)), "array of value type 9"),
    "alignment 0": (ONE_KEY + key("general.alignment", U32, u32(0)), "power of two"),
    "alignment 48": (ONE_KEY + key("general.alignment", U32, u32(48)), "power of two"),
    "alignment 'no'": (ONE_KEY + key("general.alignment", STRING, text("no")), "'no'"),
    "alignment 32.0": (ONE_KEY + key("general.alignment", F32, struct.pack("<f", 32)), "32.0"),
    "no name": (ONE_TENSOR + row("", [32], 0, 0), "name of 0 bytes"),
    "long name": (ONE_TENSOR + row("n" * 2000, [32], 0, 0), "name of 2000 bytes"),
    "rank 0": (ONE_TENSOR + row("t.weight", [], 0, 0) + bytes(64), "'t.weight' has 0 dim"),
    "rank 5": (ONE_TENSOR + row("t.weight", [1] * 5, 0, 0), "'t.weight' has 5 dim"),
    "rank 1000000": (ONE_TENSOR + text("t.weight") + u32(10**6), "1000000 dimensions"),
    "zero dim": (ONE_TENSOR + row("t.weight", [4, 0], 0, 0), "'t.weight' has a dimension of zero"),
    "wrapping dims": (ONE_TENSOR + row("t.weight", [2**33, 2**31, 4], 0, 0), "'t.weight'"),
    "type 99": (ONE_TENSOR + row("t.weight", [32], 99, 0) + bytes(200), "'t.weight' has type 99"),
    "a type of ours": (
        ONE_TENSOR + row("t.weight", [256], 64, 0) + bytes(512),
        "type 64; caldrix reads F32, F16,",
    ),
    "type 16": (ONE_TENSOR + row("t.weight", [256], 16, 0) + bytes(200), "type 16"),
    "part of a block": (ONE_TENSOR + row("t.weight", [48], 2, 0) + bytes(64), "multiple of the 32"),
    "offset far": (ONE_TENSOR + row("t.weight", [4], 0, 2**40) + bytes(64), "1099511627776"),
    "offset odd": (ONE_TENSOR + row("t.weight", [4], 0, 1) + bytes(64), "data offset 1"),
    "overlap": (header(2, 0) + GOOD + row("u", [32], 0, 0) + bytes(512), "'u' is at data offset 0"),
    "gap": (header(2, 0) + GOOD + row("u", [32], 0, 160) + bytes(512), "put it at 128"),
    "name twice": (twice("t", 32), "'t' is given twice"),
    "table cut": (header(2, 0) + GOOD + bytes(200), "name of 0 bytes"),
    "data cut": (ONE_TENSOR + GOOD + bytes(100), "cut short"),
    "data after": (ONE_TENSOR + GOOD + bytes(64) + bytes(128 + 64), "follow its last tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    raw, words = REFUSED[name]
    with pytest.raises(RefusedError) as caught:
        open_gguf(put(tmp_path, raw, "bad.gguf"))
    message = str(caught.value)
    assert "bad.gguf: " in message
    assert words in message
    assert message.isprintable()
    assert len(message) < 500 + len(str(tmp_path))


def test_refused_when_cut_anywhere(tmp_path: Path) -> None:
    raw = sample_gguf().raw
    for size in [*range(0, len(raw) - 32, 97), len(raw) // 2, 8]:
        with pytest.raises(RefusedError, match=r"m\.gguf: (cut short|the file is empty|not GGUF)"):
            open_gguf(put(tmp_path, raw[:size]))


def test_a_string_is_judged_when_it_is_asked_for(tmp_path: Path) -> None:
    strings = u32(STRING) + u64(2) + text("fine") + text(b"\xff")
    raw = header(0, 3) + key("bad", STRING, text(b"a\xc3")) + key("list", ARRAY, strings)
    metadata = open_gguf(put(tmp_path, raw + key("good", U8, b"\7"))).metadata
    assert metadata["good"] == 7
    with pytest.raises(RefusedError, match=r"m\.gguf: metadata key 'bad': .* not UTF-8"):
        metadata["bad"]
    with pytest.raises(RefusedError, match="'list': string 2 of 2 is not UTF-8"):
        metadata["list"]


def test_strings_long_and_short_and_with_every_byte_are_decoded(tmp_path: Path) -> None:
    odd = ["", "\0", "a\0b", "\0\0", "x" * 2**18, "y" * (2**18 - 1), "é" * 2**17, "\U0001f600"]
    strings = [*odd, *(f"word {i}" for i in range(60_000)), *odd, *odd[::-1]]
    array = u32(STRING) + u64(len(strings)) + b"".join(map(text, strings))
    opened = open_gguf(put(tmp_path, header(0, 1) + key("list", ARRAY, array)))
    assert opened.metadata["list"] == strings
    array = u32(STRING) + u64(len(strings) + 2) + b"".join(map(text, strings))
    array += text("fine") + text(b"\xc3")
    opened = open_gguf(put(tmp_path, header(0, 1) + key("list", ARRAY, array)))
    n = len(strings) + 2
    with pytest.raises(RefusedError, match=f"'list': string {n} of {n} is not UTF-8"):
        opened.metadata["list"]


def test_arrays_too_long_to_decode_are_refused_when_asked_for(tmp_path: Path) -> None:
    numbers = key("numbers", ARRAY, u32(U8) + u64(2_000_000)) + bytes(2_000_000)
    strings = key("strings", ARRAY, u32(STRING) + u64(1_000_000)) + text("é") * 1_000_000
    raw = header(0, 3) + numbers + strings + key("good", U8, b"\7")
    metadata = open_gguf(put(tmp_path, raw)).metadata
    with pytest.raises(RefusedError, match="'numbers' takes too much memory"):
        metadata["numbers"]
    metadata = open_gguf(tmp_path / "m.gguf").metadata
    with pytest.raises(RefusedError, match="'strings' takes too much memory"):
        metadata["strings"]
    assert metadata["good"] == 7


def test_a_string_too_long_to_decode_is_refused_when_asked_for(tmp_path: Path) -> None:
    strings = u32(STRING) + u64(2) + text("x") + text(b"x" * 4_000_001)
    raw = header(0, 2) + key("list", ARRAY, strings) + key("fits", STRING, text(b"x" * 4_000_000))
    metadata = open_gguf(put(tmp_path, raw)).metadata
    assert metadata["fits"] == "x" * 4_000_000
    with pytest.raises(RefusedError, match="'list' has a string of 4000001 bytes; up to 4000000"):
        metadata["list"]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.gguf: no such file"):
        open_gguf(tmp_path / "none.gguf")


# --- parts --------------------------------------------------------------------------------------


def part(number: int, count: int, total: int = 7, names: list[str] | None = None) -> bytes:
    """One part of the sample: two or three of its tensors each."""
    own: dict[str, tuple[int, object]] = KEYS if number == 0 else {}
    keys = own | {
        "split.no": (U16, number),
        "split.count": (U16, count),
        "split.tensors.count": (I32, total),
    }
    chosen = names or list(SHAPES)[number::count]
    tensors = {
        name: (SHAPES[name][0], SHAPES[name][1], data_of(*SHAPES[name], 5)) for name in chosen
    }
    return write_gguf(keys, tensors).raw


def split(folder: Path, count: int = 3) -> list[Path]:
    return [
        put(folder, part(number, count), f"big-{number + 1:05d}-of-{count:05d}.gguf")
        for number in range(count)
    ]


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_whole(given: int, tmp_path: Path) -> None:
    paths = split(tmp_path)
    opened = open_gguf(paths[given])
    assert sorted(opened.checkpoint.tensors) == sorted(SHAPES)
    assert [file.path for file in opened.checkpoint.files] == paths
    assert opened.metadata["general.architecture"] == "llama"
    for name, tensor in opened.checkpoint.tensors.items():
        assert tensor.data == data_of(*SHAPES[name], 5)


def test_the_packages_own_split_opens(tmp_path: Path) -> None:
    writer = package.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(40, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("m-*.gguf"))
    assert len(paths) == 3
    tensors = open_gguf(paths[1]).checkpoint.tensors
    assert {name: t.to_f32()[0] for name, t in tensors.items()} == {f"t{i}": i for i in range(5)}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    with pytest.raises(RefusedError, match=r"big-00002-of-00003\.gguf"):
        open_gguf(paths[0])
    with pytest.raises(RefusedError, match=r"3-of-00003.*1 are missing: big-00002-of-00003\.gguf"):
        open_gguf(paths[2])


def test_swapped_parts_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    spare = tmp_path / "spare"
    paths[0].rename(spare)
    paths[1].rename(paths[0])
    spare.rename(paths[1])
    for path in paths:
        with pytest.raises(RefusedError, match="part 1 of 3 by its name, part 2 by its metadata"):
            open_gguf(path)


def test_a_part_of_another_split_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    put(tmp_path, part(1, 2), paths[1].name)
    with pytest.raises(
        RefusedError, match=r"big-00002-of-00003.*of 3 by its name, of 2 by its meta"
    ):
        open_gguf(paths[0])
    put(tmp_path, sample_gguf().raw, paths[1].name)
    with pytest.raises(RefusedError, match=r"big-00002-of-00003.*of 1 by its metadata"):
        open_gguf(paths[0])


def test_a_part_under_another_name_says_what_it_must_be_called(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"its name must be NAME-00002-of-00003\.gguf"):
        open_gguf(put(tmp_path, part(1, 3), "second.gguf"))
    with pytest.raises(RefusedError, match=r"its name must be NAME-00002-of-00003\.gguf"):
        open_gguf(put(tmp_path, part(1, 3), "m-00002-of-00004.gguf"))


def test_parts_that_do_not_add_up(tmp_path: Path) -> None:
    paths = split(tmp_path)
    put(tmp_path, part(0, 3, total=9), paths[0].name)
    with pytest.raises(RefusedError, match="says 9 tensors in its 3 parts, which hold 7"):
        open_gguf(paths[0])


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    put(tmp_path, part(1, 3, names=["token_embd.weight"]), paths[1].name)
    with pytest.raises(
        RefusedError, match=r"00002-of-00003.*'token_embd.weight' is in another file"
    ):
        open_gguf(paths[0])


@pytest.mark.parametrize("name", ["best-00001-of-breed.gguf", "x-00001-of-00002.gguf", "odd"])
def test_a_name_alone_makes_no_part(name: str, tmp_path: Path) -> None:
    assert len(open_gguf(put(tmp_path, sample_gguf().raw, name)).checkpoint.tensors) == len(SHAPES)


@pytest.mark.parametrize("value", [(STRING, "two"), (F32, 2.0), (I32, -2), (BOOL, 1)])
def test_a_split_count_that_is_no_count(value: tuple[int, object], tmp_path: Path) -> None:
    raw = write_gguf({"split.count": value}, {}).raw
    with pytest.raises(RefusedError, match=r"'split\.count' is .*expected a count"):
        open_gguf(put(tmp_path, raw))
