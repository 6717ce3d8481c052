"""Lists of strings, walked and copied in C, against the same in Python; hostile lengths too."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.native_files import walk_strings


def laid(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(s)) + s for s in strings)


def plainly(data: bytes, at: int, n: int, room: int | None) -> tuple[int, int, bytes]:
    """How many, where they end, what is copied."""
    copied, done = b"", 0
    while done < n and len(data) - at >= 8:
        (length,) = struct.unpack_from("<Q", data, at)
        one = data[at + 8 : at + 8 + length]
        if len(one) < length:
            break
        if room is not None:
            if b"\0" in one or len(copied) + length + 1 > room:
                break
            copied += one + b"\0"
        at, done = at + 8 + length, done + 1
    return done, at, copied


@given(
    strings=st.lists(st.binary(max_size=9), max_size=8),
    before=st.binary(max_size=3),
    cut=st.integers(0, 12),
    n=st.integers(0, 10),
    room=st.none() | st.integers(0, 60),
)
def test_strings_are_walked_as_in_python(
    strings: list[bytes], before: bytes, cut: int, n: int, room: int | None
) -> None:
    whole = before + laid(strings)
    data = whole[: max(len(whole) - cut, 1)] or b"\0"
    out = None if room is None else bytearray(room)
    done, at, copied = plainly(data, len(before), n, room)
    assert walk_strings(memoryview(data), len(before), n, out) == (done, at, len(copied))
    if out is not None:
        assert out[: len(copied)] == copied
        assert not any(out[len(copied) :])


@pytest.mark.parametrize("length", [2**64 - 1, 2**64 - 8, 2**63, 2**32, 4, 5])
def test_a_length_beyond_the_data_ends_the_walk(length: int) -> None:
    data = laid([b"ok"]) + struct.pack("<Q", length) + b"abc"
    assert walk_strings(data, 0, 9) == (1, 10, 0)
    assert walk_strings(data, 0, 9, bytearray(64)) == (1, 10, 3)


@pytest.mark.parametrize("at", [10, 11, 2**32, 2**64 - 1])
def test_a_place_past_the_data_has_none(at: int) -> None:
    assert walk_strings(laid([b"ok"]), at, 2**64 - 1) == (0, at, 0)


def test_room_of_exactly_their_size_is_enough() -> None:
    data = laid([b"ab", b"", b"c"])
    assert walk_strings(data, 0, 3, bytearray(6)) == (3, 27, 6)
    assert walk_strings(data, 0, 3, bytearray(5)) == (2, 18, 4)
