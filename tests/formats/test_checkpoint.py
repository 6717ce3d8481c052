"""Mapped files: read-only, whole, and only of regular files."""

import gc
import os
from pathlib import Path

import pytest

from caldrix.errors import NotFoundError, RefusedError
from caldrix.formats import dtypes
from caldrix.formats.checkpoint import Checkpoint, Tensor, Unreadable, map_file, merge


def test_a_mapping_is_whole_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    file = map_file(path)
    assert file.size == 25600
    assert file.view == path.read_bytes()
    assert file.view.readonly
    with pytest.raises(TypeError):
        file.view[0] = 1
    os.unlink(path)
    assert file.view[255] == 255


def test_mappings_end_with_their_last_view(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    gc.collect()  # what other tests left
    before = len(os.listdir("/proc/self/fd"))
    files = [map_file(path) for _ in range(50)]
    assert len(files) == 50
    del files
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_regular_file_with_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    cases = {"empty": "the file is empty", "pipe": "not a regular file", "loop": "cannot be read"}
    for name, words in cases.items():
        with pytest.raises(RefusedError, match=f"{name}: {words}"):
            map_file(tmp_path / name)
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(RefusedError, match="not a regular file"):
            map_file(path)
    with pytest.raises(NotFoundError, match="gone: no such file"):
        map_file(tmp_path / "gone")
    with pytest.raises(RefusedError, match=r"a\\x00b: cannot be read"):
        map_file(Path("a\0b"))


def test_a_name_that_breaks_lines_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\n\x1b[31mb"
    path.touch()
    with pytest.raises(RefusedError) as caught:
        map_file(path)
    assert str(caught.value).isprintable()


def test_a_quantised_tensor_knows_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5) + bytes(range(72)))
    tensor = Tensor("w", dtypes.by_name("q4_0"), (2, 64), map_file(path), 5)
    assert (tensor.n_elements, tensor.size_bytes) == (128, 72)
    assert tensor.data == bytes(range(72))
    assert tensor.to_f32().shape == (2, 64)


def test_merging_refuses_a_name_in_two_files(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_bytes(bytes(8))
    one, two = map(map_file, paths)
    f32 = dtypes.by_name("f32")
    a = Checkpoint({"a": Tensor("a", f32, (1,), one, 0)}, (one,), {"c": Unreadable("I64", one)})
    b = Checkpoint({"b": Tensor("b", f32, (1,), two, 0)}, (two,))
    both = merge([a, b])
    assert sorted(both.tensors) == ["a", "b"]
    assert both.files == (one, two)
    with pytest.raises(RefusedError, match="one: tensor 'c' has dtype I64"):
        both.tensor("c")
    clash = Checkpoint({"c": Tensor("c", f32, (1,), two, 0)}, (two,))
    with pytest.raises(RefusedError, match="two: tensor 'c' is in another file"):
        merge([a, clash])


def test_types_by_name_and_number() -> None:
    assert dtypes.by_name("bf16").id == 30
    assert dtypes.by_id(2) == dtypes.by_name("q4_0")
    assert dtypes.by_id(99) is None
    assert dtypes.gguf_type(2) == dtypes.by_name("q4_0")
    planes = dtypes.by_name("planes")
    assert dtypes.by_id(planes.id) == planes
    assert dtypes.gguf_type(planes.id) is None
    assert dtypes.names().startswith("F32, F16, BF16, Q8_0")
    assert "PLANES" not in dtypes.names()
