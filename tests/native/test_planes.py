"""Planes give back every bf16 value as it was, on every row of this processor, or are not made.

The judge of what can be packed is written here once more, from the words of native/quant/planes.h.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from caldrix import native
from caldrix.errors import EngineError

VALUES, BYTES = native.ENUMS["CX_PLANES_VALUES"], native.ENUMS["CX_PLANES_BYTES"]
PLANES = next(kind.id for kind in native.quant_types() if kind.name == "planes")
WINDOW, MOST_ODD = 15, 6
ROWS = (None, *native.rows())

Bits = NDArray[np.uint16]


def pack(bits: Bits) -> bytes | None:
    planes = bytearray(bits.size // VALUES * BYTES)
    return bytes(planes) if native.pack_planes(bits.tobytes(), planes) else None


def unpack(planes: bytes, count: int, row: str | None) -> Bits:
    values = native.decode(PLANES, planes, count, row).view(np.uint32)
    assert not (values & 0xFFFF).any()
    return (values >> 16).astype(np.uint16)


def n_odd(bits: Bits) -> int:
    """Of one block: the values outside the best window of exponents, zeros and subnormals aside."""
    exponents = (bits >> 7) & 0xFF
    some = exponents[exponents != 0]
    inside = [((some > base - WINDOW) & (some <= base)).sum() for base in range(1, 256)]
    return int(some.size - max(inside))


def check(bits: Bits) -> bool:
    """Whether the blocks were packed; if so they came back bit for bit."""
    blocks = bits.reshape(-1, VALUES)
    fits = all(n_odd(block) <= MOST_ODD for block in blocks)
    planes = pack(bits)
    assert (planes is not None) == fits
    if planes is not None:
        for row in ROWS:
            np.testing.assert_array_equal(unpack(planes, bits.size, row), bits)
    return fits


def test_each_of_the_65536_values_survives_among_its_like() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    by_exponent = bits[np.argsort(bits >> 7 & 0xFF, kind="stable")]
    assert check(by_exponent)


@pytest.mark.parametrize("exponent", [0, 1, 14, 15, 16, 127, 240, 254, 255])
def test_odd_values_of_every_exponent_survive_in_any_block(exponent: int) -> None:
    rng = np.random.default_rng(exponent)
    bits = rng.standard_normal((256, VALUES)).astype(np.float32).view(np.uint32) >> 16
    bits = (bits & 0x807F) | (120 << 7)
    for byte, block in enumerate(bits):  # every sign and fraction
        at = rng.choice(VALUES, MOST_ODD, replace=False)
        block[at] = (byte & 0x80) << 8 | exponent << 7 | (byte & 0x7F)
    assert check(bits.astype(np.uint16).ravel())


@given(st.data())
@settings(max_examples=150)
def test_any_mix_comes_back_bit_for_bit_or_is_not_packed(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    n_blocks = data.draw(st.integers(1, 3), "blocks")
    bits = rng.integers(0, 65536, (n_blocks, VALUES))
    for block in bits:
        top = data.draw(st.integers(0, 255), "top")
        span = data.draw(st.integers(1, 18), "span")
        exponents = np.maximum(top - rng.integers(0, span, VALUES), 0)
        share = data.draw(st.sampled_from([0.0, 0.3, 1.0]), "zero exponents")
        exponents[rng.random(VALUES) < share] = 0
        at = rng.choice(VALUES, data.draw(st.integers(0, 9), "odd"), replace=False)
        exponents[at] = rng.integers(0, 256, at.size)
        block[:] = (block & 0x807F) | exponents << 7
    special = data.draw(st.lists(st.sampled_from(SPECIAL), max_size=8), "special")
    bits[0, rng.choice(VALUES, len(special), replace=False)] = special
    check(bits.astype(np.uint16).ravel())


# Zeros, subnormals, infinities, quiet and signalling NaNs, the largest and the smallest numbers.
SPECIAL = [0, 0x8000, 1, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7F7F, 0xFF7F, 0x0080]


def test_one_odd_value_more_than_the_list_holds_is_refused() -> None:
    bits = np.full(2 * VALUES, 0x3F80, np.uint16)
    for count in (MOST_ODD, MOST_ODD + 1):
        bits[VALUES : VALUES + count] = 0x7F80
        assert check(bits) == (count == MOST_ODD)


@pytest.mark.parametrize(("source", "target"), [(512, 397), (512, 399), (511, 398), (514, 398)])
def test_sizes_must_agree(source: int, target: int) -> None:
    with pytest.raises(EngineError, match=f"{source} bytes of bf16 are no planes of {target} byt"):
        native.pack_planes(bytes(source), bytearray(target))


def test_damaged_blocks_decode_to_something() -> None:
    """Whatever a list of odd values says, it stays inside its block."""
    rng = np.random.default_rng(5)
    planes = rng.integers(0, 256, 64 * BYTES, dtype=np.uint8).tobytes()
    want = unpack(planes, 64 * VALUES, None)
    for row in native.rows():
        np.testing.assert_array_equal(unpack(planes, 64 * VALUES, row), want)
