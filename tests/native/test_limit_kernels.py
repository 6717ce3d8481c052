"""The limits of every usable row: something is measured, and the checksum is that of the data."""

import numpy as np
import pytest

from caldrix import native
from caldrix.engine.limits import Limit
from caldrix.errors import EngineError

UNIT = native.ENUMS["CX_LIMIT_PIECES"] * 256
PEAK_BYTES = native.ENUMS["CX_LIMIT_PEAK_BYTES"]


def data_of(name: str, seed: int = 1) -> bytearray:
    generator = np.random.default_rng(seed)
    if name == "fma":
        return bytearray(generator.uniform(-1, 1, PEAK_BYTES // 4).astype(np.float32).tobytes())
    high = 128 if name == "int8" else 256
    return bytearray(generator.integers(0, high, UNIT if name == "read" else PEAK_BYTES, np.uint8))


def measured(
    name: str, data: bytearray, row: str = "scalar", threads: int = 1, seconds: float = 0.0
) -> Limit:
    return Limit(*native.measure_limit(name, data, row, threads, seconds))


@pytest.mark.parametrize("row", native.rows())
@pytest.mark.parametrize("name", native.LIMITS)
def test_a_limit_is_a_speed_with_the_checksum_of_its_data(name: str, row: str) -> None:
    data = data_of(name)
    first = measured(name, data, row)
    assert first.seconds > 0
    assert first.work > 0
    assert first.per_second > 0
    assert measured(name, data, row).checksum == first.checksum
    # One byte near the start, one where the last whole step of every row still reads.
    for place in (3, PEAK_BYTES // 2 + 3 if name != "read" else UNIT - 1):
        data[place] ^= 0x21
        assert measured(name, data, row).checksum != first.checksum
        data[place] ^= 0x21
    assert measured(name, data_of(name, 2), row).checksum != first.checksum


@pytest.mark.parametrize("row", native.rows())
def test_every_byte_is_read_once_a_pass(row: str) -> None:
    data = data_of("read")
    one = measured("read", data, row)
    assert one.work % len(data) == 0
    assert measured("read", data, row, threads=3).checksum == one.checksum
    blocks = len({measured("read", changed(data, at), row).checksum for at in range(0, UNIT, 7919)})
    assert blocks == len(range(0, UNIT, 7919))


def changed(data: bytearray, at: int) -> bytearray:
    copy = bytearray(data)
    copy[at] ^= 1
    return copy


def test_rows_read_the_same_bytes() -> None:
    data = data_of("read")
    assert len({measured("read", data, row).checksum for row in native.rows()}) == 1


def test_integer_sums_do_not_overflow_and_rows_that_step_alike_agree() -> None:
    """Greatest bytes everywhere: products of 127 by 127, the most that a row must hold."""
    data = bytearray(b"\x7f" * PEAK_BYTES)
    for row in native.rows():
        found = measured("int8", data, row)
        assert measured("int8", data, row).checksum == found.checksum


def test_it_measures_for_as_long_as_it_is_told() -> None:
    assert measured("int8", data_of("int8"), seconds=0.05).seconds >= 0.05


@pytest.mark.parametrize(
    ("name", "size", "row", "threads", "seconds", "words"),
    [
        ("read", 0, "scalar", 1, 0.0, "0 bytes: takes a multiple of"),
        ("read", UNIT - 1, "scalar", 1, 0.0, "takes a multiple of 262144"),
        ("fma", PEAK_BYTES - 1, "scalar", 1, 0.0, "8191 bytes: takes 8192 or more"),
        ("int8", 0, "scalar", 1, 0.0, "0 bytes: takes 8192 or more"),
        ("int8", PEAK_BYTES, "x86-64-v9", 1, 0.0, "x86-64-v9"),
        ("int8", PEAK_BYTES, "scalar", 0, 0.0, "0 threads: takes 1 to"),
        ("int8", PEAK_BYTES, "scalar", 1, -1.0, "-1 seconds: takes 0 to 60"),
        ("int8", PEAK_BYTES, "scalar", 1, float("nan"), "nan seconds: takes 0 to 60"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    name: str, size: int, row: str, threads: int, seconds: float, words: str
) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        measured(name, bytearray(size), row, threads, seconds)
    assert "\n" not in str(caught.value)
