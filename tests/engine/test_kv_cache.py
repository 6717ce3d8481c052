"""The choice of a slot, and how much of a prompt is reused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.engine.kv_cache import KVCache, Placement, shared_prefix

tokens = st.lists(st.integers(0, 2), max_size=30)


@given(tokens, tokens, tokens)
def test_a_shared_prefix_ends_at_the_first_difference(
    start: list[int], a: list[int], b: list[int]
) -> None:
    left, right = start + a, start + b
    plain = 0
    for x, y in zip(left, right, strict=False):
        if x != y:
            break
        plain += 1
    assert shared_prefix(left, right) == plain


def kept(held: list[list[int]]) -> KVCache:
    """A cache whose slots were released in order, holding `held`."""
    kv = KVCache(len(held))
    for _ in held:
        kv.acquire((99,))
    for slot, token_ids in enumerate(held):
        kv.release(slot, token_ids)
    return kv


@pytest.mark.parametrize(
    ("held", "prompt_ids", "placement"),
    [
        # the longest prefix, wherever it is
        ([[1, 2], [1, 2, 3], [1]], (1, 2, 3, 4), Placement(1, 3)),
        # ... and however long ago its slot was used
        ([[1, 2, 3], [7], []], (1, 2, 9), Placement(0, 2)),
        # nothing shared: an empty slot before one that holds something
        ([[1], [], [2]], (5, 6), Placement(1, 0)),
        # nothing empty: the one unused for longest
        ([[1], [2], [3]], (5, 6), Placement(0, 0)),
        # a prefix is not worth twice as much and more, if an empty slot is there
        ([[1, 2, 3, 4, 5, 6], []], (1, 2, 9), Placement(0, 2)),
        ([[1, 2, 3, 4, 5, 6, 7], []], (1, 2, 9), Placement(1, 0)),
        ([[1, 2, 3, 4, 5, 6, 7], [1, 8], []], (1, 2, 9), Placement(1, 1)),
        ([[1, 2, 3, 4, 5, 6, 7], [8]], (1, 2, 9), Placement(0, 2)),
        # the last token of a prompt is computed even when it is held
        ([[1, 2, 3]], (1, 2, 3), Placement(0, 2)),
        ([[1, 2, 3]], (1,), Placement(0, 0)),
    ],
)
def test_which_slot_is_taken(
    held: list[list[int]], prompt_ids: tuple[int, ...], placement: Placement
) -> None:
    assert kept(held).acquire(prompt_ids) == placement


def test_a_slot_in_use_is_neither_shared_nor_given_again() -> None:
    kv = kept([[1, 2, 3], []])
    assert kv.acquire((1, 2, 3, 4)) == Placement(0, 3)
    assert kv.n_free == 1
    assert kv.acquire((1, 2, 3, 4)) == Placement(1, 0)
    assert kv.n_free == 0
    kv.release(0, [1, 2])
    assert kv.acquire((1, 2, 3, 4)) == Placement(0, 2)


def test_the_longest_unused_is_by_release_not_by_number() -> None:
    kv = kept([[1], [2]])
    kv.acquire((8, 8))  # slot 0, the first released
    kv.release(0, [8, 8])
    assert kv.acquire((9, 9)).slot == 1


def test_without_reuse_an_empty_slot_or_the_longest_unused_is_taken() -> None:
    kv = kept([[1, 2, 3], [], [1]])
    assert kv.acquire((1, 2, 3, 4), may_reuse=False) == Placement(1, 0)
    assert kv.acquire((1, 2, 3, 4), may_reuse=False) == Placement(0, 0)
