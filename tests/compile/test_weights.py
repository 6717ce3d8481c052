"""f32 to bf16 on the way into memory, and what is made anew rather than read in place."""

from pathlib import Path

import numpy as np
import tiny

from caldrix.compile.bf16 import to_bf16
from caldrix.compile.weights import CONVERT_PIECE, WeightPlan
from caldrix.formats.safetensors import read_file
from caldrix.models.graph import Weight


def bf16(*values: float) -> list[int]:
    return to_bf16(np.array(values, np.float32)).tolist()


def from_bits(*bits: int) -> list[int]:
    return to_bf16(np.array(bits, np.uint32).view(np.float32)).tolist()


def test_rounding_is_to_nearest_and_ties_to_even() -> None:
    assert bf16(0.0, -0.0, 1.0, -2.5) == [0, 0x8000, 0x3F80, 0xC020]
    assert from_bits(0x3F807FFF, 0x3F808000, 0x3F808001) == [0x3F80, 0x3F80, 0x3F81]
    assert from_bits(0x3F817FFF, 0x3F818000) == [0x3F81, 0x3F82]
    assert from_bits(1, 0x007FFFFF) == [0, 0x0080]


def test_the_largest_becomes_infinite_and_a_nan_stays_one() -> None:
    assert from_bits(0x7F7FFFFF, 0x7F800000, 0xFF800000) == [0x7F80, 0x7F80, 0xFF80]
    for bits in (0x7FC00000, 0x7F800001, 0xFFFFFFFF):
        (top,) = from_bits(bits)
        assert np.isnan(np.array([top << 16], np.uint32).view(np.float32)[0])


def plan_of(path: Path, convert_f32: bool) -> WeightPlan:
    return WeightPlan(read_file(path), lambda name: name, "file", convert_f32)


def test_a_matrix_stays_in_its_file_unless_it_is_f32_under_bf16(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    full, half = np.float32([[1, 2], [3, 4]]), np.uint16([[5, 6]])
    tiny.write_safetensors(path, {"full": full, "half": half})
    for convert, arenas in ((False, {"full": 4, "half": 4}), (True, {"full": 3, "half": 4})):
        plan = plan_of(path, convert)
        weights = [Weight("full", (2, 2)), Weight("half", (1, 2))]
        refs = {weight.name: plan.matrix(weight) for weight in weights}
        assert {name: ref.arena for name, ref in refs.items()} == arenas
        assert refs == {weight.name: plan.matrix(weight) for weight in weights}  # bound once
        assert plan.size_bytes == (64 if convert else 0)
        file = plan.checkpoint.files[0]
        assert file.view[refs["half"].offset :] == half.tobytes()


def test_what_is_made_lies_apart_and_holds_the_values(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((3, CONVERT_PIECE // 2 + 5)).astype(np.float32)
    norm = rng.standard_normal(17).astype(np.float16)
    tiny.write_safetensors(path, {"wide": wide, "norm": norm})
    plan = plan_of(path, convert_f32=True)
    constant = plan.constant(np.float32([1.5, 2.5]))
    refs = [plan.matrix(Weight("wide", wide.shape)), plan.vector(Weight("norm", norm.shape))]
    arena = bytearray(plan.size_bytes)
    plan.fill(memoryview(arena))
    assert all(ref.offset % 64 == 0 for ref in (constant, *refs))
    assert arena[constant.offset :][:8] == np.float32([1.5, 2.5]).tobytes()
    assert arena[refs[0].offset :][: wide.nbytes // 2] == to_bf16(wide).tobytes()
    assert arena[refs[1].offset :][: 4 * 17] == norm.astype(np.float32).tobytes()
