"""Every plain decoder of a type that files hold against the gguf package, bit for bit."""

import ctypes
import re
from dataclasses import dataclass

import build_native
import gguf.quants
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

N_BLOCKS = 4096
# Where a block's f16 numbers are, by type: bytes from its start.
F16_OFFSETS = {
    "f16": [0],
    "q8_0": [0],
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
    "iq4_nl": [0],
    "iq4_xs": [0],
}
# 0, -0, the smallest subnormal, minus the largest subnormal, 1, -1, both infinities, two NaNs,
# the largest number
ODD_F16 = [0, 0x8000, 1, 0x83FF, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E01, 0xFE55, 0x7BFF]
LIST = (build_native.NATIVE / "quant/quants.h").read_text(encoding="utf8")
OWN = 64  # CX_OWN_TYPES: numbers that the package does not know
LISTED = re.findall(r"^  X\((\w+), (\d+), \d+, \d+\)", LIST, re.MULTILINE)
TYPES = [name for name, number in LISTED if int(number) < OWN]


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("id", ctypes.c_uint32),
        ("block_elements", ctypes.c_uint32),
        ("block_bytes", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class QuantType:
    name: str
    id: int
    block_elements: int
    block_bytes: int


def listed(library: ctypes.CDLL) -> dict[str, QuantType]:
    library.cx_quant_at.restype = ctypes.POINTER(Info)
    types = {}
    for index in range(library.cx_quant_count()):
        info = library.cx_quant_at(index).contents
        name = info.name.decode()
        types[name] = QuantType(name, info.id, info.block_elements, info.block_bytes)
    return types


def decode(
    library: ctypes.CDLL, type_id: int, raw: NDArray[np.uint8], n: int
) -> NDArray[np.float32]:
    out = np.empty(n, np.float32)
    status = library.cx_quant_decode(
        ctypes.c_uint32(type_id),
        raw.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_uint64(n),
        out.ctypes.data_as(ctypes.c_void_p),
    )
    assert status == 0
    return out


def blocks_of(quant: QuantType) -> NDArray[np.uint8]:
    """Random blocks; the first ones carry every pair of odd scales."""
    rng = np.random.default_rng(quant.id)
    blocks = rng.integers(0, 256, (N_BLOCKS, quant.block_bytes), dtype=np.uint8)
    offsets = F16_OFFSETS.get(quant.name, [])
    for place, offset in enumerate(offsets):
        for row in range(len(ODD_F16) ** len(offsets)):
            odd = ODD_F16[row // len(ODD_F16) ** place % len(ODD_F16)]
            blocks[row, offset : offset + 2] = [odd & 255, odd >> 8]
    if quant.name == "mxfp4":
        blocks[:256, 0] = np.arange(256)
    return blocks


def test_every_type_of_the_list_has_gguf_name_and_sizes(library: ctypes.CDLL) -> None:
    types = listed(library)
    assert list(types) == [name for name, _ in LISTED]
    assert len(TYPES) >= 16
    for quant in (types[name] for name in TYPES):
        gguf_type = GGMLQuantizationType(quant.id)
        assert gguf_type.name.lower() == quant.name
        assert GGML_QUANT_SIZES[gguf_type] == (quant.block_elements, quant.block_bytes)


@pytest.mark.parametrize("name", TYPES)
def test_plain_decoder_equals_gguf_bit_for_bit(library: ctypes.CDLL, name: str) -> None:
    quant = listed(library)[name]
    blocks = blocks_of(quant)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(blocks, GGMLQuantizationType(quant.id)).ravel()
    got = decode(library, quant.id, blocks, want.size)
    same = got.view(np.uint32) == want.view(np.uint32)
    both_nan = np.isnan(got) & np.isnan(want)  # which NaN it is depends on the processor
    assert (same | both_nan).all(), np.flatnonzero(~(same | both_nan))[:8]
    assert same.mean() > 0.5


@pytest.mark.parametrize("name", TYPES)
def test_plain_decoder_takes_unaligned_blocks(library: ctypes.CDLL, name: str) -> None:
    quant = listed(library)[name]
    blocks = blocks_of(quant)[-3:]
    shifted = np.empty(blocks.size + 1, np.uint8)
    shifted[1:] = blocks.ravel()
    n = 3 * quant.block_elements
    want = decode(library, quant.id, blocks.copy(), n)
    got = decode(library, quant.id, shifted[1:], n)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_a_type_that_is_not_listed_and_a_part_of_a_block_are_refused(library: ctypes.CDLL) -> None:
    zeros = np.zeros(1024, np.uint8)
    out = np.full(256, 7, np.float32)
    for type_id, n in [(4, 32), (16, 256), (4294967295, 32), (8, 31), (8, 33), (12, 32), (39, 16)]:
        status = library.cx_quant_decode(
            ctypes.c_uint32(type_id),
            zeros.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint64(n),
            out.ctypes.data_as(ctypes.c_void_p),
        )
        assert status == -1, (type_id, n)
    assert (out == 7).all()
    assert library.cx_quant_find(ctypes.c_uint32(4)) is None
