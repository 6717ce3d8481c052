"""SentencePiece's normalisation table (`precompiled_charsmap`), checked whole before it is used.

The library panics at a damaged one, at the first text that leads it out of its trie. Layout: the
size of the trie in bytes, a double-array trie of 32-bit units, then the replacements, each ended by
a zero byte. Owns that layout; must not know where a table comes from.
"""

import base64

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.uint32]

_LABEL = np.uint32(1 << 31 | 0xFF)  # a unit that holds a value has the top bit
_VALUE = np.uint32((1 << 31) - 1)
_HAS_LEAF = np.uint32(1 << 8)


def decoded(text: str) -> bytes:
    """The table written in base64, as tokenizer.json has it; raises ValueError."""
    return base64.b64decode(text, validate=True)


def longest_replacement(table: bytes) -> int | None:
    """How many bytes of text the table may put in the place of one; None for a damaged table."""
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 + size or size % 4:
        return None
    units, strings = np.frombuffer(table[4 : 4 + size], "<u4"), table[4 + size :]
    try:
        strings.decode()
    except UnicodeDecodeError:
        return None
    if not _stays_inside(units, strings):
        return None
    return max(map(len, strings.split(b"\0")))


def _stays_inside(units: Units, strings: bytes) -> bool:
    """Whether no text leads out of the trie, and every value in it is the start of a character."""
    n = len(units)
    if n == 0:
        return False
    indices = np.arange(n, dtype=np.uint32)
    after = indices ^ _offsets(units)  # where a node's children are, each at this ^ its label
    labels = units & _LABEL
    is_child = (labels > 0) & (labels < 256)
    parents = np.where(is_child, indices ^ labels, np.uint32(0xFFFFFFFF))
    reached = np.zeros(n, np.bool_)
    fresh = np.zeros(n, np.bool_)
    fresh[0] = True
    while fresh.any():
        reached |= fresh
        if int((after[fresh] | np.uint32(0xFF)).max()) >= n:
            return False
        fresh = np.isin(parents, after[fresh]) & is_child & ~reached
    # The root's unit leads on like any other but cannot end a match.
    reached[0] = reached[0] and bool(is_child[0]) and bool(np.isin(parents[0], after[reached]))
    ends = after[reached & ((units & _HAS_LEAF) != 0)]
    values = units[ends] & _VALUE
    starts = np.frombuffer(strings + b"\0", np.uint8) & 0xC0 != 0x80
    return bool((values < len(starts)).all()) and bool(starts[values].all())


def _offsets(units: Units) -> Units:
    return (units >> np.uint32(10)) << ((units & np.uint32(1 << 9)) >> np.uint32(6))
