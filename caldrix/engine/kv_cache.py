"""Slots: which are in use, and the tokens whose keys and values the others still hold.

Owns the choice of a slot and the reuse of a shared prefix; knows no tensors, steps or requests.
Keys and values of the first n tokens do not depend on what follows them, so a slot may be cut at
any length: the positions after it are overwritten before anything reads them. A slot in use lists
no tokens: its sequence knows them, and says on release which of them are computed. The choice
decides what is computed again, never what comes out.
"""

from dataclasses import dataclass, field

# A shared prefix is not worth the rest of what its slot holds, where an empty slot is free, if that
# rest is more than so many times as long: what is gained is sure, what is lost may be asked for.
MAX_LOSS = 2


@dataclass(slots=True)
class Slot:
    index: int
    token_ids: list[int] = field(default_factory=list)
    in_use: bool = False
    last_used: int = 0


@dataclass(slots=True, frozen=True)
class Placement:
    """A slot given to a sequence, and how many tokens of its prompt are in it already."""

    slot: int
    n_cached: int


def shared_prefix(a: list[int], b: list[int]) -> int:
    """How many tokens at the start of `a` and `b` are the same.

    Halving, so that slices compare in C.
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class KVCache:
    """The slots of one program."""

    def __init__(self, n_slots: int) -> None:
        self._slots = [Slot(index) for index in range(n_slots)]
        self._n_released = 0

    @property
    def n_free(self) -> int:
        return sum(not slot.in_use for slot in self._slots)

    @property
    def n_kept(self) -> list[int]:
        """Tokens that each slot holds for whoever may use them; 0 for one in use."""
        return [len(slot.token_ids) for slot in self._slots]

    def acquire(self, prompt_ids: tuple[int, ...], may_reuse: bool = True) -> Placement:
        """Takes a free slot: the longest shared prefix, then an empty one, then the longest unused.

        An empty slot comes first where a prefix is short beside what would be lost with it. The
        last token of the prompt is never taken from the cache: its row gives the first scores.
        """
        reusable = list(prompt_ids[:-1]) if may_reuse else []
        free = [s for s in self._slots if not s.in_use]
        shared = {s.index: shared_prefix(s.token_ids, reusable) for s in free}
        if any(not s.token_ids for s in free):
            free = [s for s in free if len(s.token_ids) <= (1 + MAX_LOSS) * shared[s.index]]
        slot = max(free, key=lambda s: (shared[s.index], not s.token_ids, -s.last_used))
        slot.in_use = True
        slot.token_ids = []
        return Placement(slot.index, shared[slot.index])

    def release(self, slot: int, token_ids: list[int]) -> None:
        """Gives a slot back, holding `token_ids` from position 0 on."""
        released = self._slots[slot]
        assert released.in_use
        self._n_released += 1
        released.in_use = False
        released.token_ids = token_ids
        released.last_used = self._n_released
