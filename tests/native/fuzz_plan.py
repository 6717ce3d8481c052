"""Fuzz entry for the plan checker: damages fields of a good image; each is refused or runs.

python tests/native/fuzz_plan.py SEED COUNT prints how many were refused and how many ran. Arenas
end at a page that may not be touched, and those of weights may not be written, so that what the
checker lets through by mistake ends the process. Run it on a sanitized build as well.
"""

import ctypes
import mmap
import random
import struct
import sys
from typing import Any

import numpy as np
import tiny_plan

from caldrix import native
from caldrix.errors import EngineError

OP_BYTES = native.ENUMS["CX_OP_BYTES"]
PROT_NONE, PROT_READ = 0, 1
INTERESTING = (
    0,
    1,
    2,
    3,
    15,
    16,
    31,
    32,
    63,
    64,
    65,
    127,
    128,
    4095,
    2**20,
    2**30,
    2**31,
    2**32 - 1,
)
_LIBC = ctypes.CDLL(None, use_errno=True)


def protect(memory: mmap.mmap, start: int, n_bytes: int, protection: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), protection):
        raise OSError(ctypes.get_errno(), "mprotect")


def guarded(data: bytes, read_only: bool) -> memoryview:
    """`data` in memory of its own that ends where the next page faults."""
    n_bytes = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, n_bytes + mmap.PAGESIZE)
    memory[n_bytes - len(data) : n_bytes] = data
    protect(memory, n_bytes, mmap.PAGESIZE, PROT_NONE)
    if read_only:
        protect(memory, 0, n_bytes, PROT_READ)
    return memoryview(memory)[n_bytes - len(data) : n_bytes]


def guarded_arenas(plan: tiny_plan.TinyPlan) -> list[Any]:
    sizes = [plan.activations, plan.cache]
    writable = [guarded(bytes(size), read_only=False) for size in sizes]
    weights = bytes(plan.weights) + bytes(-len(plan.weights) % 64)  # its start is 64-byte aligned
    return [None, *writable, guarded(weights, True), guarded(bytes(plan.file), True)]


def damage(image: bytes, draw: random.Random) -> bytes:
    """One to three fields of 4 bytes changed: to a telling number, by a little, or by one bit."""
    damaged = bytearray(image)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # fields fill the first part of a record; the end is padding
        at = draw.randrange(len(image) // OP_BYTES) * OP_BYTES + draw.randrange(56) * 4
        (old,) = struct.unpack_from("<I", damaged, at)
        new = draw.choice(
            (
                draw.choice(INTERESTING),
                old + draw.choice((-64, -16, -1, 1, 16, 64)),
                old ^ (1 << draw.randrange(32)),
                old * 2,
                old // 2,
            )
        )
        struct.pack_into("<I", damaged, at, new % 2**32)
    return bytes(damaged)


def sampling_at_the_ends(vocab: int) -> native.Sampling:
    """Everything a row may ask for, at the first and the last token."""
    ends = [0, vocab - 1]
    adjust = native.Adjust(
        bias=np.array([(token, 1.0) for token in ends], native.BIAS),
        generated=np.array(ends * 2, np.uint32),
        presence_penalty=0.5,
        frequency_penalty=0.5,
        forbidden=ends if vocab > 2 else (),
    )
    scored = native.Scored(20, vocab - 1)
    return native.Sampling(
        temperature=1.0, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.5, recent=ends,
        adjust=adjust, scored=scored,
    )  # fmt: skip


def run_step(model: native.Model, image: bytes) -> None:
    """The widest step the image's own head allows, at the last positions of the last slots."""
    head = native.ffi.cast("struct cx_plan_head *", native.ffi.from_buffer(image))
    n_rows = min(head.max_rows, head.context)
    n_out = min(head.max_out, n_rows)
    model.step(
        [head.vocab - 1] * n_rows,
        range(head.context - n_rows, head.context),
        [head.n_slots - 1] * n_rows,
        range(n_rows - n_out, n_rows),
        [sampling_at_the_ends(head.vocab)] * n_out,
    )


def fuzz(seed: int, count: int) -> tuple[int, int]:
    draw = random.Random(seed)
    plan = tiny_plan.TinyPlan(int8=True)
    arenas, good = guarded_arenas(plan), plan.image()
    row = draw.choice(native.rows())
    refused = ran = 0
    for _ in range(count):
        image = damage(good, draw)
        try:
            model = native.Model(image, arenas, row, draw.choice((1, 1, 1, 2)))
        except EngineError as error:
            if not str(error).startswith("plan: "):
                raise
            refused += 1
            continue
        run_step(model, image)
        model.close()
        ran += 1
    return refused, ran


if __name__ == "__main__":
    n_refused, n_ran = fuzz(int(sys.argv[1]), int(sys.argv[2]))
    print(f"refused {n_refused}, ran {n_ran}")
