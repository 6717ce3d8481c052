"""How fast a compiled model steps and what its machine could do at most, for `caldrix bench`.

Owns what is stepped and timed, and the data that the limits are measured over. Token ids are made
up: no tokenizer is needed. Everything timed leaves a checksum of what it computed, the same in
every round. Knows nothing of how figures are shown.
"""

import contextlib
import mmap
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from caldrix import native
from caldrix.cgroups import read
from caldrix.compile.memory import memory_limit
from caldrix.compile.program import Program

LIMIT_S = 0.25  # that one limit is measured for, in each round
BUFFER_BYTES = 512 * 2**20
CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # the last one, "32768K"
BUFFER_UNIT = native.ENUMS["CX_LIMIT_PIECES"] * 256
PEAK_BYTES = native.ENUMS["CX_LIMIT_PEAK_BYTES"]
GREEDY = native.Sampling()


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured: prompts of `lengths` tokens, and `n_new` tokens one by one after each of
    `depths` tokens of context."""

    lengths: tuple[int, ...] = (32, 128, 512)
    depths: tuple[int, ...] = (32, 512)
    n_new: int = 32

    @property
    def context(self) -> int:
        """The positions it takes."""
        return max(*self.lengths, *(depth + self.n_new for depth in self.depths))


@dataclass(slots=True)
class Speeds:
    """Tokens a second, by length of the prompt or depth of the context; `together` in all, for the
    program's slots at the least of the depths, where it has more than one."""

    prefill: dict[int, float] = field(default_factory=dict)
    decode: dict[int, float] = field(default_factory=dict)
    together: float | None = None
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs whatever its kernels do: bytes of weights it reads, operations (two for a
    multiply-add with a weight) for each row and for each row whose logits are wanted."""

    weight_bytes: int
    row_flops: int
    out_flops: int

    def prefill_flops(self, length: int) -> int:
        return self.row_flops * length + self.out_flops


def cost_of(program: Program) -> Cost:
    """From the plan's notes of ops that read matrices. Those of no layer are the output's."""
    notes = [note for note in program.notes if note.weight_bytes]
    return Cost(
        sum(note.weight_bytes for note in notes),
        sum(note.flops_per_row for note in notes if note.layer is not None),
        sum(note.flops_per_row for note in notes if note.layer is None),
    )


@dataclass(frozen=True, slots=True)
class Limit:
    """One measurement of a limit: bytes or operations, and a checksum that depends on the data, the
    row and the number of threads alone."""

    seconds: float
    work: float
    checksum: int

    @property
    def per_second(self) -> float:
        return self.work / self.seconds


def token_at(position: int, vocab_size: int) -> int:
    """The made-up token of a prompt's position."""
    return (100 + position % 997) % vocab_size


class Stopwatch:
    """Steps one program; `seconds` and `checksum` grow with what is run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.checksum = 0

    def prompt(self, start: int, end: int, slots: Sequence[int] = (0,)) -> float:
        """Tokens `start` to `end` of the made-up prompt in each slot; the seconds it took."""
        program, began = self.program, time.perf_counter()
        for slot in slots:
            for at in range(start, end, program.max_rows):
                places = range(at, min(at + program.max_rows, end))
                ids = [token_at(place, program.vocab_size) for place in places]
                last = [len(ids) - 1]
                pick = program.step(ids, places, [slot] * len(ids), last, [GREEDY])[0]
            self._add(pick.token)
        return time.perf_counter() - began

    def decode(self, depth: int, n_new: int, slots: Sequence[int] = (0,)) -> float:
        """`n_new` tokens of each slot, all slots in one step, after `depth` tokens of context."""
        n = len(slots)
        ids = [token_at(depth + slot, self.program.vocab_size) for slot in slots]
        rows, samplings = list(range(n)), [GREEDY] * n
        began = time.perf_counter()
        for place in range(depth, depth + n_new):
            picks = self.program.step(ids, [place] * n, slots, rows, samplings)
            ids = [pick.token for pick in picks]
            for token in ids:
                self._add(token)
        return time.perf_counter() - began

    def _add(self, token: int) -> None:
        self.checksum = (self.checksum * 31 + token + 1) % (2**61 - 1)


def measure_speeds(program: Program, work: Work) -> Speeds:
    """One round. The context that decoding needs is what the prompts before it left."""
    watch, speeds = Stopwatch(program), Speeds()
    watch.prompt(0, 1)  # brings the threads to life
    filled = 0
    for length in work.lengths:
        speeds.prefill[length] = length / watch.prompt(0, length)
        filled = max(filled, length)
    for depth in sorted(work.depths, reverse=True):  # each writes over what lies past its depth
        if depth > filled:
            watch.prompt(filled, depth)
        speeds.decode[depth] = work.n_new / watch.decode(depth, work.n_new)
        filled = depth
    if program.n_slots > 1:
        slots, depth = range(program.n_slots), min(work.depths)
        watch.prompt(0, depth, slots)
        speeds.together = len(slots) * work.n_new / watch.decode(depth, work.n_new, slots)
    speeds.checksum = watch.checksum
    return speeds


class Limits:
    """The machine's limits, over data that is made once.

    Memory is read from a buffer larger than the last cache, in huge pages where the system gives
    them; the two peaks come from the first-level cache."""

    def __init__(self, n_bytes: int | None = None) -> None:
        self.n_bytes = n_bytes = n_bytes or _buffer_bytes()
        generator = random.Random(1)
        self._memory = _random_memory(generator, n_bytes)
        numbers = [generator.uniform(-1, 1) for _ in range(PEAK_BYTES // 4)]
        self._data: dict[str, native.Buffer] = {
            "read": self._memory,
            "fma": np.array(numbers, np.float32),
            "int8": bytes(generator.choices(range(128), k=PEAK_BYTES)),
        }

    def measure(self, row: str, threads: int, seconds: float = LIMIT_S) -> dict[str, Limit]:
        """By name: bytes read, f32 and 8-bit operations."""
        return {
            name: Limit(*native.measure_limit(name, self._data[name], row, threads, seconds))
            for name in native.LIMITS
        }


def _buffer_bytes() -> int:
    """Several times the last cache, and no more than a quarter of what this process may use."""
    cache = re.match(r"([0-9]{1,9})K$", read(CACHE).strip())
    wanted = max(BUFFER_BYTES, 4096 * int(cache[1]) if cache else 0)
    limit = memory_limit()
    n_bytes = wanted if limit is None else min(wanted, limit // 4)
    return max(n_bytes // BUFFER_UNIT, 1) * BUFFER_UNIT


def _random_memory(generator: random.Random, n_bytes: int) -> mmap.mmap:
    memory = native.allocate(n_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them has small pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    block = generator.randbytes(min(n_bytes, 2**20 + 4096))
    for at in range(0, n_bytes, len(block)):
        piece = block[: n_bytes - at]
        memory[at : at + len(piece)] = piece
    return memory
