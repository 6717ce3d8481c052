"""safetensors: what the package writes is read as it was; what the format forbids is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from model_files import sample_safetensors, u64, with_header, write_safetensors
from safetensors import safe_open
from safetensors.numpy import save_file

from caldrix.errors import CaldrixError, NotFoundError, RefusedError
from caldrix.formats import safetensors as reader
from caldrix.formats.safetensors import INDEX, open_safetensors, read_file

Tensors = dict[str, tuple[str, list[int], bytes]]


def put(folder: Path, raw: bytes, name: str = "model.safetensors") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


# --- what is read -------------------------------------------------------------------------------


def test_the_packages_files_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.normal(size=(3, 5)).astype(np.float32),
        "half": rng.normal(size=(2, 2, 2)).astype(np.float16),
        "scalar": np.array(7, np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors", {"format": "pt"})
    found = open_safetensors(tmp_path).tensors
    assert sorted(found) == sorted(arrays)
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].data == array.tobytes()
        np.testing.assert_array_equal(found[name].to_f32(), array.astype(np.float32))


def test_bf16_reads_back(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.5], [0.0078125, 3e38]], np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    put(tmp_path, write_safetensors({"w": ("BF16", [2, 2], raw)}))
    tensor = open_safetensors(tmp_path).tensor("w")
    assert tensor.dtype.name == "bf16"
    expected = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(tensor.to_f32().ravel(), expected.view(np.float32))


def test_header_spellings_the_format_allows(tmp_path: Path) -> None:
    entry = '{ "data_offsets" :[0, 4],\n"shape":[ 1 ], "dtype":"F32"}'
    head = (
        '{"__metadata__" : {"a\\"b" : "\\u00e9\\\\", "c": ""} , "w\\u00fc\\/": ' + entry + " }  \n "
    )
    found = read_file(put(tmp_path, with_header(head, b"\0\0\x80?"))).tensors
    assert {name: float(t.to_f32()[0]) for name, t in found.items()} == {"wü/": 1.0}
    for head in ("{}", "{ }", '{"__metadata__":{}}', '{"__metadata__":null}'):
        assert read_file(put(tmp_path, with_header(head))).tensors == {}


@pytest.mark.parametrize("dtype", reader._BITS)
def test_every_dtype_is_read_or_refused_by_name_when_needed(dtype: str, tmp_path: Path) -> None:
    data = bytes(reader._BITS[dtype])  # eight elements
    tensors: Tensors = {"w": (dtype, [2, 4], data), "other": ("F32", [1], bytes(4))}
    checkpoint = read_file(put(tmp_path, write_safetensors(tensors)))
    assert checkpoint.tensor("other").shape == (1,)
    if dtype in ("F32", "F16", "BF16"):
        assert checkpoint.tensor("w").dtype.name == dtype.lower()
        assert checkpoint.unreadable == {}
        return
    assert "w" not in checkpoint.tensors
    with pytest.raises(RefusedError, match=rf"model\.safetensors: tensor 'w' has dtype {dtype},"):
        checkpoint.tensor("w")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoint = read_file(put(tmp_path, sample_safetensors()))
    with pytest.raises(RefusedError, match=r"model\.safetensors: no tensor 'nope' among its 6"):
        checkpoint.tensor("nope")


GOLDEN = ["llama-rope3-sharded", "llama-tied", "qwen2", "qwen3", "qwen3-moe", "smolvlm"]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_directories_agree_with_the_package(name: str, golden: Path) -> None:
    checkpoint = open_safetensors(golden / name)
    expected = {}
    for path in (golden / name).glob("*.safetensors"):
        with safe_open(path, framework="numpy") as judge:
            expected |= {key: judge.get_tensor(key) for key in judge.keys()}  # noqa: SIM118
    assert sorted(checkpoint.tensors) == sorted(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(checkpoint.tensor(key).to_f32(), array)


# --- what is refused ----------------------------------------------------------------------------


def entry(dtype: object = "F32", shape: object = (4,), span: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": span}


def entries(**given: dict[str, object]) -> str:
    return json.dumps(given)


DATA = bytes(16)
TWO = entries(a=entry(), b=entry(span=(16, 32)))
FOREIGN = b"<!DOCTYPE html><html><body>404</body></html>" * 3

REFUSED = {
    "empty": (b"", "empty"),
    "too small": (b"\2\0\0\0", "cut short: 4 bytes"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "HTML": (FOREIGN, "HTML"),
    "GGUF": (b"GGUF" + bytes(40), "GGUF file"),
    "pickle in a zip": (b"PK\3\4" + bytes(40), "zip archive"),
    "endless header": (u64(2**63) + b"{}", "9223372036854775808 bytes"),
    "header over 100 MB": (u64(100_000_001) + b"{}", "100000001 bytes"),
    "header past the end": (u64(10**6) + b"{}", "needs 1000008"),
    "no header": (u64(0) + bytes(8), "no JSON object"),
    "array": (with_header("[1]"), "no JSON object"),
    "blank before": (with_header(" {}"), "no JSON object"),
    "brace alone": (with_header("{"), "no JSON key"),
    "key alone": (with_header('{"a"}'), "no JSON key"),
    "comma at the end": (
        with_header('{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},}'),
        "key",
    ),
    "two objects": (with_header("{}{}"), "goes on after"),
    "no comma": (
        with_header('{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"b":1}'),
        "breaks",
    ),
    "value no object": (with_header('{"a":5}'), "'a' is not an object"),
    "deep": (with_header('{"a":' + "[" * 50000 + "]" * 50000 + "}"), "'a' is not an object"),
    "deep objects": (with_header('{"a":' * 5000 + "1" + "}" * 5000), "'a' is not an object"),
    "deep in a shape": (with_header(entries(a=entry(shape=[[4]])), DATA), "'a' is not an object"),
    "metadata of numbers": (with_header('{"__metadata__":{"a":1}}'), "__metadata__"),
    "metadata an array": (with_header('{"__metadata__":[]}'), "__metadata__"),
    "metadata twice": (with_header('{"__metadata__":{},"__metadata__":{}}'), "twice"),
    "name twice": (with_header(TWO.replace('"b"', '"a"'), bytes(32)), "'a' is given twice"),
    "name twice, escaped": (
        with_header(TWO.replace('"b"', r'"\u0061"'), bytes(32)),
        "'a' is given",
    ),
    "field twice": (
        with_header('{"a":{"dtype":"F32","dtype":"F32","shape":[4]}}', DATA),
        "three keys",
    ),
    "field missing": (with_header('{"a":{"dtype":"F32","shape":[4]}}', DATA), "three keys"),
    "field more": (with_header(entries(a=entry() | {"x": 1}), DATA), "three keys"),
    "no name": (with_header(entries(**{"": entry()}), DATA), "name of 0 bytes"),
    "long name": (with_header(entries(**{"n" * 2000: entry()}), DATA), "name of 2000 bytes"),
    "name with escapes": (with_header(entries(**{"a\x1b[2J": entry()}), DATA), "do not print"),
    "name a lone surrogate": (with_header(r'{"\ud800":{"dtype":"F32"}}', DATA), "do not print"),
    "name not UTF-8": (with_header(b'{"\xff":{"dtype":"F32"}}', DATA), "not a JSON string"),
    "name a bad escape": (with_header(rb'{"\q":{"dtype":"F32"}}', DATA), "not a JSON string"),
    "dtype unknown": (with_header(entries(a=entry("F31")), DATA), "dtype 'F31'"),
    "dtype a number": (with_header(entries(a=entry(32)), DATA), "dtype 32"),
    "dtype with escapes": (with_header(entries(a=entry("\x1b0;")), DATA), r"dtype '\x1b0;'"),
    "shape a string": (with_header(entries(a=entry(shape="4")), DATA), "shape '4'"),
    "shape negative": (with_header(entries(a=entry(shape=[-4])), DATA), "shape [-4]"),
    "shape of floats": (with_header(entries(a=entry(shape=[4.0])), DATA), "shape [4.0]"),
    "shape of true": (with_header(entries(a=entry(shape=[True])), DATA), "shape [True]"),
    "shape of NaN": (
        with_header('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}'),
        "[nan]",
    ),
    "shape endless": (with_header(entries(a=entry(shape=[1] * 1000)), DATA), "up to 16 sizes"),
    "entry endless": (with_header(entries(a=entry(shape=[1] * 9000)), DATA), "three keys"),
    "wrapping shape": (
        with_header(entries(a=entry(shape=[2**33, 2**33], span=(0, 0)))),
        "more than any file",
    ),
    "shape beyond 64 bits": (
        with_header(entries(a=entry(shape=[2**64], span=(0, 0)))),
        "shape [1844",
    ),
    "span too small": (
        with_header(entries(a=entry(shape=[4, 4], span=(0, 8))), DATA),
        "expected 64",
    ),
    "span reversed": (with_header(entries(a=entry(shape=[0], span=(8, 4))), DATA), "[8, 4]"),
    "span of three": (with_header(entries(a=entry(span=(0, 8, 16))), DATA), "[0, 8, 16]"),
    "span negative": (with_header(entries(a=entry(span=(-16, 0))), DATA), "[-16, 0]"),
    "half a byte": (with_header(entries(a=entry("F4", (3,), (0, 1))), b"\0"), "expected 2"),
    "past the end": (with_header(entries(a=entry()), bytes(8)), "'a' is the first past the end"),
    "overlap": (with_header(entries(a=entry(), b=entry(span=(8, 24))), bytes(24)), "'b' overlaps"),
    "same span": (with_header(entries(a=entry(), b=entry()), DATA), "overlaps tensor 'a'"),
    "gap": (with_header(entries(a=entry(), b=entry(span=(20, 36))), bytes(36)), "4 bytes between"),
    "gap before": (
        with_header(entries(a=entry(span=(4, 20))), bytes(20)),
        "the header and tensor 'a'",
    ),
    "bytes after": (with_header(entries(a=entry()), bytes(20)), "4 bytes follow"),
    "no tensors but data": (with_header("{}", bytes(4)), "4 bytes follow"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    raw, words = REFUSED[name]
    put(tmp_path, raw)
    with pytest.raises(RefusedError) as caught:
        open_safetensors(tmp_path)
    message = str(caught.value)
    assert "model.safetensors: " in message
    assert words in message
    assert message.isprintable()
    assert len(message) < 400 + len(str(tmp_path))


def test_refused_when_cut_anywhere(tmp_path: Path) -> None:
    raw = sample_safetensors()
    for size in range(0, len(raw), 7):
        with pytest.raises(
            RefusedError, match=r"model\.safetensors: (cut short|the file is empty)"
        ):
            read_file(put(tmp_path, raw[:size]))


def test_the_package_has_the_last_word(tmp_path: Path) -> None:
    """Metadata that is not UTF-8 passes our scan, which reads none of it."""
    with pytest.raises(RefusedError, match="refused by the safetensors package"):
        read_file(put(tmp_path, with_header(b'{"__metadata__":{"a":"\xff"}}')))


# --- sets of files ------------------------------------------------------------------------------

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
A: Tensors = {"a": ("F32", [1], b"\0\0\x80?"), "steps": ("I64", [1], bytes(8))}
B: Tensors = {"b": ("F32", [2], b"\0\0\0@\0\0\0@")}


def put_set(folder: Path, index: object = None, first: str = FIRST, second: str = SECOND) -> None:
    put(folder, write_safetensors(A), first)
    put(folder, write_safetensors(B), second)
    weight_map = {"a": first, "steps": first, "b": second}
    index = {"metadata": {}, "weight_map": weight_map} if index is None else index
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("first", "second"), [(FIRST, SECOND), ("one.safetensors", "weights-b"), ("x", "sub/y")]
)
def test_an_index_with_any_names(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    put_set(tmp_path, first=first, second=second)
    checkpoint = open_safetensors(tmp_path)
    assert sorted(checkpoint.tensors) == ["a", "b"]
    assert checkpoint.tensor("b").file.path == tmp_path / second
    with pytest.raises(RefusedError, match=f"{first}: tensor 'steps' has dtype I64"):
        checkpoint.tensor("steps")
    with pytest.raises(RefusedError, match=f"{tmp_path.name}: no tensor 'c' among its 2"):
        checkpoint.tensor("c")


def test_shards_may_be_links_that_lead_out(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    put_set(blobs)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert sorted(open_safetensors(snapshot).tensors) == ["a", "b"]


def test_a_single_file_wins_and_strays_are_left_alone(tmp_path: Path) -> None:
    put_set(tmp_path)
    put(tmp_path, b"damaged", "adapter.safetensors")
    assert sorted(open_safetensors(tmp_path).tensors) == ["a", "b"]
    put(tmp_path, write_safetensors({"only": ("F32", [1], bytes(4))}))
    assert sorted(open_safetensors(tmp_path).tensors) == ["only"]


def test_a_tensor_in_two_shards_comes_from_the_one_the_index_names(tmp_path: Path) -> None:
    put_set(tmp_path)
    put(tmp_path, write_safetensors({**B, "a": ("F32", [1], bytes(4)), "extra": A["a"]}), SECOND)
    checkpoint = open_safetensors(tmp_path)
    assert float(checkpoint.tensor("a").to_f32()[0]) == 1.0
    assert sorted(checkpoint.tensors) == ["a", "b"]


INDEXES: list[tuple[object, str]] = [
    ({}, "no weight_map"),
    ({"weight_map": {}}, "no weight_map"),
    ({"weight_map": [FIRST]}, "no weight_map"),
    ([], "not an object"),
    ({"weight_map": {"a": 1}}, "puts 'a' in 1"),
    ({"weight_map": {"a": None}}, "puts 'a' in None"),
    ({"weight_map": {"a": ""}}, "puts 'a' in ''"),
    ({"weight_map": {"a": "."}}, "puts 'a' in '.'"),
    ({"weight_map": {"a": "/etc/passwd"}}, "puts 'a' in '/etc/passwd'"),
    ({"weight_map": {"a": "../x.safetensors"}}, "puts 'a' in '../x.safetensors'"),
    ({"weight_map": {"a": "sub/../../x"}}, "puts 'a' in 'sub/../../x'"),
    ({"weight_map": {"a": "..\\x"}}, "puts 'a' in"),
    ({"weight_map": {"a": "x\0y"}}, "puts 'a' in 'x\\x00y'"),
    ({"weight_map": {"a": "n" * 5000}}, "puts 'a' in 'nnn"),
    ({"weight_map": {"a": "n" * 300}}, "puts 'a' in 'nnn"),  # was an OSError: too long for a name
    ({"weight_map": {"a": FIRST, "b": "model-3.safetensors"}}, "model-3.safetensors"),
    (
        {"weight_map": {"a": FIRST, "gone": SECOND}},
        "no tensor 'gone', which model.safetensors.index",
    ),
    ({"weight_map": {"a": "folder"}}, "folder: not a regular file"),
]


@pytest.mark.parametrize(("index", "words"), INDEXES)
def test_an_index_that_does_not_hold(index: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    put_set(tmp_path, index)
    with pytest.raises(RefusedError) as caught:
        open_safetensors(tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_missing_shards_are_named(tmp_path: Path) -> None:
    put_set(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(
        RefusedError, match=f"{INDEX}: incomplete: {SECOND} of its 2 shards missing"
    ):
        open_safetensors(tmp_path)
    (tmp_path / FIRST).unlink()
    with pytest.raises(RefusedError, match=f"{FIRST}, {SECOND} of its 2"):
        open_safetensors(tmp_path)
    many = {"weight_map": {f"t{i}": f"shard-{i}" for i in range(1000)}}
    (tmp_path / INDEX).write_text(json.dumps(many))
    with pytest.raises(RefusedError, match=r"shard-0, shard-1, shard-10 of its 1000 .*1000 in all"):
        open_safetensors(tmp_path)


def test_without_an_index_every_file_is_read(tmp_path: Path) -> None:
    put_set(tmp_path)
    (tmp_path / INDEX).unlink()
    put(tmp_path, b"a leftover", "._model.safetensors")
    assert sorted(open_safetensors(tmp_path).tensors) == ["a", "b"]


def test_without_an_index_a_lone_part_is_incomplete(tmp_path: Path) -> None:
    put(tmp_path, write_safetensors(B), SECOND)
    with pytest.raises(RefusedError, match=f"{SECOND}: incomplete: {FIRST} is missing beside it"):
        open_safetensors(tmp_path)
    put(tmp_path, write_safetensors(A), "other-00001-of-00002.safetensors")
    with pytest.raises(RefusedError, match=f"{FIRST} is missing"):
        open_safetensors(tmp_path)


def test_without_an_index_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    put(tmp_path, write_safetensors(A), "one.safetensors")
    put(tmp_path, write_safetensors({**B, "a": A["a"]}), "two.safetensors")
    with pytest.raises(RefusedError, match=r"two\.safetensors: tensor 'a' is in another file"):
        open_safetensors(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=rf"{tmp_path.name}: no \*\.safetensors file"):
        open_safetensors(tmp_path)
    put(tmp_path, b"", "pytorch_model.bin")
    with pytest.raises(NotFoundError, match=r"it holds pytorch_model\.bin, which is not one"):
        open_safetensors(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(NotFoundError, match="no such file"):
        open_safetensors(tmp_path)
    with pytest.raises(CaldrixError, match="nowhere: cannot be read"):
        open_safetensors(tmp_path / "nowhere")
