"""The machine's limits, and what a step costs whatever its kernels do: what a speed is judged by.

Owns the data that the limits are measured over; the kernels are native/cpu/kernels/limits.h. Knows
nothing of how speeds are measured (engine/measure.py) or how figures are shown.
"""

import contextlib
import mmap
import random
import re
from dataclasses import dataclass
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
